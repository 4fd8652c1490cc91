/* Owns the histories of all sessions; runs inside the scheduling core. Never allocates after create, never decides
 * what a request may do with a session (session_turns.c), never does I/O (session_journal.c listens to its sink). */
#include "proc_scheduler/sessions.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/assert.h"
#include "common/region.h"
#include "common/step_digest.h"

/* ---------------------------------------------------------------- life */

static size_t token_bytes(const struct sessions *ss)
{
	return (size_t)ss->chunk_count * SESSION_CHUNK_TOKENS * sizeof(u32);
}

static void link_free(struct sessions *ss)
{
	for (u32 i = 0; i < ss->config.session_max; i++)
		ss->slots[i].next = i + 1 < ss->config.session_max ? i + 1 : SESSION_NONE;
	for (u32 i = 0; i < ss->chunk_count; i++)
		ss->next_chunk[i] = i + 1 < ss->chunk_count ? i + 1 : SESSION_NONE;
	ss->free_slot = ss->free_chunk = 0;
	ss->free_chunks = ss->chunk_count;
	ss->idle = ss->over = (struct session_list){SESSION_NONE, SESSION_NONE};
}

enum err sessions_create(struct sessions **out, const struct sessions_config *config, struct err_msg *em)
{
	struct sessions *ss = calloc(1, sizeof(*ss));

	*out = NULL;
	ASSERT(config->session_max > 0 && config->token_max > 0);
	if (!ss)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	ss->config = *config;
	ss->chunk_count = (config->token_max + SESSION_CHUNK_TOKENS - 1) / SESSION_CHUNK_TOKENS;
	ss->slots = calloc(config->session_max, sizeof(*ss->slots));
	ss->next_chunk = calloc(ss->chunk_count, sizeof(*ss->next_chunk));
	ss->tokens = region_reserve(token_bytes(ss));
	if (!ss->slots || !ss->next_chunk || !ss->tokens ||
	    map_init(&ss->by_key, config->session_max, config->secret)) {
		sessions_destroy(&ss);
		return region_refuse(em, "out of memory for the histories of %u sessions with %u tokens; lower --session-tokens",
				     config->session_max, config->token_max);
	}
	link_free(ss);
	*out = ss;
	return ERR_OK;
}

void sessions_destroy(struct sessions **out)
{
	struct sessions *ss = *out;

	if (!ss)
		return;
	region_release(ss->tokens, token_bytes(ss));
	map_fini(&ss->by_key);
	free(ss->next_chunk);
	free(ss->slots);
	free(ss);
	*out = NULL;
}

/* ---------------------------------------------------------------- names */

enum err session_name_check(const u8 *name, u32 bytes, struct err_msg *em)
{
	bool good = bytes > 0 && bytes <= SESSION_NAME_MAX;

	for (u32 i = 0; good && i < bytes; i++)
		good = name[i] && strchr(SESSION_NAME_ALLOWED, name[i]);
	if (good)
		return ERR_OK;
	return err_set(em, ERR_INVALID,
		       "the session's name has %u bytes; it must be 1 to %d letters, digits and \"._:-\"", bytes,
		       SESSION_NAME_MAX);
}

/* Two sessions with one key are as likely as a collision of a keyed 64-bit hash. Never 0. */
static u64 key_of(const struct sessions *ss, u64 owner, const void *name, u32 bytes)
{
	u64 seed = step_digest_mix(ss->config.secret ^ owner) + ss->config.secret;

	return XXH3_64bits_withSeed(name, bytes, seed) | 1;
}

struct session *sessions_find(const struct sessions *ss, u64 owner, const u8 *name, u32 bytes)
{
	u32 slot;

	if (!map_get(&ss->by_key, key_of(ss, owner, name, bytes), &slot))
		return NULL;
	struct session *s = &ss->slots[slot];
	return s->owner == owner && strlen(s->name) == bytes && !memcmp(s->name, name, bytes) ? s : NULL;
}

const struct session_gone *sessions_find_gone(const struct sessions *ss, u64 owner, const u8 *name, u32 bytes)
{
	u64 key = key_of(ss, owner, name, bytes);

	for (u32 i = 1; i <= SESSION_GONE_MAX; i++) {
		const struct session_gone *g = &ss->gone[(ss->gone_next - i) % SESSION_GONE_MAX];
		if (g->key == key)
			return g;
	}
	return NULL;
}

enum err sessions_missing(const struct sessions *ss, u64 owner, const u8 *name, u32 bytes, struct err_msg *em)
{
	static const char *const why[SESSION_END_COUNT] = {
		[SESSION_END_ASKED] = "was ended",
		[SESSION_END_EXPIRED] = "was not used for longer than --session-ttl and has been dropped",
		[SESSION_END_EVICTED] = "has been dropped: other sessions needed its room (--max-sessions, "
					"--session-tokens)",
		[SESSION_END_OUTGREW] = "has been dropped: its last turn did not fit into --session-tokens",
		[SESSION_END_EMPTY] = "is over: its first turn ended before the first token, or was lost with the "
				      "scheduler's end",
		[SESSION_END_DAMAGED] = "has been dropped: a part of it was lost with the disk's content",
	};
	const struct session_gone *g = sessions_find_gone(ss, owner, name, bytes);
	const struct session *s = sessions_find(ss, owner, name, bytes);
	bool over = s && session_is_over(s);

	if (over || g)
		return err_set(em, ERR_DROPPED, "session '%.*s' %s; begin it anew, with the whole conversation", (int)bytes,
			       (const char *)name, why[over ? SESSION_END_ASKED : g->why]);
	return err_set(em, ERR_NOT_FOUND,
		       "there is no session '%.*s'; begin it, with the whole conversation so far", (int)bytes,
		       (const char *)name);
}

/* ---------------------------------------------------------------- those that do not run, in order of last use */

static void unlink_session(struct sessions *ss, struct session *s)
{
	struct session_list *l = s->with_over ? &ss->over : &ss->idle;

	*(s->prev == SESSION_NONE ? &l->head : &ss->slots[s->prev].next) = s->next;
	*(s->next == SESSION_NONE ? &l->tail : &ss->slots[s->next].prev) = s->prev;
}

static void push_session(struct sessions *ss, struct session *s)
{
	u32 slot = sessions_slot(ss, s);
	struct session_list *l = session_is_over(s) ? &ss->over : &ss->idle;

	s->with_over = session_is_over(s);
	s->prev = l->tail;
	s->next = SESSION_NONE;
	*(s->prev == SESSION_NONE ? &l->head : &ss->slots[s->prev].next) = slot;
	l->tail = slot;
}

void sessions_touch(struct sessions *ss, struct session *s, i64 now_ns)
{
	s->used_ns = now_ns;
	if (s->running)
		return;
	unlink_session(ss, s);
	push_session(ss, s);
}

/* The first of a list that may leave for others, but not `spared`; SESSION_NONE: none. */
static u32 first_but(const struct sessions *ss, const struct session_list *l, const struct session *spared)
{
	return l->head != SESSION_NONE && &ss->slots[l->head] == spared ? spared->next : l->head;
}

/* One leaves for others; false: all run, or are spared. */
static bool evict(struct sessions *ss, const struct session *spared)
{
	u32 over = first_but(ss, &ss->over, spared), idle = first_but(ss, &ss->idle, spared);

	if (over != SESSION_NONE)
		sessions_drop(ss, &ss->slots[over], SESSION_END_ASKED);
	else if (idle != SESSION_NONE)
		sessions_drop(ss, &ss->slots[idle], SESSION_END_EVICTED);
	return over != SESSION_NONE || idle != SESSION_NONE;
}

/* ---------------------------------------------------------------- tokens */

static void give_chunks(struct sessions *ss, u32 chunk)
{
	while (chunk != SESSION_NONE) {
		u32 next = ss->next_chunk[chunk];
		ss->next_chunk[chunk] = ss->free_chunk;
		ss->free_chunk = chunk;
		ss->free_chunks++;
		chunk = next;
	}
}

static u32 chunks_of(u32 tokens)
{
	return (tokens + SESSION_CHUNK_TOKENS - 1) / SESSION_CHUNK_TOKENS;
}

void sessions_cut(struct sessions *ss, struct session *s, u32 count)
{
	ASSERT(count <= s->token_count);
	ss->token_total -= s->token_count - count;
	if (count == 0) {
		give_chunks(ss, s->first_chunk);
		s->first_chunk = s->last_chunk = SESSION_NONE;
	} else if (chunks_of(count) < chunks_of(s->token_count)) {
		u32 last = s->first_chunk;
		for (u32 i = 1; i < chunks_of(count); i++)
			last = ss->next_chunk[last];
		give_chunks(ss, ss->next_chunk[last]);
		ss->next_chunk[last] = SESSION_NONE;
		s->last_chunk = last;
	}
	s->token_count = count;
	if (s->kv_tokens > count)
		s->kv_tokens = count;
}

static u32 *next_room(struct sessions *ss, struct session *s, u32 *room)
{
	u32 used = s->token_count % SESSION_CHUNK_TOKENS;

	if (used == 0) {
		u32 chunk = ss->free_chunk;
		ss->free_chunk = ss->next_chunk[chunk];
		ss->free_chunks--;
		ss->next_chunk[chunk] = SESSION_NONE;
		*(s->last_chunk == SESSION_NONE ? &s->first_chunk : &ss->next_chunk[s->last_chunk]) = chunk;
		s->last_chunk = chunk;
	}
	*room = SESSION_CHUNK_TOKENS - used;
	return ss->tokens + (size_t)s->last_chunk * SESSION_CHUNK_TOKENS + used;
}

enum err sessions_append(struct sessions *ss, struct session *s, const u32 *tokens, u32 count)
{
	u64 total = (u64)s->token_count + count;

	if (total > (u64)ss->chunk_count * SESSION_CHUNK_TOKENS)
		return ERR_NO_SPACE;
	u32 needed = chunks_of((u32)total) - chunks_of(s->token_count);
	while (ss->free_chunks < needed)
		if (!evict(ss, s))
			return ERR_NO_SPACE;
	ss->token_total += count;
	while (count) {
		u32 room, *to = next_room(ss, s, &room);
		u32 part = count < room ? count : room;
		memcpy(to, tokens, part * sizeof(u32));
		s->token_count += part;
		tokens += part;
		count -= part;
	}
	return ERR_OK;
}

void sessions_read(const struct sessions *ss, const struct session *s, u32 *out, u32 count)
{
	ASSERT(count <= s->token_count);
	for (u32 chunk = s->first_chunk; count; chunk = ss->next_chunk[chunk]) {
		u32 part = count < SESSION_CHUNK_TOKENS ? count : SESSION_CHUNK_TOKENS;
		memcpy(out, ss->tokens + (size_t)chunk * SESSION_CHUNK_TOKENS, part * sizeof(u32));
		out += part;
		count -= part;
	}
}

u32 sessions_token(const struct sessions *ss, const struct session *s, u32 index)
{
	u32 chunk = s->first_chunk;

	ASSERT(index < s->token_count);
	if (index / SESSION_CHUNK_TOKENS + 1 == chunks_of(s->token_count))
		chunk = s->last_chunk; /* most are asked for their ends */
	else
		for (u32 i = 0; i < index / SESSION_CHUNK_TOKENS; i++)
			chunk = ss->next_chunk[chunk];
	return ss->tokens[(size_t)chunk * SESSION_CHUNK_TOKENS + index % SESSION_CHUNK_TOKENS];
}

/* ---------------------------------------------------------------- coming and going */

enum err sessions_add(struct sessions *ss, u64 owner, const u8 *name, u32 bytes, i64 now_ns, struct session **out)
{
	ASSERT(bytes > 0 && bytes <= SESSION_NAME_MAX);
	if (ss->free_slot == SESSION_NONE && !evict(ss, NULL))
		return ERR_BUSY;
	u32 slot = ss->free_slot;
	u64 key = key_of(ss, owner, name, bytes);
	if (map_get(&ss->by_key, key, NULL) || map_put(&ss->by_key, key, slot))
		return ERR_BUSY; /* another name has this key */
	struct session *s = &ss->slots[slot];
	const u64 birth[] = {(u64)now_ns, ++ss->added};
	ss->free_slot = s->next;
	*s = (struct session){.owner = owner,
			      .life = XXH3_64bits_withSeed(birth, sizeof(birth), ss->config.secret),
			      .first_chunk = SESSION_NONE,
			      .last_chunk = SESSION_NONE,
			      .begun_ns = now_ns,
			      .used_ns = now_ns};
	memcpy(s->name, name, bytes);
	push_session(ss, s);
	ss->count++;
	for (u32 i = 0; i < SESSION_GONE_MAX; i++)
		if (ss->gone[i].key == key)
			ss->gone[i].key = 0;
	*out = s;
	return ERR_OK;
}

void sessions_add_gone(struct sessions *ss, const struct session *s, enum session_end why)
{
	struct session_gone *g = &ss->gone[ss->gone_next++ % SESSION_GONE_MAX];

	*g = (struct session_gone){.key = key_of(ss, s->owner, s->name, (u32)strlen(s->name)),
				   .owner = s->owner,
				   .why = why,
				   .token_count = s->token_count,
				   .turn_count = s->turn_count,
				   .begun_ns = s->begun_ns,
				   .used_ns = s->used_ns};
	memcpy(g->name, s->name, sizeof(g->name));
}

void sessions_drop(struct sessions *ss, struct session *s, enum session_end why)
{
	u64 key = key_of(ss, s->owner, s->name, (u32)strlen(s->name));

	ASSERT(s->name[0]);
	if (ss->sink.dropped)
		ss->sink.dropped(ss->sink.ctx, s, why);
	if (!s->running)
		unlink_session(ss, s);
	sessions_add_gone(ss, s, why);
	sessions_cut(ss, s, 0);
	bool there = map_remove(&ss->by_key, key);
	ASSERT(there);
	ss->dropped[why]++;
	s->name[0] = '\0';
	s->running = 0;
	s->next = ss->free_slot;
	ss->free_slot = sessions_slot(ss, s);
	ss->count--;
}

/* ---------------------------------------------------------------- turns */

void sessions_begin_turn(struct sessions *ss, struct session *s, u64 seq, i64 now_ns)
{
	ASSERT(!s->running && seq);
	unlink_session(ss, s);
	s->running = s->turn_seq = seq;
	s->used_ns = now_ns;
	if (ss->sink.begun && !s->redone)
		ss->sink.begun(ss->sink.ctx, s);
}

/* Whether it was redone. */
static bool finish_turn(struct sessions *ss, struct session *s, bool over, i64 now_ns)
{
	bool redone = s->redone;

	ASSERT(s->running);
	s->running = 0;
	s->cut_off = s->ending = over;
	s->redone = false;
	s->used_ns = now_ns;
	push_session(ss, s);
	return redone;
}

/* `tokens` are those from turn_base on. A second end of one turn would be taken for a sign that a record is missing. */
static void tell_end(struct sessions *ss, const struct session *s, bool redone, const u32 *tokens, u32 count)
{
	if (redone && ss->sink.changed)
		ss->sink.changed(ss->sink.ctx, s);
	else if (!redone && ss->sink.ended)
		ss->sink.ended(ss->sink.ctx, s, tokens, count);
}

void sessions_end_turn(struct sessions *ss, struct session *s, const u32 *tokens, u32 count, u32 kv_tokens, i64 now_ns)
{
	bool redone = finish_turn(ss, s, false, now_ns);

	sessions_cut(ss, s, s->turn_base);
	if (sessions_append(ss, s, tokens, count)) {
		sessions_drop(ss, s, SESSION_END_OUTGREW);
		return;
	}
	s->turn_count += !redone;
	s->kv_tokens = kv_tokens < s->token_count ? kv_tokens : s->token_count;
	tell_end(ss, s, redone, tokens, count);
}

/* The journal has the beginning of that turn and that it is the last one, which is all that there is to know. Of one that is redone
 * it has another end. */
void sessions_retire(struct sessions *ss, struct session *s, i64 now_ns)
{
	if ((s->redone ? s->turn_base : s->token_count) == 0) {
		sessions_drop(ss, s, SESSION_END_ASKED);
		return;
	}
	bool redone = finish_turn(ss, s, true, now_ns);
	if (!redone)
		return;
	sessions_cut(ss, s, s->turn_base);
	s->turn_count--;
	tell_end(ss, s, redone, NULL, 0);
}

void sessions_totals(const struct sessions *ss, u32 *count, u64 *token_count)
{
	*count = ss->count;
	*token_count = ss->token_total;
	for (u32 i = ss->over.head; i != SESSION_NONE; i = ss->slots[i].next) {
		*count -= 1;
		*token_count -= ss->slots[i].token_count;
	}
}

struct session *sessions_last_turn(const struct sessions *ss, u64 seq)
{
	for (u32 i = ss->idle.tail; i != SESSION_NONE; i = ss->slots[i].prev)
		if (ss->slots[i].turn_seq == seq)
			return &ss->slots[i];
	return NULL;
}

struct session *sessions_ended_turn(const struct sessions *ss, u64 client, u64 req, i64 since_ns)
{
	for (u32 i = ss->idle.tail; i != SESSION_NONE && ss->slots[i].used_ns >= since_ns; i = ss->slots[i].prev)
		if (ss->slots[i].turn_client == client && ss->slots[i].turn_req == req)
			return &ss->slots[i];
	return NULL;
}

void sessions_shorten(struct sessions *ss, struct session *s, u32 count)
{
	ASSERT(!s->running && count > s->turn_base && count <= s->token_count);
	if (count == s->token_count)
		return;
	sessions_cut(ss, s, count);
	if (ss->sink.changed)
		ss->sink.changed(ss->sink.ctx, s);
}

void sessions_undo_turn(struct sessions *ss, struct session *s, i64 now_ns)
{
	bool redone = finish_turn(ss, s, false, now_ns);

	if (redone) {
		sessions_cut(ss, s, s->turn_base);
		s->turn_count--;
	}
	if (s->token_count == 0) {
		sessions_drop(ss, s, SESSION_END_EMPTY);
		return;
	}
	s->turn_client = s->turn_req = 0;
	s->turn_base = s->token_count;
	tell_end(ss, s, redone, NULL, 0);
}

static void expire(struct sessions *ss, const struct session_list *l, i64 since_ns, enum session_end why)
{
	while (l->head != SESSION_NONE && ss->slots[l->head].used_ns < since_ns)
		sessions_drop(ss, &ss->slots[l->head], why);
}

void sessions_expire(struct sessions *ss, i64 now_ns)
{
	i64 ttl = (i64)ss->config.ttl_ns, over = (i64)SESSION_OVER_S * 1000000000;

	if (ttl)
		expire(ss, &ss->idle, now_ns - ttl, SESSION_END_EXPIRED);
	expire(ss, &ss->over, now_ns - (ttl && ttl < over ? ttl : over), SESSION_END_ASKED);
}

static bool is_beyond(const struct sessions *ss, const struct session *s, u32 vocab_size)
{
	for (u32 i = 0, chunk = s->first_chunk; i < s->token_count; i++) {
		if (i && i % SESSION_CHUNK_TOKENS == 0)
			chunk = ss->next_chunk[chunk];
		if (ss->tokens[(size_t)chunk * SESSION_CHUNK_TOKENS + i % SESSION_CHUNK_TOKENS] >= vocab_size)
			return true;
	}
	return false;
}

u32 sessions_check_vocab(struct sessions *ss, u32 vocab_size)
{
	u32 count = 0;

	for (u32 i = 0; i < ss->config.session_max; i++) {
		struct session *s = &ss->slots[i];
		if (!s->name[0] || !is_beyond(ss, s, vocab_size))
			continue;
		sessions_drop(ss, s, SESSION_END_DAMAGED);
		count++;
	}
	return count;
}
