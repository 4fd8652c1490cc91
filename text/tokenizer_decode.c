/* Owns the way of ids to text, at once and as a stream; both run the same code, so they cannot differ. Runs in the
 * detokenizer, the gateway and the tercet command. Allocates in the output only, and for what a stream has to hold
 * back. Never emits part of a character. */
#include <string.h>

#include "common/utf8.h"
#include "text/clean_up_priv.h"
#include "text/tokenizer_priv.h"

#define REPLACEMENT "\xef\xbf\xbd"

/* ---- text on its way out ---- */

/* Behind Fuse and Strip: drops leading marks, holds back as many trailing ones as might have to go. */
static void emit_stripped(struct text_stream *s, const char *text, size_t bytes, struct buf *out)
{
	const struct decoder *d = &s->tokenizer->decoder;
	char mark[4];
	size_t width = utf8_put(mark, d->strip_mark);
	while (s->strip_left > 0 && bytes > 0) {
		if (bytes < width || memcmp(text, mark, width) != 0) {
			s->strip_left = 0;
			break;
		}
		s->strip_left--;
		text += width;
		bytes -= width;
	}
	if (bytes == 0)
		return;
	u32 trailing = 0;
	size_t end = bytes;
	while (trailing < d->strip_stop && end >= width && memcmp(text + end - width, mark, width) == 0) {
		trailing++;
		end -= width;
	}
	/* Marks held before are text now, as far as the new ones fill the quota. */
	u32 keep = end > 0 ? 0 : trailing + s->strip_held > d->strip_stop ? d->strip_stop - trailing : s->strip_held;
	for (u32 i = keep; i < s->strip_held; i++)
		buf_append(out, mark, width);
	buf_append(out, text, end);
	s->strip_held = keep + trailing;
}

static void emit(struct text_stream *s, const char *text, size_t bytes, struct buf *out)
{
	if (s->tokenizer->decoder.fused_strip)
		emit_stripped(s, text, bytes, out);
	else
		buf_append(out, text, bytes);
}

/* Bytes of a byte-level model: whole characters go out, an unfinished one waits in `pending`. */
static void emit_bytes(struct text_stream *s, const char *text, size_t bytes, struct buf *out)
{
	while (s->pending_count > 0 && bytes > 0) {
		s->pending[s->pending_count++] = *text++;
		bytes--;
		uint32_t c;
		int n = utf8_next(s->pending, s->pending_count, &c);
		if (n == 0)
			continue;
		size_t used = (size_t)(n > 0 ? n : -n);
		emit(s, n > 0 ? s->pending : REPLACEMENT, n > 0 ? used : 3, out);
		/* The byte that broke the character may begin the next one. */
		size_t left = s->pending_count - used;
		s->pending_count = 0;
		text -= left;
		bytes += left;
	}
	while (bytes > 0) {
		size_t good = 0;
		uint32_t c;
		int n;
		while (good < bytes && (n = utf8_next(text + good, bytes - good, &c)) > 0)
			good += (size_t)n;
		emit(s, text, good, out);
		if (good == bytes)
			return;
		text += good;
		bytes -= good;
		if (n == 0) {
			memcpy(s->pending, text, bytes);
			s->pending_count = (u8)bytes;
			return;
		}
		emit(s, REPLACEMENT, 3, out);
		text += -n;
		bytes -= (size_t)-n;
	}
}

/* ---- one token ---- */

static void flush_run(struct text_stream *s, struct buf *out)
{
	if (s->held.bytes == 0)
		return;
	const struct decoder *d = &s->tokenizer->decoder;
	struct buf run = {0};
	decoder_run_of_bytes(d, s->at_start, s->held.data, s->held.bytes, &run);
	s->at_start = false;
	buf_clear(&s->held);
	emit(s, run.data, run.bytes, out);
	out->failed = out->failed || run.failed;
	buf_fini(&run);
}

/* The first token of a chain that treats it differently. */
static void push_first(struct text_stream *s, u32 id, struct buf *out)
{
	const struct decoder *d = &s->tokenizer->decoder;
	struct token t = vocab_shown(&s->tokenizer->vocab, id);
	struct buf text = {0};
	decoder_token(d, true, t.text, t.bytes, &text);
	if (d->byte_level) {
		struct buf raw = {0};
		decoder_byte_level(text.data, text.bytes, &raw);
		emit_bytes(s, raw.data, raw.bytes, out);
		out->failed = out->failed || raw.failed;
		buf_fini(&raw);
	} else {
		emit(s, text.data, text.bytes, out);
	}
	out->failed = out->failed || text.failed;
	buf_fini(&text);
}

/* An added token as it is written, whatever the decoders make of it. */
static void push_added(struct text_stream *s, u32 id, struct buf *out)
{
	struct token t = vocab_shown(&s->tokenizer->vocab, id);
	if (s->tokenizer->decoder.byte_level)
		emit_bytes(s, t.text, t.bytes, out);
	else
		emit(s, t.text, t.bytes, out);
}

static void push_token(struct text_stream *s, u32 id, struct buf *out)
{
	const struct decoder *d = &s->tokenizer->decoder;
	if (id >= s->tokenizer->vocab.count)
		return;
	struct decode_piece p = d->pieces[id];
	if (!(p.flags & PIECE_PRESENT) || ((p.flags & PIECE_SPECIAL) && s->skip_special))
		return;
	if (d->whole) {
		buf_append(&s->held, &id, sizeof(id));
		return;
	}
	if (p.flags & PIECE_BYTE) {
		buf_append_char(&s->held, (char)p.byte);
		out->failed = out->failed || s->held.failed;
		return;
	}
	flush_run(s, out);
	bool tight = s->tight_added && s->last_added && (p.flags & PIECE_ADDED);
	s->last_added = p.flags & PIECE_ADDED;
	if (tight)
		push_added(s, id, out);
	else if (s->at_start && d->first_differs)
		push_first(s, id, out);
	else if (d->byte_level && (s->pending_count > 0 || !(p.flags & PIECE_PLAIN)))
		emit_bytes(s, d->pool + p.at, p.bytes, out);
	else
		emit(s, d->pool + p.at, p.bytes, out);
	s->at_start = false;
}

void text_stream_push(struct text_stream *s, u32 id, struct buf *out)
{
	if (!s->tokenizer->clean_up) {
		push_token(s, id, out);
		return;
	}
	buf_clear(&s->raw);
	push_token(s, id, &s->raw);
	clean_up_push(s->clean_held, s->raw.data, s->raw.bytes, out);
	s->holds_clean = clean_up_holds(s->clean_held);
	out->failed = out->failed || s->raw.failed;
}

/* ---- streams ---- */

void text_stream_init(struct text_stream *s, const struct tokenizer *t, bool skip_special, const u32 *prompt_tail,
		      size_t tail_count)
{
	*s = (struct text_stream){.tokenizer = t,
				  .skip_special = skip_special,
				  .at_start = true,
				  .strip_left = t->decoder.fused_strip ? t->decoder.strip_start : 0};
	if (t->decoder.whole)
		return;
	struct buf prompt = {0};
	for (size_t i = 0; i < tail_count; i++) {
		buf_clear(&prompt);
		push_token(s, prompt_tail[i], &prompt);
	}
	/* Whole characters of the prompt are over; one that the prompt left unfinished goes on. */
	size_t whole = utf8_complete_prefix(s->held.data, s->held.bytes);
	if (whole > 0) {
		buf_consume(&s->held, whole);
		s->at_start = false;
		s->strip_left = 0;
	}
	s->strip_held = 0;
	s->last_added = false;
	buf_fini(&prompt);
}

static void end_whole(struct text_stream *s, struct buf *out)
{
	struct text_list list = {{0}, {0}};
	for (size_t i = 0; i + sizeof(u32) <= s->held.bytes; i += sizeof(u32)) {
		u32 id;
		memcpy(&id, s->held.data + i, sizeof(id));
		struct token t = vocab_shown(&s->tokenizer->vocab, id);
		buf_append(&list.bytes, t.text, t.bytes);
		u32_vec_push(&list.ends, (u32)list.bytes.bytes);
	}
	decoder_run_whole(&s->tokenizer->decoder, &list, out);
	out->failed = out->failed || s->held.failed;
	buf_fini(&list.bytes);
	u32_vec_fini(&list.ends);
}

static void end_tokens(struct text_stream *s, struct buf *out)
{
	if (s->tokenizer->decoder.whole)
		end_whole(s, out);
	else
		flush_run(s, out);
	if (s->pending_count > 0)
		emit(s, REPLACEMENT, 3, out);
	s->pending_count = 0;
	s->strip_held = 0;
}

void text_stream_end(struct text_stream *s, struct buf *out)
{
	if (s->tokenizer->clean_up) {
		buf_clear(&s->raw);
		end_tokens(s, &s->raw);
		clean_up_push(s->clean_held, s->raw.data, s->raw.bytes, out);
		clean_up_end(s->clean_held, out);
		s->holds_clean = false;
		out->failed = out->failed || s->raw.failed;
	} else {
		end_tokens(s, out);
	}
	text_stream_fini(s);
}

void text_stream_fini(struct text_stream *s)
{
	buf_fini(&s->held);
	buf_fini(&s->raw);
}

/* ---- at once ---- */

/* Appends plain pieces from ids[at] on, up to the first that needs thought; returns where that is. */
static size_t append_plain(const struct tokenizer *t, const u32 *ids, size_t at, size_t count, u8 stop_flags,
			   struct buf *out)
{
	enum { STEP_BYTES = 16 };
	const struct decoder *d = &t->decoder;
	for (; at < count; at++) {
		if (ids[at] >= t->vocab.count)
			break;
		struct decode_piece p = d->pieces[ids[at]];
		if (!(p.flags & PIECE_PLAIN) || (p.flags & stop_flags))
			break;
		if (!buf_reserve(out, p.bytes > STEP_BYTES ? p.bytes : STEP_BYTES))
			break;
		/* A fixed width is one move; the pool and the reserve allow it. */
		char *to = out->data + out->bytes;
		memcpy(to, d->pool + p.at, STEP_BYTES);
		if (p.bytes > STEP_BYTES)
			memcpy(to, d->pool + p.at, p.bytes);
		out->bytes += p.bytes;
	}
	return at;
}

void tokenizer_decode(const struct tokenizer *t, const u32 *ids, size_t count, bool skip_special, struct buf *out)
{
	struct text_stream s;
	text_stream_init(&s, t, skip_special, NULL, 0);
	const struct decoder *d = &t->decoder;
	bool can_append = !d->whole && !t->clean_up && !(d->fused_strip && d->strip_stop > 0);
	u8 stop_flags = PIECE_BYTE | (skip_special ? PIECE_SPECIAL : 0);
	for (size_t i = 0; i < count; i++) {
		bool settled = !s.at_start && s.pending_count == 0 && s.held.bytes == 0 && s.strip_left == 0;
		if (can_append && settled) {
			i = append_plain(t, ids, i, count, stop_flags, out);
			if (i == count)
				break;
		}
		text_stream_push(&s, ids[i], out);
	}
	text_stream_end(&s, out);
}

void tokenizer_token_bytes(const struct tokenizer *t, u32 id, struct buf *out)
{
	if (id >= t->vocab.count || !(t->decoder.pieces[id].flags & PIECE_PRESENT))
		return;
	struct decode_piece p = t->decoder.pieces[id];
	if (p.flags & PIECE_BYTE)
		buf_append_char(out, (char)p.byte);
	else
		buf_append(out, t->decoder.pool + p.at, p.bytes);
}
