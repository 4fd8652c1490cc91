/* Owns the order of waiting and running sequences; runs inside the scheduling core. Never decides who moves.
 */
#include "proc_scheduler/queues.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

void waiting_init(struct waiting *w)
{
	*w = (struct waiting){SEQ_NONE, SEQ_NONE, 0};
}

/* Puts `q` behind the slot `before`; SEQ_NONE: to the head. */
static void link_behind(struct waiting *w, struct seqs *t, u32 before, struct seq *q)
{
	u32 slot = seqs_slot(t, q);
	u32 after = before == SEQ_NONE ? w->head : t->slots[before].next;

	q->prev = before;
	q->next = after;
	if (before == SEQ_NONE)
		w->head = slot;
	else
		t->slots[before].next = slot;
	if (after == SEQ_NONE)
		w->tail = slot;
	else
		t->slots[after].prev = slot;
	w->count++;
}

void waiting_push(struct waiting *w, struct seqs *t, struct seq *q)
{
	u32 before = w->tail;

	while (before != SEQ_NONE && t->slots[before].priority > q->priority)
		before = t->slots[before].prev;
	link_behind(w, t, before, q);
}

void waiting_push_head(struct waiting *w, struct seqs *t, struct seq *q)
{
	u32 before = SEQ_NONE, at = w->head;

	for (; at != SEQ_NONE && t->slots[at].priority < q->priority; at = t->slots[at].next)
		before = at;
	link_behind(w, t, before, q);
}

void waiting_remove(struct waiting *w, struct seqs *t, struct seq *q)
{
	ASSERT(w->count > 0);
	if (q->prev == SEQ_NONE)
		w->head = q->next;
	else
		t->slots[q->prev].next = q->next;
	if (q->next == SEQ_NONE)
		w->tail = q->prev;
	else
		t->slots[q->next].prev = q->prev;
	q->prev = q->next = SEQ_NONE;
	w->count--;
}

struct seq *waiting_head(const struct waiting *w, const struct seqs *t)
{
	return w->head == SEQ_NONE ? NULL : &t->slots[w->head];
}

enum err running_init(struct running *r, u32 capacity)
{
	*r = (struct running){.slots = calloc(capacity, sizeof(u32)), .capacity = capacity};
	return r->slots ? ERR_OK : ERR_NO_MEMORY;
}

void running_fini(struct running *r)
{
	free(r->slots);
	*r = (struct running){0};
}

void running_push(struct running *r, const struct seqs *t, u32 slot)
{
	u32 i = r->count;

	ASSERT(r->count < r->capacity);
	while (i > 0 && t->slots[r->slots[i - 1]].priority > t->slots[slot].priority)
		i--;
	memmove(&r->slots[i + 1], &r->slots[i], (r->count - i) * sizeof(u32));
	r->slots[i] = slot;
	r->count++;
}

void running_put_behind(struct running *r, u32 slot, u32 before)
{
	u32 i = 0;

	ASSERT(r->count < r->capacity);
	while (i < r->count && r->slots[i] != before)
		i++;
	ASSERT(i < r->count);
	memmove(&r->slots[i + 2], &r->slots[i + 1], (r->count - i - 1) * sizeof(u32));
	r->slots[i + 1] = slot;
	r->count++;
}

void running_remove(struct running *r, u32 slot)
{
	u32 i = 0;

	while (i < r->count && r->slots[i] != slot)
		i++;
	ASSERT(i < r->count);
	memmove(&r->slots[i], &r->slots[i + 1], (r->count - i - 1) * sizeof(u32));
	r->count--;
}
