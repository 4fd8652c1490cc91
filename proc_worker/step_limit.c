/* Pure arithmetic of the watch over a device's steps (runner_device_watch.c). Runs in the worker; never looks at a
 * clock. */
#include "proc_worker/step_limit.h"

static const u64 MS = 1000000;

static u32 size_of(u32 tokens)
{
	return tokens ? 32 - (u32)__builtin_clz(tokens) : 0;
}

void step_limit_init(struct step_limit *l, u64 most_ns)
{
	*l = (struct step_limit){.most_ns = most_ns};
}

void step_limit_learn(struct step_limit *l, u32 tokens, u64 took_ns)
{
	u32 size = size_of(tokens);
	u64 before = l->sizes[size].usual_ns, left = before - before / 16;

	l->sizes[size].usual_ns = took_ns > left ? took_ns : left;
	l->sizes[size].steps += l->sizes[size].steps < STEP_LIMIT_SETTLED;
}

u64 step_limit_usual_ns(const struct step_limit *l, u32 tokens)
{
	u32 size = size_of(tokens);

	return l->sizes[size].steps == STEP_LIMIT_SETTLED ? l->sizes[size].usual_ns : 0;
}

u64 step_limit_ns(const struct step_limit *l, u32 tokens)
{
	u64 usual = step_limit_usual_ns(l, tokens), least = STEP_LIMIT_LEAST_MS * MS;

	if (!usual || usual > l->most_ns / STEP_LIMIT_TIMES)
		return l->most_ns;
	u64 limit = usual * STEP_LIMIT_TIMES;
	limit = limit > least ? limit : least;
	return limit < l->most_ns ? limit : l->most_ns;
}
