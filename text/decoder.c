/* Owns the chain of decoders: reads it, prepares one table entry a token, and runs chains that need the whole list.
 * Runs in the detokenizer, the gateway and the tercet command; constant after loading. */
#include "text/decoder_priv.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/utf8.h"
#include "text/unicode_priv.h"

enum { POOL_SLACK = 16, SEQUENCE_DEPTH_MAX = 4 };
#define REPLACEMENT "\xef\xbf\xbd"

/* ---- pieces of decoding ---- */

int decoder_fallback_byte(const char *text, size_t bytes)
{
	if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
		return -1;
	int value = 0;
	for (int i = 3; i < 5; i++) {
		char c = text[i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
						   : -1;
		if (digit < 0)
			return -1;
		value = value * 16 + digit;
	}
	return value;
}

void decoder_append_lossy(struct buf *out, const char *text, size_t bytes)
{
	size_t at = 0;
	while (at < bytes) {
		uint32_t c;
		int n = utf8_next(text + at, bytes - at, &c);
		if (n > 0) {
			buf_append(out, text + at, (size_t)n);
			at += (size_t)n;
			continue;
		}
		buf_append_str(out, REPLACEMENT);
		if (n == 0)
			return; /* ends inside a character: one U+FFFD for what is there */
		at += (size_t)-n;
	}
}

void decoder_byte_level(const char *text, size_t bytes, struct buf *out)
{
	size_t before = out->bytes;
	for (size_t at = 0; at < bytes;) {
		int byte = byte_level_byte(unicode_next(text, &at));
		if (byte < 0) {
			out->bytes = before;
			buf_append(out, text, bytes);
			return;
		}
		buf_append_char(out, (char)byte);
	}
}

/* Texts through the `each` steps of [from, to). */
static void run_each(const struct decoder *d, u32 from, u32 to, bool first, const char *text, size_t bytes,
		     struct buf *out)
{
	struct buf work[2] = {0};
	for (u32 i = from; i < to; i++) {
		const struct decode_step *step = &d->steps[i];
		if (step->kind != DECODE_EACH)
			continue;
		struct buf *next = text == work[0].data && text != NULL ? &work[1] : &work[0];
		buf_clear(next);
		step->each(step, first, false, text, bytes, next);
		out->failed = out->failed || next->failed;
		text = next->data != NULL ? next->data : "";
		bytes = next->bytes;
	}
	buf_append(out, text, bytes);
	buf_fini(&work[0]);
	buf_fini(&work[1]);
}

void decoder_token(const struct decoder *d, bool first, const char *text, size_t bytes, struct buf *out)
{
	run_each(d, 0, d->each_count, first, text, bytes, out);
}

void decoder_run_of_bytes(const struct decoder *d, bool first, const char *run, size_t bytes, struct buf *out)
{
	if (utf8_valid(run, bytes)) {
		run_each(d, d->run_from, d->each_count, first, run, bytes, out);
		return;
	}
	for (size_t i = 0; i < bytes; i++)
		run_each(d, d->run_from, d->each_count, first && i == 0, REPLACEMENT, 3, out);
}

/* ---- the whole list ---- */

static void list_push(struct text_list *l)
{
	u32_vec_push(&l->ends, (u32)l->bytes.bytes);
}

static void list_each(const struct decode_step *step, const struct text_list *in, struct text_list *out)
{
	size_t from = 0;
	for (size_t i = 0; i < in->ends.count; i++) {
		size_t to = in->ends.data[i];
		step->each(step, i == 0, i + 1 == in->ends.count, in->bytes.data + from, to - from, &out->bytes);
		list_push(out);
		from = to;
	}
}

static void list_byte_level(const struct text_list *in, struct text_list *out)
{
	struct buf raw = {0};
	size_t from = 0;
	for (size_t i = 0; i < in->ends.count; i++) {
		decoder_byte_level(in->bytes.data + from, in->ends.data[i] - from, &raw);
		from = in->ends.data[i];
	}
	decoder_append_lossy(&out->bytes, raw.data, raw.bytes);
	list_push(out);
	buf_fini(&raw);
}

static void flush_run(struct buf *run, struct text_list *out)
{
	if (run->bytes == 0)
		return;
	if (utf8_valid(run->data, run->bytes)) {
		buf_append(&out->bytes, run->data, run->bytes);
		list_push(out);
	} else {
		for (size_t i = 0; i < run->bytes; i++) {
			buf_append_str(&out->bytes, REPLACEMENT);
			list_push(out);
		}
	}
	buf_clear(run);
}

static void list_byte_fallback(const struct text_list *in, struct text_list *out)
{
	struct buf run = {0};
	size_t from = 0;
	for (size_t i = 0; i < in->ends.count; i++) {
		const char *text = in->bytes.data + from;
		size_t bytes = in->ends.data[i] - from;
		int byte = decoder_fallback_byte(text, bytes);
		from = in->ends.data[i];
		if (byte >= 0) {
			buf_append_char(&run, (char)byte);
			continue;
		}
		flush_run(&run, out);
		buf_append(&out->bytes, text, bytes);
		list_push(out);
	}
	flush_run(&run, out);
	buf_fini(&run);
}

void decoder_run_whole(const struct decoder *d, struct text_list *list, struct buf *out)
{
	struct text_list other = {0}, *in = list, *to = &other;
	for (u32 i = 0; i < d->count && in->ends.count > 0; i++) {
		const struct decode_step *step = &d->steps[i];
		buf_clear(&to->bytes);
		u32_vec_clear(&to->ends);
		switch (step->kind) {
		case DECODE_EACH:
			list_each(step, in, to);
			break;
		case DECODE_BYTE_LEVEL:
			list_byte_level(in, to);
			break;
		case DECODE_BYTE_FALLBACK:
			list_byte_fallback(in, to);
			break;
		case DECODE_FUSE:
			buf_append(&to->bytes, in->bytes.data, in->bytes.bytes);
			list_push(to);
			break;
		}
		struct text_list *swap = in;
		in = to;
		to = swap;
	}
	buf_append(out, in->bytes.data, in->bytes.bytes);
	out->failed = out->failed || in->bytes.failed || in->ends.failed;
	buf_fini(&other.bytes);
	u32_vec_fini(&other.ends);
}

/* ---- loading ---- */

static enum err load_steps(struct decoder *d, json_val v, u32 depth, struct err_msg *em)
{
	if (json_string_equals(json_get(v, "type"), "Sequence")) {
		if (depth == SEQUENCE_DEPTH_MAX)
			return err_set(em, ERR_UNSUPPORTED, "decoder: sequences nested deeper than %d", depth);
		enum err e = ERR_OK;
		for (struct json_iter it = json_iterate(json_get(v, "decoders")); e == ERR_OK && json_next(&it);)
			e = load_steps(d, it.value, depth + 1, em);
		return e;
	}
	if (d->count == DECODE_STEPS_MAX)
		return err_set(em, ERR_UNSUPPORTED, "decoder: more than %d steps", DECODE_STEPS_MAX);
	return decode_step_load(&d->steps[d->count++], v, em);
}

/* Takes each* from step i on. */
static u32 skip_each(struct decoder *d, u32 i)
{
	for (; i < d->count && d->steps[i].kind == DECODE_EACH; i++) {
		d->first_differs = d->first_differs || d->steps[i].first_differs;
		d->whole = d->whole || d->steps[i].last_differs;
	}
	return i;
}

/* Finds out whether tokens can be decoded one by one. */
static void classify(struct decoder *d)
{
	u32 i = skip_each(d, 0);
	d->run_from = d->each_count = i;
	bool fused = false;
	if (i < d->count && d->steps[i].kind == DECODE_BYTE_LEVEL) {
		d->byte_level = fused = true;
		d->each_count = i++;
	} else {
		if (i < d->count && d->steps[i].kind == DECODE_BYTE_FALLBACK) {
			d->byte_fallback = true;
			for (u32 k = 0; k < i; k++) /* only the first token could be a byte */
				d->whole = d->whole || d->steps[k].prefixes;
			d->run_from = i + 1;
			i = skip_each(d, i + 1);
		}
		d->each_count = i;
	}
	while (i < d->count && d->steps[i].kind == DECODE_FUSE) {
		fused = true;
		i++;
	}
	if (fused && i + 1 == d->count && d->steps[i].kind == DECODE_EACH && d->steps[i].start + d->steps[i].stop > 0) {
		d->fused_strip = true;
		d->strip_mark = d->steps[i].mark;
		d->strip_start = d->steps[i].start;
		d->strip_stop = d->steps[i].stop;
		i++;
	}
	d->whole = d->whole || i != d->count;
}

/* One token through the table's part of the chain; `raw`: bytes that need not be UTF-8. */
static void render_piece(const struct decoder *d, const struct token *t, struct decode_piece *p, struct buf *pool)
{
	size_t from = pool->bytes;
	decoder_token(d, false, t->text, t->bytes, pool);
	if (d->byte_level && !pool->failed) {
		struct buf raw = {0};
		decoder_byte_level(pool->data + from, pool->bytes - from, &raw);
		pool->bytes = from;
		buf_append(pool, raw.data, raw.bytes);
		pool->failed = pool->failed || raw.failed;
		buf_fini(&raw);
	}
	if (pool->failed)
		return;
	size_t bytes = pool->bytes - from;
	/* Whether a token is a byte is judged on what the steps before ByteFallback leave of it. */
	int byte = -1;
	if (d->byte_fallback) {
		struct buf before = {0};
		run_each(d, 0, d->run_from, false, t->text, t->bytes, &before);
		byte = decoder_fallback_byte(buf_cstr(&before), before.bytes);
		buf_fini(&before);
	}
	p->at = (u32)from;
	p->bytes = (u16)bytes;
	p->flags = PIECE_PRESENT | (t->flags & TOKEN_SPECIAL ? PIECE_SPECIAL : 0);
	if (byte >= 0) {
		p->flags |= PIECE_BYTE;
		p->byte = (u8)byte;
	} else if (utf8_valid(pool->data + from, bytes)) {
		p->flags |= PIECE_PLAIN;
	}
}

static enum err load_pieces(struct decoder *d, const struct vocab *vocab, struct err_msg *em)
{
	struct buf pool = {0};
	d->pieces = calloc(vocab->count + 1, sizeof(*d->pieces));
	if (d->pieces == NULL)
		return ERR_NO_MEMORY;
	for (u32 id = 0; id < vocab->count; id++) {
		struct token t = vocab->shown_count > 0 ? vocab_shown(vocab, id) : vocab->tokens[id];
		if (t.text == NULL)
			continue;
		size_t from = pool.bytes;
		render_piece(d, &t, &d->pieces[id], &pool);
		if (pool.bytes - from > UINT16_MAX || pool.bytes > UINT32_MAX / 2) {
			buf_fini(&pool);
			return err_set(em, ERR_UNSUPPORTED, "token %u decodes to more than %d bytes", id, UINT16_MAX);
		}
	}
	if (!buf_reserve(&pool, POOL_SLACK)) {
		buf_fini(&pool);
		return ERR_NO_MEMORY;
	}
	memset(pool.data + pool.bytes, 0, POOL_SLACK);
	d->pool = pool.data;
	return ERR_OK;
}

enum err decoder_load(struct decoder *d, json_val v, const struct vocab *vocab, struct err_msg *em)
{
	*d = (struct decoder){0};
	enum err e = ERR_OK;
	if (json_present(v))
		e = load_steps(d, v, 0, em);
	else
		decode_step_join(&d->steps[d->count++]);
	if (e == ERR_OK) {
		classify(d);
		e = load_pieces(d, vocab, em);
	}
	if (e != ERR_OK)
		decoder_fini(d);
	return e;
}

void decoder_fini(struct decoder *d)
{
	for (u32 i = 0; i < d->count; i++)
		decode_step_fini(&d->steps[i]);
	free(d->pieces);
	free(d->pool);
	*d = (struct decoder){0};
}
