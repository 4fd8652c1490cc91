/* Owns the state of one sequence; runs in the detokenizer. Never gives out half a character, a token without
 * its text, or text that could still become a stop string. The end is decided by finish_check over the same
 * tokens as in the scheduler; only stop strings and errors found here have to be told. Where the scheduler keeps more of
 * a sequence than its tokens (`confirm`), the end is held until it has exactly what ends here: nobody hears of what could
 * still be lost, or of less than would come back. */
#include "proc_detok/stream.h"

#include <string.h>

#include "common/assert.h"

void stream_clear(struct stream *s)
{
	s->state = STREAM_FREE;
	s->confirm = s->confirmed = false;
	s->closing = false;
	s->finish = FINISH_NONE;
	s->stop_kind = STOP_KIND_NONE;
	s->stop_value = 0;
	s->stop_due = false;
	s->stop_count = 0;
	s->token_count = 0;
	s->base = 0;
	s->plp_next = 1;
	s->gap_ns = 0;
	s->stops.count = 0;
	text_stream_fini(&s->text);
	pending_clear(&s->pending, 0);
	u32_vec_clear(&s->ids);
	buf_clear(&s->error);
}

void stream_fini(struct stream *s)
{
	text_stream_fini(&s->text);
	pending_fini(&s->pending);
	u32_vec_fini(&s->ids);
	buf_fini(&s->error);
	*s = (struct stream){0};
}

u32 stream_held(const struct stream *s)
{
	if (s->state == STREAM_ENDED || s->flags & SAMPLING_INCLUDE_STOP)
		return 0;
	return stop_strings_held(&s->stops);
}

static void end_set(struct stream *s, enum finish_reason reason)
{
	ASSERT(reason != FINISH_NONE && s->state != STREAM_ENDED);
	s->state = STREAM_ENDED;
	s->finish = (u8)reason;
	s->closing = false;
	if (pending_count(&s->pending) > 0)
		pending_extend(&s->pending, true);
}

void stream_end(struct stream *s, enum finish_reason reason, const char *text, bool tell)
{
	if (s->state == STREAM_HELD) {
		s->state = STREAM_ENDED;
		if (reason != FINISH_ERROR)
			return;
		s->finish = FINISH_ERROR;
		s->stop_kind = STOP_KIND_NONE;
		buf_append_str(&s->error, text);
	}
	if (s->state == STREAM_ENDED)
		return;
	if (!(s->flags & SAMPLING_NO_TEXT))
		text_stream_end(&s->text, &s->pending.text);
	if (text)
		buf_append_str(&s->error, text);
	s->stop_due = tell;
	s->stop_count = s->token_count;
	end_set(s, reason);
}

/* Searches the text from `from` on; true when a stop string ended the stream there. */
static bool scan(struct stream *s, size_t from)
{
	struct buf *text = &s->pending.text;
	struct stop_match match;
	bool may_match = s->token_count > s->rule.output_min;

	if (text->bytes == from)
		return false;
	if (!stop_strings_push(&s->stops, text->data + from, text->bytes - from, may_match, &match))
		return false;
	size_t end = from + match.consumed;
	/* the match's beginning was held back, so it is in front of nothing that left already */
	ASSERT(s->flags & SAMPLING_INCLUDE_STOP || end >= match.bytes);
	pending_extend(&s->pending, true);
	pending_cut(&s->pending, s->flags & SAMPLING_INCLUDE_STOP ? end : end - match.bytes);
	s->stop_kind = STOP_KIND_STRING;
	s->stop_value = match.index;
	return true;
}

/* Its tokens, or a stop string in their text, end it. */
static void end_by_tokens(struct stream *s, enum finish_reason reason)
{
	end_set(s, reason);
	if (!s->confirm || (s->confirmed && s->kept_count <= s->token_count))
		return;
	s->state = STREAM_HELD;
	s->since_ns = s->gap_ns = 0;
}

/* Whether the scheduler waits for STOPPED, wherever such an end is: a turn that was given up there may have a stop string in front of
 * that, and until that is known no turn may follow. */
static bool is_awaited(const struct stream *s, u8 reason)
{
	return reason == FINISH_ABORT && s->confirm && s->stops.count > 0;
}

/* Appends one output and judges the sequence after it. */
static void token_append(struct stream *s, u32 token, const struct token_logprobs *lp)
{
	struct finish fin = finish_check(&s->rule, ++s->token_count, token);
	bool decodes = !(s->flags & SAMPLING_NO_TEXT);
	bool hidden = fin.reason == FINISH_STOP && !(s->flags & SAMPLING_INCLUDE_STOP);
	bool closes = s->closing && s->token_count >= s->close_count, awaited = closes && is_awaited(s, s->close_reason);
	size_t from = s->pending.text.bytes;

	if (decodes && !hidden)
		text_stream_push(&s->text, token, &s->pending.text);
	if (decodes && fin.reason != FINISH_NONE)
		text_stream_end(&s->text, &s->pending.text);
	pending_push(&s->pending, token, lp, !decodes || !text_stream_holds(&s->text));
	if (!pending_ok(&s->pending)) {
		stream_end(s, FINISH_ERROR, "the detokenizer is out of memory", fin.reason == FINISH_NONE);
		return;
	}

	if (decodes && scan(s, from)) {
		s->stop_due = fin.reason == FINISH_NONE && (!closes || awaited);
		s->stop_count = s->token_count;
		end_by_tokens(s, FINISH_STOP);
	} else if (fin.reason != FINISH_NONE) {
		if (fin.by_stop_id) {
			s->stop_kind = STOP_KIND_ID;
			s->stop_value = token;
		}
		end_by_tokens(s, fin.reason);
	} else if (closes) {
		stream_end(s, s->close_reason, NULL, awaited);
	}
}

static enum err rule_set(struct stream *s, const struct ipc_open *open)
{
	u32_vec_clear(&s->ids);
	u32_vec_append(&s->ids, open->eos_ids, open->eos_ids_count);
	u32_vec_append(&s->ids, open->stop_ids, open->stop_ids_count);
	if (s->ids.failed)
		return ERR_NO_MEMORY;
	s->rule = (struct finish_rule){
		.output_max = open->output_max,
		.output_min = open->output_min,
		.ignore_eos = open->flags & SAMPLING_IGNORE_EOS,
		.eos_ids = s->ids.data,
		.eos_count = open->eos_ids_count,
		.stop_ids = s->ids.data ? s->ids.data + open->eos_ids_count : NULL,
		.stop_count = open->stop_ids_count,
	};
	return ERR_OK;
}

static void bind(struct stream *s, const struct ipc_open *open, u64 epoch)
{
	s->state = STREAM_LIVE;
	s->seq = open->seq;
	s->epoch = epoch;
	s->confirm = open->confirm != 0;
	s->confirmed = false;
	s->closing = false;
}

/* The scheduler's outputs that are not known here. */
static void tokens_add(struct stream *s, const struct ipc_open *open)
{
	const struct token_logprobs none = {0};

	if (s->token_count < open->output_tokens_count)
		s->gap_ns = 0;
	while (s->state == STREAM_LIVE && s->token_count < open->output_tokens_count)
		token_append(s, open->output_tokens[s->token_count], &none);
	/* an end in the middle of what the scheduler goes on from: it has not heard of it */
	if (s->state != STREAM_LIVE)
		s->stop_due = true;
}

enum err stream_open(struct stream *s, const struct tokenizer *t, const struct ipc_open *open, u64 epoch)
{
	ASSERT(s->state == STREAM_FREE);
	stream_clear(s);
	s->client_id = open->client_id;
	s->req_id = open->req_id;
	s->prompt_count = open->prompt_count;
	s->cached_count = open->cached_count;
	s->flags = open->flags;
	enum err e = stop_strings_init(&s->stops, open->stop_string_bytes, open->stop_string_bytes_count,
				       open->stop_strings, open->stop_strings_count);
	if (e == ERR_OK)
		e = rule_set(s, open);
	if (e != ERR_OK)
		return e;
	text_stream_init(&s->text, t, open->flags & SAMPLING_SKIP_SPECIAL, open->prompt_tail,
			 open->prompt_tail_count);
	/* with special tokens hidden there is nothing to be close to */
	s->text.tight_added = !(open->flags & (SAMPLING_SKIP_SPECIAL | SAMPLING_SPACES_BETWEEN_SPECIAL));
	bind(s, open, epoch);
	s->base = open->held_count;
	tokens_add(s, open);
	return ERR_OK;
}

void stream_refuse(struct stream *s, const struct ipc_open *open, u64 epoch, const char *text)
{
	ASSERT(s->state == STREAM_FREE);
	stream_clear(s);
	s->client_id = open->client_id;
	s->req_id = open->req_id;
	s->prompt_count = open->prompt_count;
	s->cached_count = open->cached_count;
	s->flags = SAMPLING_NO_TEXT;
	bind(s, open, epoch);
	pending_clear(&s->pending, open->held_count);
	s->token_count = open->output_tokens_count;
	stream_end(s, text ? FINISH_ERROR : FINISH_ABORT, text, true);
}

enum err stream_continue(struct stream *s, const struct ipc_open *open, u64 epoch)
{
	ASSERT(s->state == STREAM_LIVE || s->state == STREAM_ORPHAN || s->state == STREAM_HELD);
	if (s->state == STREAM_HELD) {
		s->seq = open->seq;
		s->epoch = epoch;
		s->since_ns = s->gap_ns = 0;
		s->stop_due = true;
		s->stop_count = s->token_count;
		return ERR_OK;
	}
	enum err e = rule_set(s, open);
	if (e != ERR_OK)
		return e;
	bind(s, open, epoch);
	tokens_add(s, open);
	return ERR_OK;
}

void stream_set_base(struct stream *s, u32 tokens)
{
	if (tokens >= s->pending.first)
		s->base = tokens;
}

enum stream_push stream_push(struct stream *s, u64 epoch, u32 position, u32 token,
			     const struct token_logprobs *lp)
{
	if (s->state != STREAM_LIVE || epoch < s->epoch)
		return STREAM_LATE;
	if (position < s->token_count) {
		/* A later life computes again what is out already. Should it come to another token that ends
		 * the sequence, the scheduler has ended it and nothing more will come. */
		struct finish fin = finish_check(&s->rule, position + 1, token);
		if (fin.reason != FINISH_NONE)
			stream_end(s, fin.reason, NULL, false);
		return STREAM_DOUBLED;
	}
	if (position > s->token_count)
		return STREAM_GAP;
	s->gap_ns = 0;
	token_append(s, token, lp);
	return STREAM_TAKEN;
}

enum stream_push stream_push_prompt(struct stream *s, u64 epoch, u32 position,
				    const struct token_logprobs *lp)
{
	if (s->state != STREAM_LIVE || epoch < s->epoch)
		return STREAM_LATE;
	if (position < s->plp_next)
		return STREAM_DOUBLED;
	pending_push_prompt(&s->pending, position, lp);
	s->plp_next = position + 1;
	return STREAM_TAKEN;
}

void stream_close(struct stream *s, u32 output_count, enum finish_reason reason, const u8 *text,
		  u32 text_bytes, u64 now_ns)
{
	if (s->state == STREAM_HELD && output_count <= s->token_count) {
		s->state = STREAM_ENDED;
		s->stop_due |= is_awaited(s, (u8)reason);
		s->stop_count = s->token_count;
	}
	if (s->state != STREAM_LIVE)
		return;
	s->confirmed = true;
	s->kept_count = output_count;
	if (reason == FINISH_NONE)
		return;
	if (reason == FINISH_ERROR && text_bytes > 0)
		buf_append(&s->error, text, text_bytes);
	if (s->token_count >= output_count) {
		stream_end(s, reason, NULL, is_awaited(s, (u8)reason));
		return;
	}
	s->closing = true;
	s->close_count = output_count;
	s->close_reason = (u8)reason;
	s->since_ns = now_ns;
}
