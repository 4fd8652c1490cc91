/* Tool calls in the text of an answer. Models write them as their chat template writes those of earlier
 * turns: JSON between marks, or tags. The reader takes the text in pieces of any size and parts it into content and
 * calls; the pieces of a call's arguments are told as they come. Whole replies and streams use the same
 * reader, so both say the same. */
#ifndef TERCET_PROC_GATEWAY_TOOL_CALLS_H
#define TERCET_PROC_GATEWAY_TOOL_CALLS_H

#include "common/buf.h"
#include "common/json.h"
#include "common/types.h"
#include "text/text.h"

enum tool_format {
	TOOL_FORMAT_NONE,
	TOOL_FORMAT_HERMES,  /* <tool_call>{"name": ..., "arguments": {...}}</tool_call>; Hermes, Qwen */
	TOOL_FORMAT_LLAMA3,  /* the whole answer is {"name": ..., "parameters": {...}}; ...; Llama 3.1 and
				later */
	TOOL_FORMAT_QWEN3_CODER, /* <tool_call><function=...><parameter=...>text</parameter>...</function></tool_call>; Qwen 3 Coder, 3.5 and
				    later. What HERMES is, it reads, too */
	TOOL_FORMAT_MISTRAL, /* [TOOL_CALLS][{"name": ..., "arguments": {...}}], or [TOOL_CALLS]name{...} */
	TOOL_FORMAT_MISTRAL_ARGS, /* [TOOL_CALLS]name[ARGS]{...}, as newer ones write it; read alike */
};

/* Whether a name without quotes, as TOOL_FORMAT_MISTRAL_ARGS has them, may have this character. */
bool tool_name_has(char c);

static inline bool tool_format_is_mistral(enum tool_format format)
{
	return format == TOOL_FORMAT_MISTRAL || format == TOOL_FORMAT_MISTRAL_ARGS;
}

/* The form in which a template writes the calls of an assistant's earlier turn, found by letting it write
 * one; TOOL_FORMAT_NONE when it writes none or one that is not known. `t` may be NULL. Takes milliseconds. */
enum tool_format tool_format_of_template(const struct chat_template *t);
/* "hermes", ...; "none". */
const char *tool_format_name(enum tool_format format);
/* Whether the marks of a form are special tokens, which a text without special tokens would not show. */
bool tool_format_needs_special(enum tool_format format);

struct tool_call {
	char id[32];
	struct buf name;
	struct buf arguments; /* JSON as the model wrote it; whole unless the answer was cut off */
	size_t told_bytes;    /* of the arguments, by tool_calls_write_delta */
	bool told;	      /* id and name, too */
};

enum tool_state {
	TOOL_OUTSIDE,	/* content, in which a mark may begin */
	TOOL_BEFORE,	/* behind a mark: a call has to begin */
	TOOL_NAME,	/* a name without quotes, up to its arguments */
	TOOL_OBJECT,	/* inside of a call's JSON */
	TOOL_ARGUMENTS, /* inside of arguments that stand alone behind a name */
	TOOL_AFTER,	/* a call has ended: another one, the end mark, or content */
	TOOL_TEXT,	/* no call comes any more */
	/* Of calls in tags: the function's name; between its arguments; an argument's name; its text */
	TOOL_FUNCTION,
	TOOL_BETWEEN,
	TOOL_PARAMETER,
	TOOL_VALUE,
};

/* Reading an object of JSON without a tree, as it comes: where in its first level the text is. Positions are
 * those of the text that is held. */
struct tool_scan {
	u32 depth;
	bool in_string, escaped;
	enum { SCAN_KEY, SCAN_COLON, SCAN_VALUE, SCAN_COMMA } expects;
	enum { MEMBER_OTHER, MEMBER_NAME, MEMBER_ARGUMENTS } member;
	bool in_value;			       /* a value of the first level has begun and not ended */
	size_t token_begin;		       /* of the key or value */
	size_t arguments_begin, arguments_end; /* of their value; end 0: it has not ended */
};

struct tool_calls {
	enum tool_format format;
	json_val tools; /* the request's; borrowed. JSON without a mark is a call only with one of their names
			 */
	bool one;	/* calls behind the first are dropped */
	u64 id_seed;	/* ids of calls are made of it */
	enum tool_state state;
	struct buf held;   /* text that is not decided yet */
	size_t at;	   /* how much of it has been looked at */
	size_t mark_bytes; /* of the mark at its beginning, with white space in front */
	bool in_list;	   /* the calls stand in an array */
	bool drop_space;   /* white space that comes next stands between calls */
	struct tool_scan scan;
	struct buf name; /* of the call that is being read */
	json_val properties; /* of its tool's parameters, when it is in tags */
	u32 parameters;	     /* that came */
	bool as_text, fresh; /* the one that comes is a string; nothing of it has come */
	bool open;	 /* that call is the last of `calls`, or is dropped */
	bool dropped;
	bool cut;	     /* the answer was over amid the last call */
	struct tool_call *calls;
	u32 count, room;
	bool failed; /* memory ran out */
};

/* Appends what is content to `content`. `t`: zeroed, but for format, tools, one and id_seed, which the caller
 * sets. */
void tool_calls_feed(struct tool_calls *t, const char *text, size_t bytes, struct buf *content);
/* The answer is over: what was held back becomes content, or stays in the call that was cut off. */
void tool_calls_end(struct tool_calls *t, struct buf *content);
void tool_calls_fini(struct tool_calls *t);
/* Whether memory sufficed so far. */
bool tool_calls_ok(const struct tool_calls *t);

/* Whether a delta would tell anything new. */
bool tool_calls_due(const struct tool_calls *t);
/* Appends the JSON array of a message's "tool_calls". */
void tool_calls_write(const struct tool_calls *t, struct buf *out);
/* Appends that of a chunk: what has not been told yet. */
void tool_calls_write_delta(struct tool_calls *t, struct buf *out);

#endif
