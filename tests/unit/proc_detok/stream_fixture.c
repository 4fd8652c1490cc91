#include "stream_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "common/finish.h"
#include "common/utf8.h"

const char *fixture_words[WORDS_MAX];

/* ---------------------------------------------------------------- a small tokenizer in the place of the real
 * one */

static void token_bytes(const struct text_stream *s, u32 token, struct buf *out)
{
	if (token < 256)
		buf_append_char(out, (char)token);
	else if (token == TOK_SPECIAL || token == TOK_EOS)
		buf_append_str(out, s->skip_special ? "" : token == TOK_EOS ? "</s>" : "<s>");
	else if (token - TOK_WORDS < WORDS_MAX && fixture_words[token - TOK_WORDS])
		buf_append_str(out, fixture_words[token - TOK_WORDS]);
}

void text_stream_init(struct text_stream *s, const struct tokenizer *t, bool skip_special, const u32 *tail,
		      size_t tail_count)
{
	(void)tail;
	(void)tail_count;
	*s = (struct text_stream){.tokenizer = t, .skip_special = skip_special};
}

void text_stream_push(struct text_stream *s, u32 token, struct buf *out)
{
	struct buf bytes = {0};
	buf_append(&bytes, s->pending, s->pending_count);
	token_bytes(s, token, &bytes);
	s->pending_count = 0;
	size_t at = 0;
	while (at < bytes.bytes) {
		u32 code;
		int n = utf8_next(bytes.data + at, bytes.bytes - at, &code);
		if (n == 0) {
			s->pending_count = (u8)(bytes.bytes - at);
			memcpy(s->pending, bytes.data + at, s->pending_count);
			break;
		}
		if (n > 0)
			buf_append(out, bytes.data + at, (size_t)n);
		else
			buf_append_str(out, "\xef\xbf\xbd");
		at += (size_t)abs(n);
	}
	buf_fini(&bytes);
}

void text_stream_end(struct text_stream *s, struct buf *out)
{
	if (s->pending_count > 0)
		buf_append_str(out, "\xef\xbf\xbd");
	s->pending_count = 0;
}

void text_stream_fini(struct text_stream *s)
{
	s->pending_count = 0;
}

/* ---------------------------------------------------------------- the client's side */

struct request_view *view_request(struct client_view *v, u64 req_id)
{
	for (u32 i = 0; i < v->count; i++)
		if (v->requests[i].req_id == req_id)
			return &v->requests[i];
	cr_assert_lt(v->count, 64);
	v->requests[v->count].req_id = req_id;
	v->requests[v->count].plp_next = 1;
	return &v->requests[v->count++];
}

static void view_logprobs(struct client_view *v, const struct ipc_chunk *c, u32 row, u32 token_begin)
{
	struct request_view *r = view_request(v, c->req_id[row]);
	u32 at = 0;
	cr_assert_eq(c->lp_count_count, c->lp_token_count);
	cr_assert_eq(c->lp_rank_count, c->lp_token_count);
	for (u32 i = 0; i < c->lp_token_count; at += c->lp_count[i++]) {
		if (c->lp_token[i] < token_begin || c->lp_token[i] >= token_begin + c->token_count[row])
			continue;
		cr_assert_lt(r->lp_count, 64);
		cr_assert_eq(c->lp_ids[at], c->tokens[c->lp_token[i]]);
		r->lp_tokens[r->lp_count] = c->first_token[row] + c->lp_token[i] - token_begin;
		r->lp_first[r->lp_count] = c->lp_values[at];
		r->lp_rank[r->lp_count] = c->lp_rank[i];
		r->lp_listed[r->lp_count++] = c->lp_count[i];
	}
	cr_assert_eq(at, c->lp_ids_count);
	cr_assert_eq(at, c->lp_values_count);
	for (u32 i = 0; i < c->plp_entry_count; i++) {
		if (c->plp_entry[i] != row)
			continue;
		cr_assert_eq(c->plp_position[i], r->plp_next++);
		r->plp_count++;
	}
}

void view_add(struct client_view *v, const struct ipc_chunk *c)
{
	u32 tokens = 0, text = 0;
	v->chunks++;
	for (u32 i = 0; i < c->req_id_count; i++) {
		struct request_view *r = view_request(v, c->req_id[i]);
		if (v->skip_ended && r->finishes > 0) {
			tokens += c->token_count[i];
			text += c->text_bytes[i];
			continue;
		}
		cr_assert_eq(r->finishes, 0, "news behind the end");
		if (r->entries == 0)
			r->token_count = c->first_token[i];
		cr_assert_eq(c->first_token[i], r->token_count, "gap or repeat: %u instead of %u",
			     c->first_token[i], r->token_count);
		cr_assert(utf8_valid((const char *)c->text + text, c->text_bytes[i]));
		view_logprobs(v, c, i, tokens);
		cr_assert_leq(r->token_count + c->token_count[i], 4096);
		if (c->token_count[i] > 0)
			memcpy(r->tokens + r->token_count, c->tokens + tokens,
			       c->token_count[i] * sizeof(u32));
		if (c->text_bytes[i] > 0)
			memcpy(r->text + r->text_bytes, c->text + text, c->text_bytes[i]);
		r->token_count += c->token_count[i];
		r->text_bytes += c->text_bytes[i];
		r->text[r->text_bytes] = 0;
		r->entries++;
		tokens += c->token_count[i];
		text += c->text_bytes[i];
		if (c->finish[i] == 0)
			continue;
		r->finish = c->finish[i];
		r->finishes++;
		r->stop_kind = c->stop_kind[i];
		r->stop_value = c->stop_value[i];
		if (c->finish[i] == FINISH_ERROR)
			snprintf(r->error, sizeof(r->error), "%.*s", (int)c->error_text_count,
				 (const char *)c->error_text);
	}
	cr_assert_eq(tokens, c->tokens_count);
	cr_assert_eq(text, c->text_count);
}

void view_drain(struct client_view *v, struct streams *ss)
{
	struct ipc_chunk chunk;
	while (streams_next_chunk(ss, &chunk))
		view_add(v, &chunk);
}

/* ---------------------------------------------------------------- the engine's side */

struct streams *fixture_streams(u32 streams_max)
{
	struct streams_config config = {
		.streams_max = streams_max,
		.clients_max = 8,
		.early_max = 64,
		.secret = 99,
		.orphan_ns = 1000,
		.early_ns = 1000,
		.close_ns = 1000,
	};
	struct streams *ss;
	cr_assert_eq(streams_create(&ss, &config), ERR_OK);
	return ss;
}

void fixture_ready(struct streams *ss, u64 client_id)
{
	struct ipc_attach attach = {.client_id = client_id};
	cr_assert_eq(streams_client_ready(ss, &attach), ERR_OK);
}

struct ipc_open fixture_open(u64 seq, u64 client_id, u64 req_id)
{
	static const u32 eos[] = {TOK_EOS};
	return (struct ipc_open){
		.seq = seq,
		.client_id = client_id,
		.req_id = req_id,
		.prompt_count = 5,
		.output_max = 4000,
		.flags = SAMPLING_SKIP_SPECIAL,
		.eos_ids = eos,
		.eos_ids_count = 1,
	};
}

void fixture_stops(struct ipc_open *open, struct stop_list *list, const char *const *stops, u32 count)
{
	u32 at = 0;
	for (u32 i = 0; i < count; i++) {
		list->lengths[i] = (u32)strlen(stops[i]);
		memcpy(list->text + at, stops[i], list->lengths[i]);
		at += list->lengths[i];
	}
	open->stop_string_bytes = list->lengths;
	open->stop_string_bytes_count = count;
	open->stop_strings = list->text;
	open->stop_strings_count = at;
}

void fixture_push(struct streams *ss, u64 seq, u32 position, u32 token)
{
	struct ipc_result r = {
		.seq = &seq,
		.seq_count = 1,
		.position = &position,
		.position_count = 1,
		.token = &token,
		.token_count = 1,
	};
	streams_result(ss, &r, 1, 0);
}

u32 fixture_push_text(struct streams *ss, u64 seq, u32 position, const char *text)
{
	for (; *text; text++)
		fixture_push(ss, seq, position++, (u8)*text);
	return position;
}
