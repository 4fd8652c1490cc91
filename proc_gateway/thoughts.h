/* Thoughts in the text of an answer. Models that reason write what they think between marks in front of what they say;
 * clients want the two apart. The reader takes the text in pieces of any size; whole replies and streams use the same
 * one, so both say the same. */
#ifndef TERCET_PROC_GATEWAY_THOUGHTS_H
#define TERCET_PROC_GATEWAY_THOUGHTS_H

#include "common/buf.h"
#include "common/types.h"
#include "text/text.h"

enum thought_format {
	THOUGHT_FORMAT_NONE,
	THOUGHT_FORMAT_THINK,	/* <think>...</think>; DeepSeek R1, Qwen 3, QwQ, SmolLM 3, GLM, OLMo 3, EXAONE 4 */
	THOUGHT_FORMAT_MISTRAL, /* [THINK]...[/THINK]; Magistral */
	THOUGHT_FORMAT_SEED,	/* <seed:think>...</seed:think>; Seed-OSS */
	THOUGHT_FORMAT_HARMONY, /* <|channel|>analysis<|message|>...<|end|>; gpt-oss (thoughts_harmony.c) */
};

/* Between which marks a model thinks: those that its template writes around an earlier turn's thoughts or at the end of
 * a prompt, else those that its vocabulary has a token for. `template` may be NULL. Takes milliseconds. */
enum thought_format thought_format_of_model(const struct chat_template *template, const struct tokenizer *t);
/* "think", ...; "none". */
const char *thought_format_name(enum thought_format format);
/* The mark behind a thought; "" of THOUGHT_FORMAT_NONE, and of harmony, where what is said has a header of its own. */
const char *thought_format_end(enum thought_format format);
/* Whether the marks are special tokens, which a text without special tokens would not show. */
bool thought_format_needs_special(enum thought_format format, const struct tokenizer *t);
/* Whether a prompt ends, white space aside, with the mark in front of a thought: then the answer begins inside of it. */
bool thought_format_opens(enum thought_format format, const char *prompt, size_t bytes);
/* Whether a text, that of a message which is to be continued, ends inside of a thought. */
bool thought_format_unfinished(enum thought_format format, const char *text, size_t bytes);

struct thoughts {
	enum thought_format format;
	enum {
		THOUGHTS_BEFORE, /* nothing but white space and what may become the mark */
		THOUGHTS_BEGIN,	 /* behind the mark: white space that belongs to it */
		THOUGHTS_INSIDE,
		THOUGHTS_BEHIND, /* behind the end mark: white space that belongs to it */
		THOUGHTS_CONTENT,
	} state;
	struct buf held; /* not decided yet */
	size_t told;	 /* so many bytes at its beginning stand in front of the answer, and are not told */
	bool calls;	 /* of harmony: calls are handed on as TOOL_FORMAT_HERMES has them, not as text */
	bool call;	 /* one is being read */
};

/* `t`: zeroed, but for format and calls, and state THOUGHTS_BEGIN where the prompt has opened a thought. Appends what is thought
 * to `thought` and what is said to `content`. White space around the marks is neither's. Memory that ran out shows as
 * `failed` of a buffer. */
void thoughts_feed(struct thoughts *t, const char *text, size_t bytes, struct buf *thought, struct buf *content);
/* The answer goes on behind `text`, of which nothing is told: only its marks count, and the beginning of one at its end. Before
 * anything is fed; not of harmony. */
void thoughts_continue(struct thoughts *t, const char *text, size_t bytes);
/* The answer is over: what was held back belongs where it stands. */
void thoughts_end(struct thoughts *t, struct buf *thought, struct buf *content);
void thoughts_fini(struct thoughts *t);
/* Whether what came last belongs to a thought or its marks. */
bool thoughts_in_thought(const struct thoughts *t);
/* What is held, of THOUGHT_FORMAT_HARMONY, as far as it is decided. States: BEFORE a message, in its header (BEGIN), INSIDE
 * of a thought, BEHIND the header of what is said or called; CONTENT is text without messages. */
void thoughts_harmony_feed(struct thoughts *t, struct buf *thought, struct buf *content);

#endif
