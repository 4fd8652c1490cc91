/* Judges SUBMIT messages: any client may send them, so nothing of one is believed. Runs inside the scheduling
 * core, changes nothing. Refuses what is wrong and what can never fit, each with the number that is wrong and
 * the one that would be right. */
#include <math.h>

#include "common/utf8.h"
#include "proc_scheduler/sched_priv.h"

#define BIAS_VALUE_MAX 100.0f

/* The pool may have become smaller since the context length was settled. */
static u32 context_now(const struct sched *s)
{
	u64 pool_tokens = (u64)s->kv.count * s->config.block_size;

	return s->context_max < pool_tokens ? s->context_max : (u32)pool_tokens;
}

u32 validate_output_max(const struct sched *s, const struct ipc_submit *m, u32 prompt)
{
	u32 room = context_now(s) - prompt;

	return m->max_tokens < room ? m->max_tokens : room;
}

/* A prompt that leaves no room for a token, in words. */
static enum err too_long(const struct sched *s, const struct session_turn *t, u64 prompt, struct err_msg *em)
{
	u32 block_size = s->config.block_size;
	u64 pool_tokens = (u64)s->kv.count * block_size;

	if (t->base)
		return err_set(em, ERR_TOO_LONG,
			       "the session has %u tokens and the new turn %llu; with one token to generate they must fit "
			       "into the context length of %u: go back with session_step, or begin a new session",
			       t->base, (unsigned long long)(prompt - t->base), context_now(s));
	if (prompt >= pool_tokens && pool_tokens <= s->config.max_model_len)
		return err_set(em, ERR_NEVER_FITS,
			       "the prompt has %llu tokens and needs %llu KV blocks of %u with one token more; "
			       "the pool has %u",
			       (unsigned long long)prompt, (unsigned long long)prompt / block_size + 1, block_size,
			       s->kv.count);
	return err_set(em, ERR_TOO_LONG,
		       "the prompt has %llu tokens; with one token to generate it must fit into the "
		       "context length of %u",
		       (unsigned long long)prompt, context_now(s));
}

static enum err check_lengths(const struct sched *s, const struct ipc_submit *m, const struct session_turn *t,
			      struct err_msg *em)
{
	if (m->tokens_count == 0 && t->base == 0)
		return err_set(em, ERR_INVALID, "the prompt is empty; it needs at least one token");
	if (m->output_count > m->tokens_count || (m->output_count == m->tokens_count && t->base == 0))
		return err_set(
			em, ERR_INVALID,
			"output_count is %u, but there are only %u tokens and one must be the prompt's",
			m->output_count, m->tokens_count);
	u64 prompt = turn_prompt(t, m);
	if (prompt >= context_now(s))
		return too_long(s, t, prompt, em);
	if (t->named && prompt >= s->config.sessions->config.token_max)
		return err_set(em, ERR_TOO_LONG,
			       "the session would have %llu tokens; with one token to generate they must fit into "
			       "--session-tokens, %u",
			       (unsigned long long)prompt, s->config.sessions->config.token_max);
	u32 output_max = validate_output_max(s, m, (u32)prompt);
	if (m->output_count > output_max)
		return err_set(em, ERR_INVALID,
			       "output_count is %u; max_tokens and the context length allow %u",
			       m->output_count, output_max);
	return ERR_OK;
}

static enum err check_ids(const char *name, const u32 *ids, u32 count, u32 vocab_size, struct err_msg *em)
{
	for (u32 i = 0; i < count; i++)
		if (ids[i] >= vocab_size)
			return err_set(em, ERR_INVALID, "%s[%u] is %u; the vocabulary has %u ids from 0",
				       name, i, ids[i], vocab_size);
	return ERR_OK;
}

static enum err check_params(const struct sched *s, const struct ipc_submit *m, struct err_msg *em)
{
	struct sampling_params p;

#define COPY_PARAM(A, type, name, def, min, max) p.name = m->name;
	SAMPLING_TABLE(COPY_PARAM, 0)
#undef COPY_PARAM
	enum err e = sampling_params_check(&p, em);
	if (e)
		return e;
	if (p.min_tokens > p.max_tokens)
		return err_set(em, ERR_INVALID, "min_tokens is %u; it must not be above max_tokens, %u",
			       p.min_tokens, p.max_tokens);
	if (m->priority != 0 && !s->config.by_priority)
		return err_set(em, ERR_UNSUPPORTED,
			       "priority is %d; the server runs with --scheduling-policy fcfs, which serves "
			       "requests in order of arrival, so it must be 0",
			       m->priority);
	return ERR_OK;
}

static enum err check_biases(const struct sched *s, const struct ipc_submit *m, struct err_msg *em)
{
	if (m->bias_ids_count > BIAS_MAX || m->bias_values_count != m->bias_ids_count)
		return err_set(em, ERR_INVALID,
			       "logit_bias has %u ids and %u values; there must be as many, at most %u",
			       m->bias_ids_count, m->bias_values_count, (u32)BIAS_MAX);
	for (u32 i = 0; i < m->bias_values_count; i++)
		if (!(fabsf(m->bias_values[i]) <= BIAS_VALUE_MAX))
			return err_set(em, ERR_INVALID,
				       "logit_bias of token %u is %g; it must be -100 to 100", m->bias_ids[i],
				       (double)m->bias_values[i]);
	return check_ids("logit_bias", m->bias_ids, m->bias_ids_count, s->config.vocab_size, em);
}

static enum err check_stop_strings(const struct ipc_submit *m, struct err_msg *em)
{
	u64 sum = 0;

	if (m->stop_string_bytes_count > STOP_STRINGS_MAX)
		return err_set(em, ERR_INVALID, "there are %u stop strings; at most %u",
			       m->stop_string_bytes_count, (u32)STOP_STRINGS_MAX);
	if (m->stop_strings_count > STOP_STRING_BYTES_MAX)
		return err_set(em, ERR_TOO_LONG, "the stop strings have %u bytes together; at most %u",
			       m->stop_strings_count, (u32)STOP_STRING_BYTES_MAX);
	for (u32 i = 0; i < m->stop_string_bytes_count; i++) {
		u32 bytes = m->stop_string_bytes[i];
		if (bytes == 0)
			return err_set(em, ERR_INVALID, "stop string %u is empty", i);
		if (sum + bytes > m->stop_strings_count)
			return err_set(em, ERR_INVALID,
				       "stop string %u ends behind the %u bytes that were sent", i,
				       m->stop_strings_count);
		if (!utf8_valid((const char *)m->stop_strings + sum, bytes))
			return err_set(em, ERR_INVALID, "stop string %u is not valid UTF-8", i);
		sum += bytes;
	}
	if (sum != m->stop_strings_count)
		return err_set(em, ERR_INVALID,
			       "the lengths of the stop strings add up to %llu, but %u bytes were sent",
			       (unsigned long long)sum, m->stop_strings_count);
	if (m->stop_string_bytes_count && (m->flags & SAMPLING_NO_TEXT))
		return err_set(em, ERR_INVALID,
			       "stop strings need text, but the request asks for tokens only");
	return ERR_OK;
}

static enum err check_grammar(const struct sched *s, const struct ipc_submit *m, struct err_msg *em)
{
	if (m->grammar_kind == GRAMMAR_KIND_NONE && m->grammar_count == 0)
		return ERR_OK;
	if (m->grammar_kind == GRAMMAR_KIND_NONE || m->grammar_kind >= GRAMMAR_KIND_COUNT)
		return err_set(em, ERR_INVALID, "grammar_kind is %u; of a grammar it must be 1 to %u", m->grammar_kind,
			       (u32)GRAMMAR_KIND_COUNT - 1);
	if (m->grammar_flags & ~(u32)GRAMMAR_FLAGS_ALL)
		return err_set(em, ERR_INVALID, "grammar_flags is %u; known are bits up to %u", m->grammar_flags,
			       (u32)GRAMMAR_FLAGS_ALL);
	if (m->grammar_count > GRAMMAR_SOURCE_MAX)
		return err_set(em, ERR_TOO_LONG, "the grammar has %u bytes; at most %u", m->grammar_count,
			       (u32)GRAMMAR_SOURCE_MAX);
	if ((m->grammar_count == 0) != (m->grammar_kind == GRAMMAR_JSON_OBJECT))
		return err_set(em, ERR_INVALID, "a grammar of kind %u with a source of %u bytes; only \"any JSON object\", %u, has none",
			       m->grammar_kind, m->grammar_count, (u32)GRAMMAR_JSON_OBJECT);
	if (!utf8_valid((const char *)m->grammar, m->grammar_count))
		return err_set(em, ERR_INVALID, "the grammar is not valid UTF-8");
	if (m->beam_width)
		return err_set(em, ERR_UNSUPPORTED, "a beam search cannot be constrained by a grammar; leave out one of them");
	if (m->flags & SAMPLING_IGNORE_EOS)
		return err_set(em, ERR_INVALID,
			       "ignore_eos asks for tokens behind the end, and a grammar has none there; leave out one of them");
	if (s->config.no_grammars[0])
		return err_set(em, ERR_UNSUPPORTED, "this server cannot constrain outputs: %s", s->config.no_grammars);
	return ERR_OK;
}

static enum err check_lora(const struct sched *s, const struct ipc_submit *m, struct err_msg *em)
{
	if (m->lora_count == 0 || sched_find_lora(s, m))
		return ERR_OK;
	return err_set(em, ERR_NOT_FOUND, "there is no adapter \"%.*s\"; this server has %u (--lora-modules)", (int)m->lora_count,
		       (const char *)m->lora, s->config.loras ? s->config.loras->count : 0);
}

/* All rows may ask, and end their prompts in one step, whose results are one message. */
static enum err check_embedding(const struct sched *s, const struct ipc_submit *m, struct err_msg *em)
{
	u32 width = s->config.embedding_width;

	if (!(m->flags & SAMPLING_EMBEDDING))
		return s->config.headless ? err_set(em, ERR_UNSUPPORTED,
						    "the model generates nothing: its files have no lm_head, and it gives embeddings only (/v1/embeddings)")
					  : ERR_OK;
	if (s->config.headless &&
	    (m->max_tokens != 1 || m->logprobs >= 0 || m->prompt_logprobs >= 0 || m->grammar_kind || m->session_count))
		return err_set(em, ERR_UNSUPPORTED,
			       "the model's files have no lm_head: max_tokens must be 1, logprobs and prompt_logprobs -1, and there is no grammar and no session");
	if (s->config.no_embeddings[0])
		return err_set(em, ERR_UNSUPPORTED, "this server gives no embeddings: %s", s->config.no_embeddings);
	if (width == 0)
		return err_set(em, ERR_UNSUPPORTED, "this server gives no embeddings");
	if (m->beam_width)
		return err_set(em, ERR_INVALID, "a beam search has no embedding; leave out one of them");
	if ((u64)width * s->config.max_num_seqs > IPC_EMBEDDING_VALUES_MAX)
		return err_set(em, ERR_UNSUPPORTED,
			       "this server gives no embeddings: --max-num-seqs is %u, and of embeddings of %u numbers it must be at most %u",
			       s->config.max_num_seqs, width, (u32)IPC_EMBEDDING_VALUES_MAX / width);
	return ERR_OK;
}

enum err validate_submit(const struct sched *s, const struct ipc_submit *m, const struct session_turn *t,
			 struct err_msg *em)
{
	enum err e = check_params(s, m, em);

	if (!e)
		e = check_lengths(s, m, t, em);
	if (!e)
		e = check_ids("tokens", m->tokens, m->tokens_count, s->config.vocab_size, em);
	if (!e && m->stop_ids_count > STOP_IDS_MAX)
		e = err_set(em, ERR_INVALID, "there are %u stop ids; at most %u", m->stop_ids_count,
			    (u32)STOP_IDS_MAX);
	if (!e)
		e = check_ids("stop_token_ids", m->stop_ids, m->stop_ids_count, s->config.vocab_size, em);
	if (!e)
		e = check_biases(s, m, em);
	if (!e)
		e = check_stop_strings(m, em);
	if (!e)
		e = check_grammar(s, m, em);
	if (!e)
		e = check_lora(s, m, em);
	if (!e)
		e = check_embedding(s, m, em);
	if (!e)
		e = groups_validate(s, m, validate_output_max(s, m, (u32)turn_prompt(t, m)), em);
	return e;
}
