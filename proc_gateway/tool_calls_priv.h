/* What the files of the reader of tool calls share. */
#ifndef TERCET_PROC_GATEWAY_TOOL_CALLS_PRIV_H
#define TERCET_PROC_GATEWAY_TOOL_CALLS_PRIV_H

#include "proc_gateway/tool_calls.h"

static const char tool_function_mark[] = "<function=";

static inline bool tool_is_space(char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* What is held and not looked at. */
static inline size_t tool_left(const struct tool_calls *t)
{
	return t->held.bytes - t->at;
}

static inline void tool_skip_space(struct tool_calls *t)
{
	while (t->at < t->held.bytes && tool_is_space(t->held.data[t->at]))
		t->at++;
}

enum tool_match { MATCH_NO, MATCH_YES, MATCH_PARTLY /* as far as there is text */ };
enum tool_match tool_match_here(const struct tool_calls *t, const char *mark);
/* What has been looked at leaves. */
void tool_consume_seen(struct tool_calls *t);
/* What was taken for a call is none. */
void tool_give_up(struct tool_calls *t, struct buf *content);
/* The function of the request's tools with that name; a value that is not present: there is none. */
json_val tool_function(const struct tool_calls *t, const struct buf *name);
/* The call whose name is in t->name becomes one of the answer's. */
void tool_open_call(struct tool_calls *t);
void tool_add_arguments(struct tool_calls *t, const char *text, size_t bytes);

/* tool_calls_tags.c: calls in tags, in the states from TOOL_FUNCTION on. False: nothing more can be said before more text comes. */
bool tool_tags_advance(struct tool_calls *t, struct buf *content);
/* The answer is over within such a call. */
void tool_tags_end(struct tool_calls *t);

#endif
