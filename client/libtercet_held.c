/* The unfinished requests of a libtercet handle: copies of what was submitted, what was generated so far, and the
 * order of submission. Runs in the client's thread; owns every request. Never sends. */
#include "client/libtercet_priv.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/clock.h"

enum err tercet_held_init(struct held_requests *rs, u32 capacity)
{
	*rs = (struct held_requests){.capacity = capacity, .head = REQUEST_NONE, .tail = REQUEST_NONE};
	rs->slots = calloc(capacity, sizeof(*rs->slots));
	if (!rs->slots || map_init(&rs->by_id, capacity, clock_now_ns()) != ERR_OK) {
		tercet_held_fini(rs);
		return ERR_NO_MEMORY;
	}
	for (u32 i = 0; i < capacity; i++)
		rs->slots[i].next = i + 1 < capacity ? i + 1 : REQUEST_NONE;
	return ERR_OK;
}

static void free_content(struct held_request *r)
{
	free(r->store);
	u32_vec_fini(&r->tokens);
}

void tercet_held_fini(struct held_requests *rs)
{
	for (u32 i = 0; rs->slots && i < rs->capacity; i++)
		if (rs->slots[i].state != REQUEST_FREE)
			free_content(&rs->slots[i]);
	free(rs->slots);
	map_fini(&rs->by_id);
	*rs = (struct held_requests){.head = REQUEST_NONE, .tail = REQUEST_NONE, .free_head = REQUEST_NONE};
}

/* ---------------------------------------------------------------- adding and removing */

static enum err take_slot(struct held_requests *rs, u64 req_id, struct held_request **out)
{
	if (map_get(&rs->by_id, req_id, NULL))
		return ERR_EXISTS;
	u32 index = rs->free_head;
	if (index == REQUEST_NONE)
		return ERR_BUSY;
	enum err e = map_put(&rs->by_id, req_id, index);
	if (e != ERR_OK)
		return e;
	struct held_request *r = &rs->slots[index];
	rs->free_head = r->next;
	*r = (struct held_request){.state = REQUEST_SENT, .req_id = req_id, .first_id = req_id, .previous = rs->tail, .next = REQUEST_NONE};
	if (rs->tail != REQUEST_NONE)
		rs->slots[rs->tail].next = index;
	else
		rs->head = index;
	rs->tail = index;
	rs->count++;
	*out = r;
	return ERR_OK;
}

static void give_slot_back(struct held_requests *rs, struct held_request *r)
{
	u32 index = (u32)(r - rs->slots);
	tercet_held_set_abort_due(rs, r, false);
	if (r->answer == 0)
		tercet_held_set_state(rs, r, REQUEST_ACCEPTED); /* no longer counted as due */
	rs->failed_count -= r->failed;
	rs->over_count -= r->over;
	map_remove(&rs->by_id, r->req_id);
	if (r->previous != REQUEST_NONE)
		rs->slots[r->previous].next = r->next;
	else
		rs->head = r->next;
	if (r->next != REQUEST_NONE)
		rs->slots[r->next].previous = r->previous;
	else
		rs->tail = r->previous;
	free_content(r);
	*r = (struct held_request){.state = REQUEST_FREE, .next = rs->free_head};
	rs->free_head = index;
	rs->count--;
}

void tercet_held_remove(struct held_requests *rs, struct held_request *r)
{
	ASSERT(r->state != REQUEST_FREE && !r->over);
	if (r->others) { /* the others need what it was submitted with */
		rs->failed_count -= r->failed;
		r->failed = false;
		r->over = true;
		rs->over_count++;
		return;
	}
	struct held_request *first = tercet_held_first(rs, r);
	bool last = first != r && --first->others == 0 && first->over;
	give_slot_back(rs, r);
	if (last)
		give_slot_back(rs, first);
}

struct held_request *tercet_held_first(struct held_requests *rs, struct held_request *r)
{
	return r->answer ? tercet_held_find(rs, r->first_id) : r;
}

struct held_request *tercet_held_next_answer(struct held_requests *rs, struct held_request *first,
					     const struct held_request *r)
{
	u32 count = first->submit.answer_count;
	if (!r && !first->over)
		return first;
	for (u32 i = r ? r->answer + 1 : 1; i < count; i++) {
		struct held_request *a = tercet_held_find(rs, first->req_id + i);
		if (a && a->answer == i && a->first_id == first->req_id)
			return a;
	}
	return NULL;
}

static char *put(char **at, const void *data, size_t bytes)
{
	char *to = *at;
	if (bytes)
		memcpy(to, data, bytes);
	*at += bytes;
	return to;
}

/* Everything but the tokens goes into one block: 4-byte elements first, then the text. */
static bool copy_lists(struct held_request *r, const struct tercet_request *q)
{
	size_t bytes = 4 * ((size_t)q->stop_id_count + 2 * (size_t)q->bias_count + q->stop_string_count);
	for (u32 i = 0; i < q->stop_string_count; i++)
		bytes += strlen(q->stop_strings[i]);
	u32 session_bytes = q->session ? (u32)strlen(q->session) : 0;
	u32 lora_bytes = q->lora ? (u32)strlen(q->lora) : 0;
	bytes += session_bytes + q->grammar_bytes + lora_bytes;
	r->store = malloc(bytes ? bytes : 1);
	if (!r->store)
		return false;
	char *at = r->store;
	struct ipc_submit *m = &r->submit;
	m->stop_ids = (const u32 *)put(&at, q->stop_ids, 4 * (size_t)q->stop_id_count);
	m->stop_ids_count = q->stop_id_count;
	m->bias_ids = (const u32 *)put(&at, q->bias_ids, 4 * (size_t)q->bias_count);
	m->bias_ids_count = q->bias_count;
	m->bias_values = (const f32 *)put(&at, q->bias_values, 4 * (size_t)q->bias_count);
	m->bias_values_count = q->bias_count;
	m->stop_string_bytes = (const u32 *)at;
	m->stop_string_bytes_count = q->stop_string_count;
	for (u32 i = 0; i < q->stop_string_count; i++) {
		u32 length = (u32)strlen(q->stop_strings[i]);
		put(&at, &length, sizeof(length));
	}
	m->stop_strings = (const u8 *)at;
	for (u32 i = 0; i < q->stop_string_count; i++)
		put(&at, q->stop_strings[i], strlen(q->stop_strings[i]));
	m->stop_strings_count = (u32)((const u8 *)at - m->stop_strings);
	m->session = (const u8 *)put(&at, q->session, session_bytes);
	m->session_count = session_bytes;
	m->grammar_kind = q->grammar_kind;
	m->grammar_flags = q->grammar_flags;
	m->grammar = (const u8 *)put(&at, q->grammar, q->grammar_bytes);
	m->grammar_count = q->grammar_bytes;
	m->lora = (const u8 *)put(&at, q->lora, lora_bytes);
	m->lora_count = lora_bytes;
	return true;
}

/* The answers of a search behind the first one. After an error there are none. */
static enum err add_answers(struct held_requests *rs, struct held_request *first)
{
	struct held_request *r;
	enum err e = ERR_OK;
	for (u32 i = 1; e == ERR_OK && i < first->submit.answer_count; i++) {
		e = take_slot(rs, first->req_id + i, &r);
		if (e != ERR_OK)
			break;
		r->first_id = first->req_id;
		r->answer = i;
		r->user = first->user;
		r->prompt_count = first->prompt_count;
		first->others++;
	}
	while (e != ERR_OK && first->others)
		tercet_held_remove(rs, tercet_held_find(rs, first->req_id + first->others));
	return e;
}

enum err tercet_held_add(struct held_requests *rs, const struct tercet_request *q, u64 req_id, u64 client_id,
		      struct held_request **out)
{
	struct held_request *r;
	enum err e = take_slot(rs, req_id, &r);
	if (e != ERR_OK)
		return e;
	r->user = q->user;
	r->prompt_count = q->token_count;
	r->submit = (struct ipc_submit){.client_id = client_id, .req_id = req_id, .cache_salt = q->cache_salt,
					.priority = q->priority,
					.session_owner = q->session_owner,
					.session_flags = q->session_flags,
					.session_step = q->session_step,
					.session_join = q->session_join,
					.answer_count = q->answer_count ? q->answer_count : 1,
					.length_penalty = q->length_penalty};
#define COPY_PARAM(A, type, name, def, min, max) r->submit.name = q->params.name;
	SAMPLING_TABLE(COPY_PARAM, 0)
#undef COPY_PARAM
	u32_vec_append(&r->tokens, q->tokens, q->token_count);
	if (!copy_lists(r, q) || r->tokens.failed) {
		tercet_held_remove(rs, r);
		return ERR_NO_MEMORY;
	}
	e = add_answers(rs, r);
	if (e != ERR_OK) {
		tercet_held_remove(rs, r);
		return e;
	}
	tercet_held_set_state(rs, r, REQUEST_DUE);
	*out = r;
	return ERR_OK;
}

enum err tercet_held_adopt(struct held_requests *rs, u64 req_id, u32 token_count, u64 text_bytes, void *user,
			struct held_request **out)
{
	struct held_request *r;
	enum err e = take_slot(rs, req_id, &r);
	if (e != ERR_OK)
		return e;
	tercet_held_set_state(rs, r, REQUEST_ACCEPTED);
	r->adopted = true;
	r->user = user;
	r->output_count = token_count;
	r->text_bytes = text_bytes;
	tercet_held_mark(r);
	*out = r;
	return ERR_OK;
}

struct held_request *tercet_held_find(struct held_requests *rs, u64 req_id)
{
	u32 index;
	return map_get(&rs->by_id, req_id, &index) ? &rs->slots[index] : NULL;
}

struct held_request *tercet_held_next(struct held_requests *rs, struct held_request *r)
{
	u32 index = r ? r->next : rs->head;
	return index == REQUEST_NONE ? NULL : &rs->slots[index];
}

/* ---------------------------------------------------------------- states */

void tercet_held_set_state(struct held_requests *rs, struct held_request *r, enum request_state state)
{
	ASSERT(state != REQUEST_FREE && r->answer == 0);
	rs->due_count += (state == REQUEST_DUE) - (r->state == REQUEST_DUE);
	r->state = state;
	for (struct held_request *a = r; r->others && a;) {
		a->state = state;
		a = tercet_held_next_answer(rs, r, a);
	}
}

void tercet_held_set_abort_due(struct held_requests *rs, struct held_request *r, bool due)
{
	rs->due_count += due - r->abort_due;
	r->abort_due = due;
}

bool tercet_held_leaves_history(const struct held_request *r)
{
	return !r->adopted && r->submit.session_count && !(r->submit.session_flags & SESSION_END);
}

void tercet_held_set_failed(struct held_requests *rs, struct held_request *r)
{
	if (r->over)
		return;
	rs->failed_count += !r->failed;
	r->failed = true;
}

/* ---------------------------------------------------------------- output */

static void push_mark(struct held_request *r, u32 tokens, u64 text_bytes)
{
	for (u32 i = 0; i < r->mark_count; i++)
		if (r->marks[i].tokens == tokens)
			return;
	if (r->mark_count == MARKS_MAX) {
		memmove(r->marks, r->marks + 1, (MARKS_MAX - 1) * sizeof(r->marks[0]));
		r->mark_count--;
	}
	r->marks[r->mark_count++] = (struct output_mark){tokens, text_bytes};
}

void tercet_held_mark(struct held_request *r)
{
	if (r->answer || r->submit.beam_width) /* a search begins anew, and so do its answers */
		push_mark(r, 0, 0);
	push_mark(r, r->output_count, r->text_bytes);
}

/* Where in the text the entry that begins with output `first_token` begins. */
static bool find_begin(const struct held_request *r, u32 first_token, u64 *text_begin)
{
	if (first_token == r->output_count) {
		*text_begin = r->text_bytes;
		return true;
	}
	for (u32 i = 0; i < r->mark_count; i++) {
		if (r->marks[i].tokens != first_token)
			continue;
		*text_begin = r->marks[i].text_bytes;
		return true;
	}
	return false;
}

/* Sampling depends on seed and position alone, so a repeated stretch has the same tokens and the same text; only the
 * cuts between entries differ. */
bool tercet_held_take_output(struct held_request *r, u32 first_token, const u32 *tokens, u32 token_count,
			     u32 text_bytes, struct output_part *part)
{
	u64 text_begin;
	*part = (struct output_part){0};
	if (!find_begin(r, first_token, &text_begin))
		return false;
	u32 known_tokens = r->output_count - first_token;
	u64 known_bytes = r->text_bytes - text_begin;
	part->skip_tokens = known_tokens < token_count ? known_tokens : token_count;
	part->skip_bytes = known_bytes < text_bytes ? (u32)known_bytes : text_bytes;
	/* a search begins anew with its prompt; a part of no tokens may have no array */
	if (!r->adopted && !r->submit.beam_width && r->answer == 0 && part->skip_tokens < token_count)
		u32_vec_append(&r->tokens, tokens + part->skip_tokens, token_count - part->skip_tokens);
	r->output_count += token_count - part->skip_tokens;
	r->text_bytes += text_bytes - part->skip_bytes;
	if (r->mark_count)
		push_mark(r, first_token + token_count, text_begin + text_bytes);
	return true;
}

void tercet_held_take_prompt(struct held_request *r, struct tercet_logprobs *lp)
{
	u32 known = 0, ids = 0;

	while (known < lp->count && lp->positions[known] < r->prompt_next)
		ids += lp->counts[known++];
	if (lp->count)
		r->prompt_next = lp->positions[lp->count - 1] >= r->prompt_next ? lp->positions[lp->count - 1] + 1
										: r->prompt_next;
	if (known == 0)
		return;
	*lp = (struct tercet_logprobs){.count = lp->count - known,
				       .positions = lp->positions + known,
				       .counts = lp->counts + known,
				       .ranks = lp->ranks + known,
				       .ids = lp->ids + ids,
				       .values = lp->values + ids};
}
