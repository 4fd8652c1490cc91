/* What a program asks of a libtercet handle about requests: submitting them, with all that a request can have wrong, ending and
 * adopting them. Runs in the client's thread; owns nothing, the requests being the handle's. Never blocks. */
#include "client/libtercet_priv.h"

#include <string.h>

#include "common/assert.h"
#include "common/clock.h"
#include "common/grammar_kind.h"

enum {
	/* What fits into a frame beside the largest lists and all scalars. */
	SUBMIT_BYTES_MAX = 4 * (STOP_IDS_MAX + 2 * BIAS_MAX + STOP_STRINGS_MAX) + STOP_STRING_BYTES_MAX + 1024,
	TOKENS_MAX = (IPC_FRAME_BYTES_MAX - SUBMIT_BYTES_MAX) / 4,
};
_Static_assert((u32)TOKENS_MAX < (u32)IPC_TOKENS_MAX, "the frame is what limits a request");

static enum err check_lists(const struct tercet_request *q, struct err_msg *em)
{
	size_t bytes = 0;
	bool goes_on = q->session && !(q->session_flags & TERCET_SESSION_BEGIN);
	if ((!q->token_count && !goes_on) || (q->token_count && !q->tokens))
		return err_set(em, ERR_INVALID, "the request has no tokens");
	u32 tokens_max = TOKENS_MAX - (q->grammar_bytes + 3) / 4;
	if (q->token_count > tokens_max)
		return err_set(em, ERR_TOO_LONG, "%u tokens, at most %u are possible in one request", q->token_count,
			       tokens_max);
	if (q->stop_id_count > STOP_IDS_MAX)
		return err_set(em, ERR_INVALID, "%u stop ids, at most %d are possible", q->stop_id_count, STOP_IDS_MAX);
	if (q->bias_count > BIAS_MAX)
		return err_set(em, ERR_INVALID, "%u biased tokens, at most %d are possible", q->bias_count, BIAS_MAX);
	if (q->stop_string_count > STOP_STRINGS_MAX)
		return err_set(em, ERR_INVALID, "%u stop strings, at most %d are possible", q->stop_string_count,
			       STOP_STRINGS_MAX);
	for (u32 i = 0; i < q->stop_string_count; i++) {
		if (!q->stop_strings[i][0])
			return err_set(em, ERR_INVALID, "stop string %u is empty", i);
		bytes += strlen(q->stop_strings[i]);
	}
	if (bytes > STOP_STRING_BYTES_MAX)
		return err_set(em, ERR_INVALID, "stop strings of %zu bytes together, at most %d are possible", bytes,
			       STOP_STRING_BYTES_MAX);
	return ERR_OK;
}

static enum err check_session(const struct tercet_request *q, struct err_msg *em)
{
	const u32 flags = TERCET_SESSION_BEGIN | TERCET_SESSION_STEP | TERCET_SESSION_END;
	if (!q->session)
		return q->session_flags || q->session_step || q->session_join
			       ? err_set(em, ERR_INVALID, "fields of a session are set, but there is no session")
			       : ERR_OK;
	if (!tercet_session_name_ok(q->session))
		return err_set(em, ERR_INVALID, "the session's name must be 1 to %d letters, digits and \"._:-\"",
			       SESSION_NAME_MAX);
	if (q->session_flags & ~flags)
		return err_set(em, ERR_INVALID, "session_flags is %u; known are bits up to %u", q->session_flags, flags);
	if (q->session_join > q->token_count)
		return err_set(em, ERR_INVALID, "session_join is %u, but there are only %u tokens", q->session_join,
			       q->token_count);
	return ERR_OK;
}

static enum err check_grammar(const struct tercet_request *q, struct err_msg *em)
{
	bool has_source = q->grammar_kind != TERCET_GRAMMAR_NONE && q->grammar_kind != TERCET_GRAMMAR_JSON_OBJECT;
	if ((u32)q->grammar_kind >= GRAMMAR_KIND_COUNT)
		return err_set(em, ERR_INVALID, "grammar_kind is %u; it must be 0 to %u", (u32)q->grammar_kind,
			       (u32)GRAMMAR_KIND_COUNT - 1);
	if (q->grammar_flags & ~(u32)GRAMMAR_FLAGS_ALL)
		return err_set(em, ERR_INVALID, "grammar_flags is %u; known are bits up to %u", q->grammar_flags,
			       (u32)GRAMMAR_FLAGS_ALL);
	if ((q->grammar_bytes && !q->grammar) || has_source != (q->grammar_bytes > 0))
		return err_set(em, ERR_INVALID, "grammar_kind is %u and its source has %u bytes; %s", (u32)q->grammar_kind,
			       q->grammar_bytes, has_source ? "it needs one" : "there must be none");
	if (q->grammar_bytes > GRAMMAR_SOURCE_MAX)
		return err_set(em, ERR_TOO_LONG, "the grammar has %u bytes, at most %d are possible", q->grammar_bytes,
			       GRAMMAR_SOURCE_MAX);
	return ERR_OK;
}

static enum err check_request(const struct tercet_request *q, struct err_msg *em)
{
	struct sampling_params p;
#define COPY_PARAM(A, type, name, def, min, max) p.name = q->params.name;
	SAMPLING_TABLE(COPY_PARAM, 0)
#undef COPY_PARAM
	enum err e = sampling_params_check(&p, em);
	if (e == ERR_OK)
		e = check_session(q, em);
	if (e == ERR_OK && q->answer_count > (p.beam_width ? p.beam_width : 1))
		return err_set(em, ERR_INVALID, "answer_count is %u; it must be at most %u, the beams of the search",
			       q->answer_count, p.beam_width ? p.beam_width : 1);
	if (e == ERR_OK)
		e = check_grammar(q, em);
	if (e == ERR_OK && q->lora && strlen(q->lora) > IPC_NAME_MAX)
		return err_set(em, ERR_TOO_LONG, "the adapter's name has %zu bytes, at most %d are possible", strlen(q->lora),
			       IPC_NAME_MAX);
	return e == ERR_OK ? check_lists(q, em) : e;
}

/* The first of `count` ids in a row. */
static u64 free_req_id(struct tercet *t, u32 count)
{
	u64 first = t->next_req_id + 1;
	for (u32 i = 0; i < count; i++) {
		if (!tercet_held_find(&t->requests, first + i))
			continue;
		first += i + 1;
		i = UINT32_MAX; /* from the beginning */
	}
	t->next_req_id = first + count - 1;
	return first;
}

enum tercet_result tercet_submit(struct tercet *t, const struct tercet_request *request, uint64_t *req_id,
				 struct tercet_error *error)
{
	struct held_request *r;
	struct err_msg *em = message_of(error);
	enum err e = check_request(request, em);
	if (e != ERR_OK)
		return (enum tercet_result)e;
	u64 id = request->req_id ? request->req_id : free_req_id(t, request->answer_count ? request->answer_count : 1);
	e = tercet_held_add(&t->requests, request, id, t->client_id, &r);
	if (e == ERR_BUSY)
		(void)err_set(em, e, "%u requests are unfinished, more are not possible", t->requests.count);
	else if (e == ERR_EXISTS)
		(void)err_set(em, e, "a request with id %llu, or of an answer behind it, is unfinished",
			      (unsigned long long)id);
	else if (e != ERR_OK)
		(void)err_set(em, e, "no memory for the request");
	if (e != ERR_OK)
		return (enum tercet_result)e;
	if (req_id)
		*req_id = id;
	tercet_handle_send_due(t, clock_now_ns());
	tercet_handle_sent(t);
	return TERCET_OK;
}

/* A search ends as a whole. */
enum tercet_result tercet_abort(struct tercet *t, uint64_t req_id)
{
	struct held_request *r = tercet_held_find(&t->requests, req_id);
	if (!r || r->over)
		return TERCET_NOT_FOUND;
	if (r->aborted || r->failed)
		return TERCET_OK;
	struct held_request *first = tercet_held_first(&t->requests, r);
	bool lost = first->again && tercet_held_leaves_history(first); /* its session may know of its beginning alone */
	bool unheard = first->state == REQUEST_DUE && !lost; /* the engine has never heard of it, or does not any more */
	for (r = tercet_held_next_answer(&t->requests, first, NULL); r;
	     r = tercet_held_next_answer(&t->requests, first, r)) {
		r->aborted = true;
		if (unheard)
			tercet_held_set_failed(&t->requests, r);
	}
	if (!unheard) {
		tercet_held_set_abort_due(&t->requests, first, true);
		tercet_handle_send_due(t, clock_now_ns());
		tercet_handle_sent(t);
	} else {
		tercet_handle_wake(t);
	}
	return TERCET_OK;
}

enum tercet_result tercet_discard(struct tercet *t, uint64_t req_id)
{
	struct held_request *r = tercet_held_find(&t->requests, req_id);
	if (!r || r->over)
		return TERCET_NOT_FOUND;
	r->discarded = true;
	r->user = NULL;
	return tercet_abort(t, req_id);
}

enum tercet_result tercet_adopt(struct tercet *t, uint64_t req_id, uint32_t token_count, uint32_t text_bytes,
				void *user)
{
	struct held_request *r;
	ASSERT(req_id != 0);
	return (enum tercet_result)tercet_held_adopt(&t->requests, req_id, token_count, text_bytes, user, &r);
}
