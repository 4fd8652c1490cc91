/* Owns the columns of one chunk; runs in the detokenizer. Never puts two errors with different texts into one
 * chunk: a chunk has one error text. */
#include "proc_detok/chunk_writer.h"

#include <string.h>

#include "common/assert.h"

void chunk_writer_fini(struct chunk_writer *w)
{
	u32_vec_fini(&w->tokens);
	buf_fini(&w->text);
	u32_vec_fini(&w->lp_token);
	u32_vec_fini(&w->lp_count);
	u32_vec_fini(&w->lp_rank);
	u32_vec_fini(&w->lp_ids);
	buf_fini(&w->lp_values);
	u32_vec_fini(&w->plp_entry);
	u32_vec_fini(&w->plp_position);
	u32_vec_fini(&w->plp_count);
	u32_vec_fini(&w->plp_rank);
	u32_vec_fini(&w->plp_ids);
	buf_fini(&w->plp_values);
	buf_fini(&w->error_text);
	w->rows = 0;
}

void chunk_writer_clear(struct chunk_writer *w)
{
	w->rows = 0;
	u32_vec_clear(&w->tokens);
	buf_clear(&w->text);
	u32_vec_clear(&w->lp_token);
	u32_vec_clear(&w->lp_count);
	u32_vec_clear(&w->lp_rank);
	u32_vec_clear(&w->lp_ids);
	buf_clear(&w->lp_values);
	u32_vec_clear(&w->plp_entry);
	u32_vec_clear(&w->plp_position);
	u32_vec_clear(&w->plp_count);
	u32_vec_clear(&w->plp_rank);
	u32_vec_clear(&w->plp_ids);
	buf_clear(&w->plp_values);
	buf_clear(&w->error_text);
}

static bool writer_ok(const struct chunk_writer *w)
{
	return buf_ok(&w->text) && buf_ok(&w->lp_values) && buf_ok(&w->plp_values) &&
	       buf_ok(&w->error_text) && !w->tokens.failed && !w->lp_token.failed && !w->lp_count.failed &&
	       !w->lp_rank.failed && !w->lp_ids.failed && !w->plp_entry.failed && !w->plp_position.failed &&
	       !w->plp_count.failed && !w->plp_rank.failed && !w->plp_ids.failed;
}

static size_t writer_bytes(const struct chunk_writer *w)
{
	size_t words = w->tokens.count + 3 * w->lp_token.count + w->lp_ids.count + 4 * w->plp_entry.count +
		       w->plp_ids.count;
	return w->rows * 42 + words * sizeof(u32) + w->text.bytes + w->lp_values.bytes + w->plp_values.bytes;
}

/* Prompt log-probabilities of the stream, as many as fit; their row is the one being written. */
static void prompt_move(struct chunk_writer *w, struct stream *s, size_t bytes_max)
{
	struct u32_vec *from = &s->pending.plp;
	size_t at = 0;

	while (at < from->count && w->plp_entry.count < IPC_PROMPT_LOGPROBS_MAX) {
		const u32 *r = from->data + at;
		u32 count = r[2];
		if (at > 0 && writer_bytes(w) > bytes_max)
			break;
		u32_vec_push(&w->plp_entry, w->rows);
		u32_vec_push(&w->plp_position, r[0]);
		u32_vec_push(&w->plp_rank, r[1]);
		u32_vec_push(&w->plp_count, count);
		u32_vec_append(&w->plp_ids, r + 3, count);
		buf_append(&w->plp_values, r + 3 + count, count * sizeof(f32));
		at += 3 + 2 * (size_t)count;
	}
	if (at > 0)
		memmove(from->data, from->data + at, (from->count - at) * sizeof(u32));
	from->count -= at;
}

static void logprobs_copy(struct chunk_writer *w, const u32 *r, const u32 *end)
{
	if (r == end)
		return;
	u32 count = r[1];
	u32_vec_push(&w->lp_token, (u32)w->tokens.count - 1);
	u32_vec_push(&w->lp_rank, r[0]);
	u32_vec_push(&w->lp_count, count);
	u32_vec_append(&w->lp_ids, r + 2, count);
	buf_append(&w->lp_values, r + 2 + count, count * sizeof(f32));
}

static void tokens_move(struct chunk_writer *w, struct pending *p, u32 count)
{
	const struct pending_token *t = pending_tokens(p);
	u32 lp = 0;

	for (u32 i = 0; i < count; i++) {
		u32_vec_push(&w->tokens, t[i].token);
		logprobs_copy(w, p->lp.data ? p->lp.data + lp : NULL,
			      p->lp.data ? p->lp.data + t[i].lp_end : NULL);
		lp = t[i].lp_end;
	}
	if (count > 0)
		buf_append(&w->text, p->text.data, t[count - 1].text_end);
	pending_consume(p, count);
}

/* Drops what the client holds already. */
static void base_skip(struct stream *s)
{
	struct pending *p = &s->pending;
	if (p->first >= s->base)
		return;
	u32 count = pending_ready(p, stream_held(s), SIZE_MAX);
	pending_consume(p, count < s->base - p->first ? count : s->base - p->first);
}

static bool error_fits(const struct chunk_writer *w, const struct stream *s)
{
	const struct buf *a = &w->error_text, *b = &s->error;
	if (s->finish != FINISH_ERROR || a->bytes == 0)
		return true;
	return a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0;
}

static void finish_write(struct chunk_writer *w, const struct stream *s)
{
	w->finish[w->rows] = s->finish;
	w->stop_kind[w->rows] = s->stop_kind;
	w->stop_value[w->rows] = s->stop_value;
	if (s->finish == FINISH_ERROR && w->error_text.bytes == 0) {
		size_t bytes = s->error.bytes < IPC_ERROR_TEXT_MAX ? s->error.bytes : IPC_ERROR_TEXT_MAX;
		if (bytes > 0)
			buf_append(&w->error_text, s->error.data, bytes);
	}
}

enum chunk_added chunk_writer_add(struct chunk_writer *w, struct stream *s, size_t bytes_max)
{
	struct pending *p = &s->pending;

	if (s->state == STREAM_HELD)
		return CHUNK_NOTHING;
	base_skip(s);
	size_t used = writer_bytes(w);
	bool ended = s->state == STREAM_ENDED;
	u32 ready = pending_ready(p, stream_held(s), SIZE_MAX);
	if (ready == 0 && p->plp.count == 0 && !ended)
		return CHUNK_NOTHING;
	if (w->rows == IPC_ROWS_MAX || (w->rows > 0 && used >= bytes_max) || !error_fits(w, s))
		return CHUNK_PART;

	u32 row = w->rows;
	w->req_id[row] = s->req_id;
	w->prompt_count[row] = s->prompt_count;
	w->cached_count[row] = s->cached_count;
	/* tokens leave from `base` on; an entry without any stands there, too, while those in front are on the way */
	w->first_token[row] = p->first > s->base ? p->first : s->base;
	w->finish[row] = FINISH_NONE;
	w->stop_kind[row] = STOP_KIND_NONE;
	w->stop_value[row] = 0;
	prompt_move(w, s, bytes_max);

	size_t text_before = w->text.bytes;
	u32 count = pending_ready(p, stream_held(s), used < bytes_max ? bytes_max - used : 0);
	count = pending_alike(p, count);
	tokens_move(w, p, count);
	w->token_count[row] = count;
	w->text_bytes[row] = (u32)(w->text.bytes - text_before);

	bool all = count == ready && p->plp.count == 0;
	if (ended && all)
		finish_write(w, s);
	w->rows++;
	/* Out of memory here would lose what has left the streams. A restarted detokenizer loses nothing. */
	ASSERT(writer_ok(w));
	return all ? CHUNK_ALL : CHUNK_PART;
}

void chunk_writer_message(const struct chunk_writer *w, u64 client_id, struct ipc_chunk *out)
{
	*out = (struct ipc_chunk){.client_id = client_id};
#define COLUMN(field, values, count)         \
	out->field = (const void *)(values); \
	out->field##_count = (u32)(count);
	COLUMN(req_id, w->req_id, w->rows)
	COLUMN(first_token, w->first_token, w->rows)
	COLUMN(token_count, w->token_count, w->rows)
	COLUMN(text_bytes, w->text_bytes, w->rows)
	COLUMN(prompt_count, w->prompt_count, w->rows)
	COLUMN(cached_count, w->cached_count, w->rows)
	COLUMN(finish, w->finish, w->rows)
	COLUMN(stop_kind, w->stop_kind, w->rows)
	COLUMN(stop_value, w->stop_value, w->rows)
	COLUMN(tokens, w->tokens.data, w->tokens.count)
	COLUMN(text, w->text.data, w->text.bytes)
	COLUMN(lp_token, w->lp_token.data, w->lp_token.count)
	COLUMN(lp_count, w->lp_count.data, w->lp_count.count)
	COLUMN(lp_rank, w->lp_rank.data, w->lp_rank.count)
	COLUMN(lp_ids, w->lp_ids.data, w->lp_ids.count)
	COLUMN(lp_values, w->lp_values.data, w->lp_values.bytes / sizeof(f32))
	COLUMN(plp_entry, w->plp_entry.data, w->plp_entry.count)
	COLUMN(plp_position, w->plp_position.data, w->plp_position.count)
	COLUMN(plp_count, w->plp_count.data, w->plp_count.count)
	COLUMN(plp_rank, w->plp_rank.data, w->plp_rank.count)
	COLUMN(plp_ids, w->plp_ids.data, w->plp_ids.count)
	COLUMN(plp_values, w->plp_values.data, w->plp_values.bytes / sizeof(f32))
	COLUMN(error_text, w->error_text.data, w->error_text.bytes)
#undef COLUMN
}
