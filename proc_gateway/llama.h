/* llama-server's own API (/completion, /infill, /props and others), on top of completions: its bodies are read into the
 * request of a completion, and what comes back is written as llama-server writes it, whole or as events. Which field
 * becomes which is in docs/LLAMA_SERVER.md. */
#ifndef TERCET_PROC_GATEWAY_LLAMA_H
#define TERCET_PROC_GATEWAY_LLAMA_H

#include "common/json.h"
#include "proc_gateway/requests.h"

struct gateway;

/* Whether the request's replies are those of llama-server's /completion and /infill. */
static inline bool llama_is_form_of(const struct openai_request *r)
{
	return r->asked == OPENAI_LLAMA_COMPLETION || r->asked == OPENAI_LLAMA_INFILL;
}

/* Bodies of /completion and /infill, by `asked`. Like openai_request_read; `r->response` is the body as it came. 501: the
 * tokenizer lacks the tokens that /infill needs. */
bool llama_read(struct openai_request *r, const struct openai_model *m, enum openai_endpoint asked, const char *body,
		size_t bytes, u64 tenant, struct api_error *e);
/* The same of /embedding. */
bool llama_embedding_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes,
			  u64 tenant, struct api_error *e);

/* ---- parts of the reading ---- */

/* Writes the sampling parameters as members of a completion's body, those that are not said with their defaults, and
 * refuses by name what is on and not here. 400. */
bool llama_sampling_write(struct json_writer *w, json_val root, const struct openai_model *m, struct api_error *e);
/* What /props tells of these defaults: the model's own where its generation_config.json has any, else llama-server's. */
void llama_defaults(const struct openai_model *m, struct generation_config *out);
/* A number of `root`, or `fallback` where there is none. 400. */
bool llama_number(json_val root, const char *name, f64 fallback, f64 *out, struct api_error *e);
/* An integer of `root` that a number may say (-1.0), or `fallback` where there is none. 400. */
bool llama_integer(json_val root, const char *name, i64 fallback, i64 *out, struct api_error *e);
/* Writes 'logit_bias' in any of its forms as a completion's. 400, 503. */
bool llama_bias_write(struct json_writer *w, json_val v, const struct openai_model *m, struct api_error *e);
/* Appends the ids of a text, or of a list of texts and ids; `first_flags` of tokenizer_encode are for a text in front,
 * `flags` for all. `name` is for errors. 400, 503. */
bool llama_mixed_read(struct u32_vec *ids, const struct openai_model *m, const char *name, json_val v, u32 first_flags,
		      u32 flags, struct api_error *e);
/* Appends the ids of the prompt that an /infill's body asks for. 400, 501, 503. */
bool llama_infill_prompt(struct u32_vec *ids, json_val root, const struct openai_model *m, i64 wanted, struct api_error *e);
/* Those tokens behind which an /infill ends as at an end of sequence; at most 8. Their number. */
u32 llama_infill_stops(const struct openai_model *m, u32 ids[8]);

/* ---- replies ---- */

/* Takes notice of `tokens` more tokens and of the choice's text from `told` on, at the time `now_ns`. True: the answer is
 * to end here ('n_indent', 't_max_predict_ms'); what of the text is too much is cut off. */
bool llama_follow(struct choice *c, size_t told, u32 tokens, u64 now_ns);
/* The whole reply of a group that is done: an object, of several answers a list. */
void llama_reply_write(struct group *g, struct buf *out);
/* The data of one event; what was told is cleared. */
void llama_chunk_write(struct choice *c, struct buf *out);
/* A token with its text, or its bytes where these are no text: of /tokenize with 'with_pieces'. */
void llama_piece_write(const struct openai_model *m, u32 id, struct json_writer *w);
/* The reply of /props. */
void llama_props_write(const struct gateway *g, struct buf *out);

/* What 'generation_settings' are made of. */
struct llama_settings {
	struct tercet_params params;
	i64 n_predict;
	bool stream, timings_per_token, any_seed; /* any_seed: one is drawn for each request */
	i64 lora; /* the adapter; -1: none */
	u32 max_model_len, stop_count, bias_count;
	const char *const *stops;
	const u32 *bias_ids;
	const float *bias_values;
	const char *grammar; /* in GBNF; "" none */
	size_t grammar_bytes;
};
void llama_settings_write(const struct llama_settings *s, struct json_writer *w);

#endif
