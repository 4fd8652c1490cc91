/* Every field of every request, once: name, kind, which endpoints read it, default and range. The struct, the
 * type and range checks and the tests expand from this table. Fields that are in none of the tables here are ignored, as
 * other servers do. */
#ifndef TERCET_PROC_GATEWAY_OPENAI_FIELDS_H
#define TERCET_PROC_GATEWAY_OPENAI_FIELDS_H

#include "common/json.h"
#include "common/types.h"
#include "proc_gateway/api_error.h"

enum openai_endpoint {
	OPENAI_COMPLETIONS = 1 << 0,
	OPENAI_CHAT = 1 << 1,
	OPENAI_TOKENIZE = 1 << 2,
	OPENAI_DETOKENIZE = 1 << 3,
	OPENAI_RESPONSES = 1 << 4, /* read as a chat's */
	OPENAI_MESSAGES = 1 << 5, /* the same */
	OPENAI_COUNT_TOKENS = 1 << 6, /* read as one of OPENAI_TOKENIZE */
	OPENAI_EMBEDDINGS = 1 << 7,
	/* llama-server's own (llama.h): */
	OPENAI_LLAMA_COMPLETION = 1 << 8, /* read as one of OPENAI_COMPLETIONS */
	OPENAI_LLAMA_INFILL = 1 << 9,	  /* the same */
	OPENAI_LLAMA_TEMPLATE = 1 << 10,  /* read as one of OPENAI_TOKENIZE */
	OPENAI_LLAMA_EMBEDDING = 1 << 11, /* read as one of OPENAI_EMBEDDINGS */

	/* Sets of them, for the table. */
	OPENAI_GENERATE = OPENAI_COMPLETIONS | OPENAI_CHAT,
	OPENAI_RUN = OPENAI_GENERATE | OPENAI_EMBEDDINGS,
	OPENAI_ENCODE = OPENAI_RUN | OPENAI_TOKENIZE,
	OPENAI_TEMPLATE = OPENAI_CHAT | OPENAI_TOKENIZE,
	OPENAI_ALL = OPENAI_ENCODE | OPENAI_DETOKENIZE,
};

/* Types that a V field may have. */
enum json_type_bit {
	TYPE_BOOL = 1 << JSON_BOOL,
	TYPE_STRING = 1 << JSON_STRING,
	TYPE_ARRAY = 1 << JSON_ARRAY,
	TYPE_OBJECT = 1 << JSON_OBJECT,
};

/* B(name, endpoints, default)              bool name
 * I(name, endpoints, default, min, max)    i64 name
 * F(name, endpoints, default, min, max)    f64 name
 * S(name, endpoints)                       const char *name, NULL when absent; holds no NUL
 * V(name, endpoints, types)                json_val name, looked into by its reader
 * Each also gives bool has_NAME. null counts as absent. */
#define OPENAI_FIELDS(B, I, F, S, V)                                              \
	S(model, OPENAI_ALL)                                                      \
	V(prompt, OPENAI_COMPLETIONS | OPENAI_TOKENIZE, TYPE_STRING | TYPE_ARRAY) \
	V(input, OPENAI_EMBEDDINGS, TYPE_STRING | TYPE_ARRAY)                     \
	S(encoding_format, OPENAI_EMBEDDINGS)                                     \
	I(dimensions, OPENAI_EMBEDDINGS, 0, 1, 65536)                             \
	B(normalize, OPENAI_EMBEDDINGS, true)                                     \
	V(messages, OPENAI_TEMPLATE, TYPE_ARRAY)                                  \
	V(tokens, OPENAI_DETOKENIZE, TYPE_ARRAY)                                  \
	V(content, OPENAI_TOKENIZE, TYPE_STRING | TYPE_ARRAY) /* llama-server's prompt */ \
	B(add_special, OPENAI_TOKENIZE, false)   /* of that */                    \
	B(parse_special, OPENAI_TOKENIZE, true)  /* the same */                   \
	B(with_pieces, OPENAI_TOKENIZE, false)                                    \
	F(temperature, OPENAI_GENERATE, 1.0, 0.0, 100.0)                          \
	F(top_p, OPENAI_GENERATE, 1.0, 1e-6, 1.0)                                 \
	I(top_k, OPENAI_GENERATE, 0, -1, 0x7fffffff)                              \
	F(min_p, OPENAI_GENERATE, 0.0, 0.0, 1.0)                                  \
	F(repetition_penalty, OPENAI_GENERATE, 1.0, 0.01, 100.0)                  \
	F(presence_penalty, OPENAI_GENERATE, 0.0, -2.0, 2.0)                      \
	F(frequency_penalty, OPENAI_GENERATE, 0.0, -2.0, 2.0)                     \
	V(logit_bias, OPENAI_GENERATE, TYPE_OBJECT | TYPE_ARRAY) /* empty */      \
	V(stop, OPENAI_GENERATE, TYPE_STRING | TYPE_ARRAY)                        \
	V(stop_token_ids, OPENAI_GENERATE, TYPE_ARRAY)                            \
	B(include_stop_str_in_output, OPENAI_GENERATE, false)                     \
	B(ignore_eos, OPENAI_GENERATE, false)                                     \
	I(max_tokens, OPENAI_GENERATE, 16, -1, 0x7fffffff)                        \
	I(max_completion_tokens, OPENAI_CHAT, 0, -1, 0x7fffffff)                  \
	I(min_tokens, OPENAI_GENERATE, 0, 0, 0x7fffffff)                          \
	I(n, OPENAI_GENERATE, 1, 1, 128)                                          \
	I(best_of, OPENAI_GENERATE, 1, 1, 128)                                    \
	B(stream, OPENAI_GENERATE, false)                                         \
	V(stream_options, OPENAI_GENERATE, TYPE_OBJECT)                           \
	B(echo, OPENAI_GENERATE, false)                                           \
	I(top_logprobs, OPENAI_CHAT, 0, 0, 20)                                    \
	I(prompt_logprobs, OPENAI_GENERATE, 0, 0, 20)                             \
	B(skip_special_tokens, OPENAI_GENERATE | OPENAI_DETOKENIZE, true)         \
	B(spaces_between_special_tokens, OPENAI_GENERATE, true)                   \
	B(return_token_ids, OPENAI_GENERATE, false)                               \
	B(return_tokens_as_token_ids, OPENAI_GENERATE, false)                     \
	B(return_token_strs, OPENAI_TOKENIZE, false)                              \
	B(add_special_tokens, OPENAI_ENCODE, true)                                \
	I(truncate_prompt_tokens, OPENAI_RUN, 0, -1, 0x7fffffff)                  \
	S(truncation_side, OPENAI_RUN)                                            \
	I(priority, OPENAI_RUN, 0, -0x7fffffff - 1ll, 0x7fffffff)                 \
	S(cache_salt, OPENAI_RUN)                                                 \
	S(request_id, OPENAI_RUN)                                                 \
	S(session_id, OPENAI_GENERATE)                                            \
	B(session_start, OPENAI_GENERATE, false)                                  \
	B(session_end, OPENAI_GENERATE, false)                                    \
	I(session_step, OPENAI_GENERATE, 0, 0, 0x7fffffff)                        \
	S(user, OPENAI_RUN)                                                       \
	V(tools, OPENAI_TEMPLATE, TYPE_ARRAY)                                     \
	V(tool_choice, OPENAI_CHAT, TYPE_STRING | TYPE_OBJECT)                    \
	B(parallel_tool_calls, OPENAI_CHAT, true)                                 \
	V(documents, OPENAI_CHAT, TYPE_ARRAY)                                     \
	S(chat_template, OPENAI_TEMPLATE)                                         \
	V(chat_template_kwargs, OPENAI_TEMPLATE, TYPE_OBJECT)                     \
	S(reasoning_effort, OPENAI_CHAT)                                          \
	B(include_reasoning, OPENAI_CHAT, true)                                   \
	S(reasoning_format, OPENAI_CHAT)                                          \
	B(add_generation_prompt, OPENAI_TEMPLATE, true)                           \
	B(continue_final_message, OPENAI_TEMPLATE, false)                         \
	V(response_format, OPENAI_GENERATE, TYPE_OBJECT)                          \
	V(structured_outputs, OPENAI_GENERATE, TYPE_OBJECT)                       \
	V(guided_json, OPENAI_GENERATE, TYPE_STRING | TYPE_OBJECT)                \
	S(guided_regex, OPENAI_GENERATE)                                          \
	V(guided_choice, OPENAI_GENERATE, TYPE_ARRAY)                             \
	S(guided_grammar, OPENAI_GENERATE)                                        \
	S(grammar, OPENAI_GENERATE)                                               \
	V(json_schema, OPENAI_GENERATE, TYPE_OBJECT)                              \
	V(modalities, OPENAI_CHAT, TYPE_ARRAY)                                    \
	S(suffix, OPENAI_COMPLETIONS)                                             \
	B(use_beam_search, OPENAI_GENERATE, false)                                \
	F(length_penalty, OPENAI_GENERATE, 1.0, -10.0, 10.0)                      \
	B(early_stopping, OPENAI_GENERATE, false)

/* Fields that would change the output and that this engine does not have: refused unless absent, null, false,
 * or an empty string, list or object. */
#define OPENAI_REFUSED(R)                                                                                \
	R(guided_whitespace_pattern)                                                                     \
	R(structural_tag)                                                                                \
	R(allowed_token_ids)                                                                             \
	R(bad_words) R(logits_processors) R(logprob_token_ids) R(prompt_embeds) R(thinking_token_budget) \
		R(repetition_detection) R(watermarking) R(functions) R(function_call) R(audio)           \
			R(kv_transfer_params) R(web_search_options)

/* R(name, neutral, instead): what other servers call a field of this one (`instead`), and their samplers that are not
 * here (NULL). Refused unless absent, neutral as above or this number (less than 0 is off, too), or the field that says the same is
 * there as well. */
#define OPENAI_FOREIGN(R)                           \
	R(n_predict, -1, "max_tokens")              \
	R(max_new_tokens, 0, "max_tokens")          \
	R(num_predict, -1, "max_tokens")            \
	R(min_new_tokens, 0, "min_tokens")          \
	R(repeat_penalty, 1, "repetition_penalty")  \
	R(stop_sequences, 0, "stop")                \
	R(typical_p, 1, NULL)                       \
	R(tfs_z, 1, NULL)                           \
	R(top_a, 0, NULL)                           \
	R(top_n_sigma, 0, NULL)                     \
	R(mirostat, 0, NULL)                        \
	R(mirostat_mode, 0, NULL)                   \
	R(dynatemp_range, 0, NULL)                  \
	R(smoothing_factor, 0, NULL)                \
	R(xtc_probability, 0, NULL)                 \
	R(dry_multiplier, 0, NULL)                  \
	R(epsilon_cutoff, 0, NULL)                  \
	R(eta_cutoff, 0, NULL)                      \
	R(penalty_alpha, 0, NULL)                   \
	R(no_repeat_ngram_size, 0, NULL)

struct openai_fields {
#define FIELD_B(name, where, def) \
	bool name;                \
	bool has_##name;
#define FIELD_I(name, where, def, min, max) \
	i64 name;                           \
	bool has_##name;
#define FIELD_F(name, where, def, min, max) \
	f64 name;                           \
	bool has_##name;
#define FIELD_S(name, where) \
	const char *name;    \
	bool has_##name;
#define FIELD_V(name, where, types) \
	json_val name;              \
	bool has_##name;
	OPENAI_FIELDS(FIELD_B, FIELD_I, FIELD_F, FIELD_S, FIELD_V)
#undef FIELD_B
#undef FIELD_I
#undef FIELD_F
#undef FIELD_S
#undef FIELD_V
	/* What the table cannot say: the whole range of 64-bit seeds, and logprobs, which is a number in
	 * completions
	 * (-1: none) and a switch in chats. */
	u64 seed;
	bool has_seed;
	i64 logprobs;
};

/* Reads the fields of `endpoint` from `root`; everything borrowed from its document. False with 400 in `e`,
 * which names the field, its value, and what would be right. */
bool openai_fields_read(struct openai_fields *out, enum openai_endpoint endpoint, json_val root,
			u32 logprobs_max, struct api_error *e);

#endif
