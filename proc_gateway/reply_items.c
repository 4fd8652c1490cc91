/* Owns which items a reply has and when one of a stream begins and ends; runs in the gateway. Never knows how an API
 * writes them. */
#include "proc_gateway/reply_items.h"

#include <stdlib.h>

#include "proc_gateway/messages.h"
#include "proc_gateway/responses.h"
#include "proc_gateway/sse.h"

const struct reply_form *reply_form_of(const struct openai_request *r)
{
	return r->asked == OPENAI_MESSAGES ? &messages_form : r->asked == OPENAI_RESPONSES ? &responses_form : NULL;
}

static const struct reply_form *form_of(const struct choice *c)
{
	return reply_form_of(&c->group->request);
}

const struct buf *reply_items_text(const struct choice *c, u32 kind)
{
	return kind == ITEM_THOUGHT ? &c->thought : kind == ITEM_TEXT ? &c->text : &c->tools.calls[kind - ITEM_CALL].arguments;
}

size_t reply_items_end(const struct choice *c, const struct reply_item *item)
{
	return item->over ? item->end : reply_items_text(c, item->kind)->bytes;
}

struct reply_item *reply_items_newest(struct group *g)
{
	return g->items.count ? &g->items.list[g->items.count - 1] : NULL;
}

void reply_items_put_bytes(const struct buf *text, size_t first, size_t end, struct buf *out)
{
	json_escape(out, text->data ? text->data + first : "", end - first);
}

void reply_items_put_news(struct choice *c, struct buf *out)
{
	const struct reply_item *item = reply_items_newest(c->group);
	size_t end = reply_items_end(c, item);
	reply_items_put_bytes(reply_items_text(c, item->kind), c->group->items.told, end, out);
	c->group->items.told = end;
}

/* How much of a text stands in items that are over. */
static size_t told_of(const struct group *g, u32 kind)
{
	size_t told = 0;
	for (u32 i = 0; i < g->items.count; i++)
		told = g->items.list[i].kind == kind ? g->items.list[i].end : told;
	return told;
}

/* One more item, of the text that comes; NULL without memory. */
static struct reply_item *add_item(struct choice *c, u32 kind)
{
	struct reply_items *s = &c->group->items;
	if (s->count == s->room) {
		const u32 room = s->room ? 2 * s->room : 4;
		struct reply_item *list = realloc(s->list, room * sizeof(*list));
		if (!list)
			return NULL;
		s->list = list;
		s->room = room;
	}
	s->list[s->count] = (struct reply_item){.kind = kind, .number = s->count, .begin = told_of(c->group, kind)};
	return &s->list[s->count++];
}

void reply_items_write(struct group *g, struct buf *out)
{
	struct choice *c = &g->choices[0];
	bool ok = c->thought.bytes == 0 || add_item(c, ITEM_THOUGHT);
	if (c->text.bytes > 0 || (form_of(c)->never_empty && c->tools.count == 0 && c->thought.bytes == 0))
		ok &= add_item(c, ITEM_TEXT) != NULL;
	for (u32 i = 0; i < c->tools.count; i++)
		ok &= add_item(c, ITEM_CALL + i) != NULL;
	form_of(c)->write(g, out);
	out->failed |= !ok;
}

/* ---------------------------------------------------------------- events */

bool reply_items_send(struct group *g)
{
	buf_append_char(&g->requests->out, '}');
	if (sse_event_send(g->http, &g->requests->out) == ERR_OK)
		return true;
	g->gone = true;
	return false;
}

static bool open_item(struct choice *c, u32 kind)
{
	const struct reply_item *item = add_item(c, kind);
	if (!item) {
		c->group->requests->out.failed = true;
		return reply_items_send(c->group);
	}
	c->group->items.told = item->begin;
	return form_of(c)->open(c);
}

static bool close_item(struct choice *c)
{
	struct reply_item *item = reply_items_newest(c->group);
	if (!item || item->over)
		return true;
	item->end = reply_items_end(c, item);
	item->over = true;
	return form_of(c)->close(c);
}

/* What is new of a text goes to the newest item, when it is of that kind, else to a new one, behind the one before. */
static bool send_text(struct choice *c, u32 kind)
{
	struct group *g = c->group;
	const struct reply_item *item = reply_items_newest(g);
	const bool open = item && !item->over && item->kind == kind;
	const size_t bytes = reply_items_text(c, kind)->bytes;
	if (!open && bytes == told_of(g, kind) && (kind < ITEM_CALL || told_of(g, kind) > 0))
		return true;
	if (!open && !(close_item(c) && open_item(c, kind)))
		return false;
	return g->items.told == bytes || form_of(c)->delta(c);
}

/* Text that comes in one piece with calls was in front of them, unless there have been calls. */
static bool send_news(struct choice *c)
{
	struct reply_items *s = &c->group->items;
	const bool behind = s->calls > 0;
	if (!send_text(c, ITEM_THOUGHT) || (!behind && !send_text(c, ITEM_TEXT)))
		return false;
	for (u32 i = s->calls ? s->calls - 1 : 0; i < c->tools.count; i++) {
		const struct reply_item *item = reply_items_newest(c->group);
		bool same = item && item->kind == ITEM_CALL + i;
		if (i + 1 == s->calls && !(same && !item->over)) /* it was the last one, and is over */
			continue;
		if (!send_text(c, ITEM_CALL + i))
			return false;
		s->calls = i + 1;
	}
	return !behind || send_text(c, ITEM_TEXT);
}

bool reply_items_stream(struct choice *c)
{
	struct reply_items *s = &c->group->items;
	if (!s->begun) {
		s->begun = true;
		if (!form_of(c)->begin(c))
			return false;
	}
	if (!send_news(c))
		return false;
	if (!c->done)
		return true;
	if (s->count == 0 && form_of(c)->never_empty && !open_item(c, ITEM_TEXT))
		return false;
	return close_item(c) && form_of(c)->end(c);
}

void reply_items_stream_error(struct group *g, const struct api_error *e)
{
	reply_form_of(&g->request)->fail(g, e);
}

void reply_items_fini(struct reply_items *items)
{
	free(items->list);
	*items = (struct reply_items){0};
}
