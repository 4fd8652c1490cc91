/* Defaults and ranges of sampling parameters, expanded from SAMPLING_TABLE. Pure. */
#include "common/sampling_params.h"

#include <inttypes.h>

void sampling_params_default(struct sampling_params *p)
{
	*p = (struct sampling_params){
#define SAMPLING_DEFAULT(A, type, name, def, min, max) .name = def,
		SAMPLING_TABLE(SAMPLING_DEFAULT, 0)
#undef SAMPLING_DEFAULT
	};
}

/* Written as a negation, so that NaN is outside of every range. */
static enum err check_f32(const char *name, f32 v, f32 min, f32 max, struct err_msg *em)
{
	if (!(v >= min && v <= max))
		return err_set(em, ERR_INVALID, "%s is %g: it must be between %g and %g", name, (double)v,
			       (double)min, (double)max);
	return ERR_OK;
}

static enum err check_u32(const char *name, u32 v, u32 min, u32 max, struct err_msg *em)
{
	if (v < min || v > max)
		return err_set(em, ERR_INVALID,
			       "%s is %" PRIu32 ": it must be between %" PRIu32 " and %" PRIu32, name, v, min,
			       max);
	return ERR_OK;
}

static enum err check_i32(const char *name, i32 v, i32 min, i32 max, struct err_msg *em)
{
	if (v < min || v > max)
		return err_set(em, ERR_INVALID,
			       "%s is %" PRId32 ": it must be between %" PRId32 " and %" PRId32, name, v, min,
			       max);
	return ERR_OK;
}

static enum err check_u64(const char *name, u64 v, u64 min, u64 max, struct err_msg *em)
{
	if (v < min || v > max)
		return err_set(em, ERR_INVALID,
			       "%s is %" PRIu64 ": it must be between %" PRIu64 " and %" PRIu64, name, v, min,
			       max);
	return ERR_OK;
}

enum err sampling_params_check(const struct sampling_params *p, struct err_msg *em)
{
	enum err e;

#define SAMPLING_CHECK(A, type, name, def, min, max)    \
	e = check_##type(#name, p->name, min, max, em); \
	if (e != ERR_OK)                                \
		return e;
	SAMPLING_TABLE(SAMPLING_CHECK, 0)
#undef SAMPLING_CHECK
	if (p->top_p == 0.0f)
		return err_set(em, ERR_INVALID, "top_p is 0: it must be above 0 and at most 1");
	if (p->min_tokens > p->max_tokens)
		return err_set(em, ERR_INVALID,
			       "min_tokens is %" PRIu32 ": it must be at most max_tokens (%" PRIu32 ")",
			       p->min_tokens, p->max_tokens);
	return ERR_OK;
}
