/* Log-probabilities in the forms of the API, written token by token so that streams and whole replies
 * use the same code: completions (parallel arrays), chats (a list of objects), llama-server's (the same with ids), and prompt_logprobs (a list of
 * maps by id). */
#ifndef TERCET_PROC_GATEWAY_LOGPROBS_H
#define TERCET_PROC_GATEWAY_LOGPROBS_H

#include "client/tercet.h"
#include "common/buf.h"
#include "common/types.h"
#include "text/text.h"

enum logprobs_form { LOGPROBS_NONE, LOGPROBS_COMPLETIONS, LOGPROBS_CHAT, LOGPROBS_LLAMA };

/* What is known of one token: ids[0] is the token itself, the rest are the best in order (the token may be
 * among them). count 0: nothing is known (the first token of a prompt). */
struct token_logprobs {
	u32 token;
	u32 rank; /* of the token, from 1 */
	u32 count;
	const u32 *ids;
	const f32 *values;
};

/* Zero-initialised, then filled in by the owner; buffers belong to the writer. */
struct logprobs_writer {
	const struct tokenizer *tokenizer;
	enum logprobs_form form;
	u32 top;	   /* alternatives to list */
	bool skip_special; /* special tokens are not in the text: they do not move text_offset */
	bool as_ids;	   /* "token_id:N" instead of the token's text */
	u32 count;	   /* tokens since the last logprobs_take */
	u64 characters;	   /* begun in the text so far */
	u32 continuation;  /* bytes that the last character still lacks */
	struct buf tokens; /* of a chat: whole entries */
	struct buf values;
	struct buf top_values;
	struct buf offsets;
	struct buf scratch;
};

void logprobs_fini(struct logprobs_writer *w);
void logprobs_add(struct logprobs_writer *w, const struct token_logprobs *t);
/* The text gets longer without tokens being listed (text_offset goes on behind it). */
void logprobs_skip_text(struct logprobs_writer *w, const char *text, size_t bytes);
/* Appends the value of the field "logprobs" for what was added since the last call: an object, of llama-server's form a list, or null. */
void logprobs_take(struct logprobs_writer *w, struct buf *out);

/* Prompt log-probabilities as they come from the engine, kept until the reply needs them. Zero is empty. */
struct prompt_logprobs {
	struct u32_vec positions, counts, ranks, ids;
	struct buf values; /* f32 */
};
void prompt_logprobs_fini(struct prompt_logprobs *p);
/* Copies. False: out of memory. */
bool prompt_logprobs_add(struct prompt_logprobs *p, const struct tercet_logprobs *more);
/* Adds every token of the prompt to `w`, with what is known of it. */
void prompt_logprobs_echo(const struct prompt_logprobs *p, const u32 *prompt, u32 count,
			  struct logprobs_writer *w);
/* Appends the value of "prompt_logprobs": one map per token, null for the first. */
void prompt_logprobs_write(const struct prompt_logprobs *p, const u32 *prompt, u32 count, u32 top,
			   const struct tokenizer *t, struct buf *out);

#endif
