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
	if (bytes == 0 || !buf_reserve(out, bytes))
		return;
	char *to = out->data + out->bytes;
	for (size_t at = 0; at < bytes;) {
		int byte = byte_level_byte(unicode_next(text, &at));
		if (byte < 0) {
			buf_append(out, text, bytes);
			return;
		}
		*to++ = (char)byte;
	}
	out->bytes = (size_t)(to - out->data);
}

/* Texts through the `each` steps of [from, to); `work` is where steps in between write. */
static void run_each(const struct decoder *d, u32 from, u32 to, bool first, const char *text, size_t bytes,
		     struct buf work[2], struct buf *out)
{
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
}

static void fini_work(struct buf work[2])
{
	buf_fini(&work[0]);
	buf_fini(&work[1]);
}

void decoder_token(const struct decoder *d, bool first, const char *text, size_t bytes, struct buf *out)
{
	struct buf work[2] = {{0}, {0}};
	run_each(d, 0, d->each_count, first, text, bytes, work, out);
	fini_work(work);
}

void decoder_run_of_bytes(const struct decoder *d, bool first, const char *run, size_t bytes, struct buf *out)
{
	struct buf work[2] = {{0}, {0}};
	bool valid = utf8_valid(run, bytes);
	if (valid)
		run_each(d, d->run_from, d->each_count, first, run, bytes, work, out);
	for (size_t i = 0; !valid && i < bytes; i++)
		run_each(d, d->run_from, d->each_count, first && i == 0, REPLACEMENT, 3, work, out);
	fini_work(work);
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

/* What the vocabulary is rendered with. */
struct renderer {
	const struct decoder *decoder;
	struct buf pool;
	struct buf work[2];
	struct buf text;
};

/* One token through the table's part of the chain, into the pool. */
static void render_piece(struct renderer *r, const struct token *t, struct decode_piece *p)
{
	const struct decoder *d = r->decoder;
	size_t from = r->pool.bytes;
	int byte = -1;
	buf_clear(&r->text);
	if (d->byte_level) {
		run_each(d, 0, d->each_count, false, t->text, t->bytes, r->work, &r->text);
		decoder_byte_level(buf_cstr(&r->text), r->text.bytes, &r->pool);
	} else {
		run_each(d, 0, d->each_count, false, t->text, t->bytes, r->work, &r->pool);
	}
	if (d->byte_fallback) { /* judged on what the steps before it leave of the token */
		run_each(d, 0, d->run_from, false, t->text, t->bytes, r->work, &r->text);
		byte = decoder_fallback_byte(buf_cstr(&r->text), r->text.bytes);
	}
	r->pool.failed = r->pool.failed || r->text.failed;
	if (r->pool.failed)
		return;
	*p = (struct decode_piece){.at = (u32)from,
				   .bytes = (u16)(r->pool.bytes - from),
				   .flags = PIECE_PRESENT | (t->flags & TOKEN_SPECIAL ? PIECE_SPECIAL : 0) |
					    (t->flags & TOKEN_ADDED ? PIECE_ADDED : 0)};
	if (byte >= 0) {
		p->flags |= PIECE_BYTE;
		p->byte = (u8)byte;
	} else if (p->bytes == 0 || utf8_valid(r->pool.data + from, p->bytes)) {
		p->flags |= PIECE_PLAIN;
	}
}

static enum err render_vocab(struct decoder *d, struct renderer *r, const struct vocab *vocab, struct err_msg *em)
{
	for (u32 id = 0; id < vocab->count; id++) {
		struct token t = vocab->shown_count > 0 ? vocab_shown(vocab, id) : vocab->tokens[id];
		if (t.text == NULL)
			continue;
		size_t from = r->pool.bytes;
		render_piece(r, &t, &d->pieces[id]);
		if (r->pool.bytes - from > UINT16_MAX || r->pool.bytes > UINT32_MAX / 2)
			return err_set(em, ERR_UNSUPPORTED, "token %u decodes to more than %d bytes", id, UINT16_MAX);
	}
	if (!buf_reserve(&r->pool, POOL_SLACK))
		return ERR_NO_MEMORY;
	memset(r->pool.data + r->pool.bytes, 0, POOL_SLACK);
	return ERR_OK;
}

static enum err load_pieces(struct decoder *d, const struct vocab *vocab, struct err_msg *em)
{
	struct renderer r = {.decoder = d};
	d->pieces = calloc(vocab->count + 1, sizeof(*d->pieces));
	if (d->pieces == NULL)
		return ERR_NO_MEMORY;
	enum err e = render_vocab(d, &r, vocab, em);
	if (e == ERR_OK)
		d->pool = r.pool.data;
	else
		buf_fini(&r.pool);
	fini_work(r.work);
	buf_fini(&r.text);
	return e;
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
		decoder_release(d);
	return e;
}

void decoder_release(struct decoder *d)
{
	for (u32 i = 0; i < d->count; i++)
		decode_step_fini(&d->steps[i]);
	free(d->pieces);
	free(d->pool);
	*d = (struct decoder){0};
}
