/* Adds adapters to the products of a step: sorts its tokens by adapter once, and hands every product's groups to the op. Runs
 * in the worker in every step. Never allocates after init, never looks at requests. */
#include "proc_worker/model/lora.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

enum err lora_step_init(struct lora_step *l, const struct lora_set *set, const struct kern_ops *ops, struct kern_ctx *ctx,
			u32 tokens_max, struct err_msg *em)
{
	*l = (struct lora_step){.ops = ops, .ctx = ctx};
	if (!set || set->count == 0)
		return ERR_OK;
	size_t count = set->count, words = 3 * count + 2 + 2 * (size_t)tokens_max;
	l->memory = malloc(count * sizeof(*l->groups) + words * sizeof(u32));
	if (!l->memory)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	l->groups = l->memory;
	l->active = (u32 *)(void *)(l->groups + count);
	l->start = l->active + count;
	l->row_start = l->start + count + 1;
	l->tokens = l->row_start + count + 1;
	l->rows = l->tokens + tokens_max;
	l->set = set;
	return ERR_OK;
}

void lora_step_fini(struct lora_step *l)
{
	free(l->memory);
	*l = (struct lora_step){0};
}

/* The tokens and rows of adapter `index` behind those that are listed already. */
static void list_adapter(struct lora_step *l, const struct inputs *in, u32 index)
{
	u32 at = l->active_count, tokens = l->start[at], rows = l->row_start[at];

	for (u32 r = 0; r < in->rows; r++) {
		if (in->lora[r] != index + 1)
			continue;
		l->rows[rows++] = r;
		for (u32 t = in->query_start[r]; t < in->query_start[r + 1]; t++)
			l->tokens[tokens++] = t;
	}
	if (rows == l->row_start[at])
		return;
	l->active[at] = index;
	l->start[at + 1] = tokens;
	l->row_start[at + 1] = rows;
	l->active_count++;
}

void lora_step_begin(struct lora_step *l, const struct inputs *in)
{
	l->active_count = 0;
	if (!l->set || in->lora_rows == 0)
		return;
	l->start[0] = l->row_start[0] = 0;
	for (u32 i = 0; i < l->set->count && l->row_start[l->active_count] < in->lora_rows; i++)
		list_adapter(l, in, i);
	ASSERT(l->row_start[l->active_count] == in->lora_rows);
}

/* How many of the ascending numbers are below `limit`. */
static u32 count_below(const u32 *numbers, u32 count, u32 limit)
{
	u32 low = 0, high = count;

	while (low < high) {
		u32 middle = low + (high - low) / 2;
		if (numbers[middle] < limit)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

enum err lora_step_add(struct lora_step *l, const struct lora_call *c, u32 x_stride, u32 out_stride, struct err_msg *em)
{
	struct kern_lora_args a = {.out = c->out,
				   .x = c->x,
				   .groups = l->groups,
				   .first = c->first,
				   .x_stride = x_stride,
				   .out_stride = out_stride};

	for (u32 i = 0; i < l->active_count; i++) {
		const struct kern_lora *lora =
			&l->set->adapters[l->active[i]].products[c->layer * LORA_PRODUCTS + (u32)c->product];
		const u32 *starts = c->narrowed ? l->row_start : l->start;
		const u32 *list = (c->narrowed ? l->rows : l->tokens) + starts[i];
		u32 count = starts[i + 1] - starts[i];
		u32 begin = count_below(list, count, c->first), end = count_below(list, count, c->first + c->count);
		if (lora->part_count && begin < end)
			l->groups[a.group_count++] = (struct kern_lora_group){lora, list + begin, end - begin};
	}
	enum err e = a.group_count ? l->ops->lora(l->ctx, &a) : ERR_OK;
	return e ? err_set(em, e, "lora: %s", err_text(e)) : ERR_OK;
}
