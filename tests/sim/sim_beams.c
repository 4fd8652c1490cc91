/* The simulator's own beam search: the rule as vLLM's loop says it, without any of the engine's parts. It runs every
 * search to its end, keeps all answers and sorts them at last. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "tests/sim/sim_world.h"

struct pool {
	struct sim_beam *list;
	u32 count, room;
};

static void put(struct pool *p, const struct sim_beam *b)
{
	if (p->count == p->room) {
		p->room = p->room ? 2 * p->room : 64;
		p->list = realloc(p->list, p->room * sizeof(*p->list));
		ASSERT(p->list);
	}
	p->list[p->count++] = *b;
}

/* By insertion: stable. */
static void sort(struct pool *p, bool (*before)(const struct sim_beam *, const struct sim_beam *))
{
	for (u32 i = 1; i < p->count; i++) {
		struct sim_beam b = p->list[i];
		u32 at = i;
		for (; at > 0 && before(&b, &p->list[at - 1]); at--)
			p->list[at] = p->list[at - 1];
		p->list[at] = b;
	}
}

static bool has_better_score(const struct sim_beam *a, const struct sim_beam *b)
{
	return a->score > b->score;
}

static bool goes_before(const struct sim_beam *a, const struct sim_beam *b)
{
	if (a->sum != b->sum)
		return a->sum > b->sum;
	if (a->parent != b->parent)
		return a->parent < b->parent;
	return a->tokens[a->count - 1] < b->tokens[b->count - 1];
}

static bool stops(const struct sim_world *w, const struct sim_request *r, u32 outputs, u32 token)
{
	if (outputs < r->min_tokens)
		return false;
	return (!r->ignore_eos && token == w->config.eos_ids[0]) || token == r->stop_id;
}

static void extend(const struct sim_world *w, const struct sim_request *r, const struct sim_beam *b, u32 parent,
		   struct pool *next, struct pool *ended)
{
	u32 ids[LOGPROBS_MAX];
	f32 values[LOGPROBS_MAX];
	u32 n = fake_best_tokens(b->tokens, b->count, w->config.vocab_size, 2 * r->width, ids, values);

	for (u32 i = 0; i < n; i++) {
		struct sim_beam c = *b;
		c.tokens[c.count++] = ids[i];
		c.sum += (f64)values[i];
		c.parent = parent;
		c.stopped = stops(w, r, c.count - r->prompt_count, ids[i]);
		c.score = c.sum / pow(c.count - c.stopped, r->length_penalty);
		put(c.stopped ? ended : next, &c);
	}
}

u32 sim_beam_search(const struct sim_world *w, const struct sim_request *r, struct sim_beam *answers)
{
	struct pool live = {0}, ended = {0};
	struct sim_beam first = {.count = r->prompt_count};

	memcpy(first.tokens, r->tokens, r->prompt_count * sizeof(u32));
	put(&live, &first);
	for (u32 outputs = 0; outputs < r->output_max && live.count; outputs++) {
		struct pool next = {0};
		u32 before = ended.count;
		for (u32 i = 0; i < live.count; i++)
			extend(w, r, &live.list[i], i, &next, &ended);
		struct pool found = {ended.list + before, ended.count - before, 0};
		sort(&found, goes_before); /* the order among equal scores */
		sort(&next, goes_before);
		next.count = next.count < r->width ? next.count : r->width;
		free(live.list);
		live = next;
		if (r->early_stopping && ended.count >= r->width && outputs + 1 < r->output_max)
			live.count = 0;
	}
	for (u32 i = 0; i < live.count; i++)
		put(&ended, &live.list[i]);
	sort(&ended, has_better_score);
	u32 count = ended.count < r->width ? ended.count : r->width;
	memcpy(answers, ended.list, count * sizeof(*answers));
	free(live.list);
	free(ended.list);
	return count;
}
