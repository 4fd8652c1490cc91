/* The rule by which a sequence ends. Run by the scheduler and the detokenizer over the same tokens: it must
 * stay pure and must never learn anything that only one of them knows. */
#include "common/finish.h"

#include "common/assert.h"

const char *finish_reason_name(enum finish_reason r)
{
	switch (r) {
	case FINISH_NONE:
		return "";
	case FINISH_STOP:
		return "stop";
	case FINISH_LENGTH:
		return "length";
	case FINISH_ABORT:
		return "abort";
	case FINISH_ERROR:
		return "error";
	case FINISH_REASON_COUNT:
		break;
	}
	return "unknown";
}

static bool contains(const uint32_t *ids, uint32_t count, uint32_t id)
{
	for (uint32_t i = 0; i < count; i++)
		if (ids[i] == id)
			return true;
	return false;
}

struct finish finish_check(const struct finish_rule *rule, uint32_t output_count, uint32_t token)
{
	DASSERT(output_count >= 1);
	if (output_count >= rule->output_min) {
		if (!rule->ignore_eos && contains(rule->eos_ids, rule->eos_count, token))
			return (struct finish){.reason = FINISH_STOP};
		if (contains(rule->stop_ids, rule->stop_count, token))
			return (struct finish){.reason = FINISH_STOP, .by_stop_id = true};
	}
	if (output_count >= rule->output_max)
		return (struct finish){.reason = FINISH_LENGTH};
	return (struct finish){.reason = FINISH_NONE};
}
