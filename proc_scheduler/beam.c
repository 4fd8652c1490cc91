/* The rule of beam search; runs inside the scheduling core and in its tests. Pure. */
#include "proc_scheduler/beam.h"

#include <math.h>
#include <string.h>

#include "common/assert.h"

static bool is_better(const struct beam_pick *a, const struct beam_pick *b)
{
	if (a->sum != b->sum)
		return a->sum > b->sum;
	return a->beam != b->beam ? a->beam < b->beam : a->token < b->token;
}

/* Keeps the `max` best. */
static void insert(struct beam_pick *list, u32 *count, u32 max, const struct beam_pick *p)
{
	u32 at = *count;

	while (at > 0 && is_better(p, &list[at - 1]))
		at--;
	if (at == max)
		return;
	if (*count < max)
		++*count;
	memmove(&list[at + 1], &list[at], (*count - at - 1) * sizeof(*list));
	list[at] = *p;
}

void beam_pick(const struct beam_rule *r, const struct beam_offer *offers, u32 offer_count, u32 outputs,
	       struct beam_picks *out)
{
	ASSERT(r->width >= 1 && r->width <= BEAM_WIDTH_MAX && offer_count <= r->width);
	out->next_count = out->ended_count = 0;
	for (u32 beam = 0; beam < offer_count; beam++) {
		const struct beam_offer *o = &offers[beam];
		u32 count = o->count < 2 * r->width ? o->count : 2 * r->width;
		for (u32 i = 0; i < count; i++) {
			struct beam_pick p = {beam, i, o->ids[i], o->values[i], o->sum + (f64)o->values[i]};
			if (!isfinite(o->values[i]))
				continue;
			if (finish_check(&r->finish, outputs + 1, p.token).reason == FINISH_STOP)
				insert(out->ended, &out->ended_count, r->width, &p);
			else
				insert(out->next, &out->next_count, r->width, &p);
		}
	}
}

static f64 score_at(const struct beam_rule *r, f64 sum, u32 length)
{
	return sum / pow((f64)length, r->length_penalty);
}

f64 beam_score(const struct beam_rule *r, f64 sum, u32 outputs, bool stopped)
{
	return score_at(r, sum, r->prompt_count + outputs - stopped);
}

bool beam_answers_add(struct beam_answers *a, const struct beam_rule *r, struct beam_answer answer, u32 *lost)
{
	u32 at = a->count;
	bool full = a->count == r->width;

	answer.score = beam_score(r, answer.sum, answer.outputs, answer.reason == FINISH_STOP);
	while (at > 0 && answer.score > a->best[at - 1].score)
		at--;
	*lost = !full ? 0 : at == a->count ? answer.node : a->best[a->count - 1].node;
	if (at == r->width)
		return true;
	a->count += !full;
	memmove(&a->best[at + 1], &a->best[at], (a->count - at - 1) * sizeof(a->best[0]));
	a->best[at] = answer;
	return full;
}

/* What comes adds at most 0 to the sum. Which length is best then depends on the sign of the penalty: the longest, or
 * the present one with a token that ends it and does not count. */
bool beam_is_over(const struct beam_rule *r, const struct beam_answers *a, f64 best_sum, u32 outputs)
{
	if (a->count < r->width)
		return false;
	if (r->early_stopping)
		return true;
	u32 length = r->prompt_count + (r->length_penalty > 0 ? r->finish.output_max : outputs);
	return a->best[a->count - 1].score >= score_at(r, best_sum, length);
}
