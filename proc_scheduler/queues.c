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

void waiting_push(struct waiting *w, struct seqs *t, struct seq *q)
{
	u32 slot = seqs_slot(t, q);

	q->prev = w->tail;
	q->next = SEQ_NONE;
	if (w->tail == SEQ_NONE)
		w->head = slot;
	else
		t->slots[w->tail].next = slot;
	w->tail = slot;
	w->count++;
}

void waiting_push_head(struct waiting *w, struct seqs *t, struct seq *q)
{
	u32 slot = seqs_slot(t, q);

	q->prev = SEQ_NONE;
	q->next = w->head;
	if (w->head == SEQ_NONE)
		w->tail = slot;
	else
		t->slots[w->head].prev = slot;
	w->head = slot;
	w->count++;
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
	*r = (struct running){calloc(capacity, sizeof(u32)), 0, capacity};
	return r->slots ? ERR_OK : ERR_NO_MEMORY;
}

void running_fini(struct running *r)
{
	free(r->slots);
	*r = (struct running){0};
}

void running_push(struct running *r, u32 slot)
{
	ASSERT(r->count < r->capacity);
	r->slots[r->count++] = slot;
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
