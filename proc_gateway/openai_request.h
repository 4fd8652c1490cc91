/* From a request body to what the engine is asked: fields, rules between fields, prompts as token ids. */
#ifndef TERCET_PROC_GATEWAY_OPENAI_REQUEST_H
#define TERCET_PROC_GATEWAY_OPENAI_REQUEST_H

#include "client/tercet.h"
#include "common/buf.h"
#include "common/lora_modules.h"
#include "proc_gateway/generation_config.h"
#include "proc_gateway/openai_fields.h"
#include "proc_gateway/thoughts.h"
#include "proc_gateway/tool_calls.h"
#include "text/text.h"

enum {
	OPENAI_CHOICES_MAX = 1024, /* prompts times samples of one request */
	OPENAI_STOPS_MAX = 16,
	OPENAI_STOP_BYTES_MAX = 1024,
	OPENAI_STOP_IDS_MAX = 64,
	OPENAI_BIASES_MAX = 1024,
};

/* Those that need the tokenizer only, not the engine. */
static inline bool openai_is_tokens(enum openai_endpoint endpoint)
{
	return endpoint == OPENAI_TOKENIZE || endpoint == OPENAI_DETOKENIZE || endpoint == OPENAI_COUNT_TOKENS ||
	       endpoint == OPENAI_LLAMA_TEMPLATE;
}

/* What requests are read against. Owned by main; max_model_len and vocab_size come from the engine. */
struct openai_model {
	const struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	const struct chat_template *chat_template; /* NULL: the model has none */
	bool trust_chat_template;		   /* requests may bring their own */
	enum tool_format tool_format;		   /* in which it writes tool calls; NONE: they stay text */
	enum thought_format thought_format;	   /* between which marks it thinks; NONE: thoughts stay text */
	const char *const *names;		   /* the first one is shown in replies */
	u32 name_count;
	const struct lora_modules *loras; /* names of adapters; NULL: there are none */
	u32 max_model_len;
	u32 vocab_size;
	u32 embedding_width; /* numbers of an embedding; 0: the engine gives none */
	u32 token_bytes_max; /* bytes of the longest token (openai_token_bytes_max) */
	u32 logprobs_max;
	u64 seed; /* of requests without one; 0: drawn for each */
	struct generation_config defaults;
};

struct openai_prompt {
	u32 first, count; /* in openai_request.ids */
	const char *text; /* as given; NULL when it came as ids. Borrowed from the body's document */
	size_t text_bytes;
};

struct openai_request {
	enum openai_endpoint endpoint;
	struct openai_fields fields;
	struct json_doc *doc;	   /* the body */
	enum openai_endpoint asked; /* what the body came for, where that is read as another's; else 0 */
	struct json_doc *response; /* that body; else NULL */
	struct json_doc *messages; /* rewritten messages, when templates could not read them as given */
	struct json_doc *kwargs;   /* merged template variables */
	const char *model;	   /* the name to show */
	const char *lora;	   /* the same, of an adapter; else NULL */
	struct u32_vec ids;	   /* of all prompts */
	struct openai_prompt *prompts;
	u32 prompt_count;
	u32 n;		/* answers to each prompt */
	u32 samples;	/* generated for each, of which the n best are answers; with beam search n */
	u32 beam_width; /* 0: no beam search */
	struct tercet_params params; /* seed: of choice 0; choice i has seed + i */
	const char *stops[OPENAI_STOPS_MAX];
	u32 stop_count;
	u32 stop_ids[OPENAI_STOP_IDS_MAX];
	u32 stop_id_count;
	struct u32_vec bias_ids;
	float *bias_values;
	u64 cache_salt;
	u64 session_owner; /* whose sessions its session_id names */
	u32 session_join;  /* first ids of the prompt that the session may end with already */
	bool include_usage;
	bool usage_each;       /* continuous_usage_stats */
	bool cut_to_fit;       /* less tokens may be generated than were asked for, where an API has it so */
	u32 indent_min, predict_ms_max; /* of llama-server's bodies: what ends an answer (llama.h); 0: nothing */
	bool scoring;	       /* max_tokens 0, and embeddings: the one token that the engine has to make is not shown */
	enum tercet_grammar grammar_kind;
	u32 grammar_flags;
	bool grammar_is_tags; /* free text with tags in it */
	struct buf grammar; /* its source */
	struct buf rendered; /* of /apply-template: the prompt as text */
	enum tool_format tool_format; /* NONE: the answer's text is not looked through for tool calls */
	enum thought_format thought_format; /* NONE: thoughts stay in the answer's text */
	bool thought_open; /* the prompt ends inside of a thought */
	const char *chat_begun; /* text in front of a chat's answer that is echoed or continued; "" none. Borrowed */
	size_t chat_begun_bytes;
};

/* The bytes of the longest token of a vocabulary; 1 at least. */
u32 openai_token_bytes_max(const struct tokenizer *t);

/* `body` is copied; `tenant` separates prefix caches (0: shared). False: `e` says what is wrong; `r` is to be
 * freed in both cases. */
bool openai_request_read(struct openai_request *r, const struct openai_model *m,
			 enum openai_endpoint endpoint, const char *body, size_t bytes, u64 tenant,
			 struct api_error *e);
/* For APIs whose clients ask for what they would take at most: `wanted` > 0 tokens become max_tokens, which is all that there is room for; more is no
 * error, but cut_to_fit. False: min_tokens is more than that, and `e` says so. */
bool openai_request_fit(struct openai_request *r, i64 wanted, struct api_error *e);
void openai_request_fini(struct openai_request *r);

/* Bodies of /tokenize (ids of the prompt or chat) and /detokenize (ids of 'tokens'). As above. */
bool openai_tokenize_read(struct openai_request *r, const struct openai_model *m, const char *body,
			  size_t bytes, struct api_error *e);
/* A body of /apply-template: what the template makes of 'messages' becomes `rendered`. As above. */
bool openai_template_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes,
			  struct api_error *e);
bool openai_detokenize_read(struct openai_request *r, const struct openai_model *m, const char *body,
			    size_t bytes, struct api_error *e);
/* Reads a body of /v1/embeddings (openai_embeddings.c). As above. */
bool openai_embeddings_read(struct openai_request *r, const struct openai_model *m, const char *body, size_t bytes, u64 tenant,
			    struct api_error *e);
/* The one of these that fits the endpoint. */
bool openai_any_read(struct openai_request *r, const struct openai_model *m, enum openai_endpoint endpoint,
		     const char *body, size_t bytes, u64 tenant, struct api_error *e);

/* ---- parts (openai_prompt.c, openai_messages.c), also used by /tokenize ---- */

/* The body as a document whose fields are checked, in a request that is empty but for these. */
bool openai_body_read(struct openai_request *r, const struct openai_model *m, enum openai_endpoint endpoint, const char *body, size_t bytes,
		      struct api_error *e);
/* Reads whose prefix cache the request shares: the tenant's, within it that of 'cache_salt'. */
bool openai_salt_read(struct openai_request *r, u64 tenant, struct api_error *e);
/* Reads 'prompt', of embeddings 'input' (a string, ids, or a list of either), into prompts and ids. */
bool openai_prompts_read(struct openai_request *r, const struct openai_model *m, struct api_error *e);
/* Whether the template is to see the request's tools. */
bool openai_tools_shown(const struct openai_fields *f);
/* Reads whether and how thoughts are parted from a chat's answer (openai_thoughts.c). */
bool openai_thoughts_read(struct openai_request *r, const struct openai_model *m, struct api_error *e);
/* Sees whether the prompt, of which `prompt` is the end, leaves the answer inside of a thought. */
void openai_thoughts_begin(struct openai_request *r, const struct chat_request *chat, const char *prompt, size_t bytes);
/* With a grammar: of an answer that begins inside of a thought, the grammar becomes that of what follows the thought; any
 * other answer has no thoughts, but where text in front of tags is free. After the prompt and the grammar are known. 503 without memory, 400 where thought and
 * grammar together are too large. */
bool openai_thoughts_grammar(struct openai_request *r, struct api_error *e);
/* Reads n, samples and beam_width; refuses what has no part in them (openai_beams.c). */
bool openai_beams_read(struct openai_request *r, struct api_error *e);
/* Reads every field that says what the output may be into the one grammar, and compiles it to see what is wrong with it
 * (openai_grammar.c). After beam_width and tool_format are known. */
bool openai_grammar_read(struct openai_request *r, struct api_error *e);
/* What they make of the parameters. */
void openai_beams_apply(struct openai_request *r);
/* Whether the arguments of a call in a message are not deeper than templates can be shown them; true of what is no object. */
bool openai_arguments_fit(const char *arguments, size_t bytes);
/* Renders 'messages' by the chat template and encodes the result as the one prompt. */
bool openai_messages_read(struct openai_request *r, const struct openai_model *m, struct api_error *e);
/* Makes the ids that are there the one prompt. */
bool openai_prompt_from_ids(struct openai_request *r, const struct openai_model *m, struct api_error *e);
/* Encodes `text` as the one prompt (for /tokenize only into ids, whatever its length). */
bool openai_prompt_from_text(struct openai_request *r, const struct openai_model *m, const struct buf *text,
			     bool add_special, struct api_error *e);
/* Appends the ids of `text`. Refuses early what can never fit, unless `unlimited`. */
bool openai_encode(struct openai_request *r, const struct openai_model *m, const char *text, size_t bytes,
		   bool add_special, bool unlimited, struct api_error *e);
/* The same into `ids`, with flags as of tokenizer_encode and whatever the length. */
bool openai_encode_into(struct u32_vec *ids, const struct openai_model *m, const char *text, size_t bytes, u32 flags, struct api_error *e);
/* Reads token ids below the vocabulary's size from the array `v`, called `name` in errors. */
bool openai_ids_read(struct u32_vec *out, json_val v, u32 vocab_size, const char *name, struct api_error *e);
/* A prompt that leaves no room for a token: 400 with both lengths. */
bool openai_prompt_too_long(struct api_error *e, const struct openai_model *m, size_t tokens, bool at_least);

#endif
