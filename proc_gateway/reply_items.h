/* Replies of items, as /v1/responses and /v1/messages have them: pieces of what the model has thought and said, and its calls,
 * in the order in which they came. How an item is written is its API's; which there are, and when one begins and ends, is
 * the same. */
#ifndef TERCET_PROC_GATEWAY_REPLY_ITEMS_H
#define TERCET_PROC_GATEWAY_REPLY_ITEMS_H

#include "proc_gateway/requests.h"

enum { ITEM_THOUGHT, ITEM_TEXT, ITEM_CALL }; /* ITEM_CALL + i: call i */

/* How an API writes items. Each of the events is sent at once (reply_items_send); false: nothing more can be written. */
struct reply_form {
	const char *id_prefix;
	bool never_empty;				/* an answer of nothing has one text */
	void (*write)(struct group *g, struct buf *out); /* the whole reply, whose items are there */
	bool (*begin)(struct choice *c);		/* events in front of the first item */
	bool (*open)(struct choice *c);			/* the newest item has begun; nothing of its text is told */
	bool (*delta)(struct choice *c);		/* there is more of its text (reply_items_put_news) */
	bool (*close)(struct choice *c);		/* it is over */
	bool (*end)(struct choice *c);			/* events behind the last item */
	void (*fail)(struct group *g, const struct api_error *e);
};
/* The one that the request asked for; NULL: its reply has no items. */
const struct reply_form *reply_form_of(const struct openai_request *r);

/* Appends the whole reply of a group that is done. */
void reply_items_write(struct group *g, struct buf *out);
/* Sends the events that are due: of the beginning, of what is new, and of the end once the choice is done. The choice keeps
 * its text. False: the client is gone, or memory ran out, nothing more can be written. */
bool reply_items_stream(struct choice *c);
/* Sends the event of an error; what was begun stays as it is. */
void reply_items_stream_error(struct group *g, const struct api_error *e);
void reply_items_fini(struct reply_items *items);

/* ---- for the forms ---- */

/* The text that an item is a piece of. Borrowed. */
const struct buf *reply_items_text(const struct choice *c, u32 kind);
/* Where the item's piece ends; so far, while it is not over. */
size_t reply_items_end(const struct choice *c, const struct reply_item *item);
/* NULL: there is none yet. */
struct reply_item *reply_items_newest(struct group *g);
/* Appends what of the newest item's text is not told yet, as a string of JSON: now it is. */
void reply_items_put_news(struct choice *c, struct buf *out);
/* Appends a piece of a text as a string of JSON. */
void reply_items_put_bytes(const struct buf *text, size_t first, size_t end, struct buf *out);
/* Sends the event in the scratch of the group's requests, without the brace that ends it. */
bool reply_items_send(struct group *g);

#endif
