/* Owns the table of sequences; runs in the detokenizer. Decides nothing by itself about text or ends
 * (stream.c), only which stream a message is for: late, doubled, early and missing results are told apart
 * here by sequence, epoch and position. No sockets, no clock; memory of the tables is taken at the start. */
#include "proc_detok/streams.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "proc_detok/streams_priv.h"

/* ---------------------------------------------------------------- life */

static enum err tables_init(struct streams *ss)
{
	const struct streams_config *c = &ss->config;
	u32 slots = c->streams_max + SPARE_SLOTS;
	enum err e = map_init(&ss->by_seq, slots, c->secret);
	if (e == ERR_OK)
		e = map_init(&ss->by_request, slots, c->secret + 1);
	if (e == ERR_OK)
		e = map_init(&ss->by_client, c->clients_max, c->secret + 2);
	if (e == ERR_OK)
		e = map_init(&ss->ended_by_seq, ENDED_MAX, c->secret + 3);
	if (e == ERR_OK)
		e = map_init(&ss->ended_by_request, ENDED_MAX, c->secret + 4);
	if (e == ERR_OK)
		e = early_init(&ss->early, c->early_max);
	return e;
}

enum err streams_create(struct streams **out, const struct streams_config *config)
{
	ASSERT(config->streams_max > 0 && config->clients_max > 0 && config->early_max > 0);
	*out = NULL;
	struct streams *ss = calloc(1, sizeof(*ss));
	if (!ss)
		return ERR_NO_MEMORY;
	ss->config = *config;
	if (ss->config.chunk_bytes == 0)
		ss->config.chunk_bytes = 256 * 1024;
	ss->free_head = NO_INDEX;
	ss->groups_head = NO_INDEX;
	ss->stopped_head = NO_INDEX;
	/* untouched pages of a large table cost nothing */
	ss->slots = calloc(config->streams_max + SPARE_SLOTS, sizeof(*ss->slots));
	ss->groups = calloc(config->clients_max, sizeof(*ss->groups));
	ss->ended = calloc(ENDED_MAX, sizeof(*ss->ended));
	if (!ss->slots || !ss->groups || !ss->ended || tables_init(ss) != ERR_OK) {
		streams_destroy(&ss);
		return ERR_NO_MEMORY;
	}
	*out = ss;
	return ERR_OK;
}

void streams_destroy(struct streams **pss)
{
	struct streams *ss = *pss;
	if (!ss)
		return;
	for (u32 i = 0; i < ss->slots_used; i++)
		stream_fini(&ss->slots[i].s);
	for (u32 i = 0; ss->groups && i < ss->config.clients_max; i++)
		free(ss->groups[i].claims);
	free(ss->slots);
	free(ss->groups);
	free(ss->ended);
	map_fini(&ss->by_seq);
	map_fini(&ss->by_request);
	map_fini(&ss->by_client);
	map_fini(&ss->ended_by_seq);
	map_fini(&ss->ended_by_request);
	early_fini(&ss->early);
	chunk_writer_fini(&ss->writer);
	free(ss);
	*pss = NULL;
}

const struct streams_counters *streams_counters(const struct streams *ss)
{
	return &ss->counters;
}

u32 streams_live(const struct streams *ss)
{
	return ss->live;
}

/* ---------------------------------------------------------------- slots and look-ups */

u64 stream_request_key(const struct streams *ss, u64 client_id, u64 req_id)
{
	/* two rounds of splitmix64's finaliser over both ids and the secret */
	u64 x = client_id + ss->config.secret;
	for (int round = 0; round < 2; round++) {
		x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
		x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
		x ^= x >> 31;
		x += round == 0 ? req_id * 0x9e3779b97f4a7c15u : 0;
	}
	return x;
}

static u32 slot_take(struct streams *ss)
{
	u32 slot = ss->free_head;
	if (slot != NO_INDEX)
		ss->free_head = ss->slots[slot].next;
	else if (ss->slots_used < ss->config.streams_max + SPARE_SLOTS)
		slot = ss->slots_used++;
	else
		return NO_INDEX;
	ss->slots[slot].group = NO_INDEX;
	ss->slots[slot].has_news = false;
	ss->slots[slot].bytes = 0;
	return slot;
}

void stream_slot_release(struct streams *ss, u32 slot)
{
	struct stream_slot *t = &ss->slots[slot];
	if (t->group != NO_INDEX)
		stream_group_remove(ss, slot);
	if (t->stopped_queued)
		return; /* streams_pop_stopped comes back here */
	stream_clear(&t->s);
	t->next = ss->free_head;
	ss->free_head = slot;
}

static void seq_unmap(struct streams *ss, u32 slot)
{
	u32 other;
	u64 seq = ss->slots[slot].s.seq;
	if (map_get(&ss->by_seq, seq, &other) && other == slot)
		map_remove(&ss->by_seq, seq);
}

static void ended_remember(struct streams *ss, u64 seq, u64 key, u32 tokens)
{
	u32 place = (u32)(ss->ended_count++ % ENDED_MAX), other;
	struct ended *old = &ss->ended[place];

	if (ss->ended_count > ENDED_MAX) {
		if (map_get(&ss->ended_by_seq, old->seq, &other) && other == place)
			map_remove(&ss->ended_by_seq, old->seq);
		if (map_get(&ss->ended_by_request, old->key, &other) && other == place)
			map_remove(&ss->ended_by_request, old->key);
	}
	*old = (struct ended){seq, key, tokens};
	/* each place has at most one key in each map, so they never fill up */
	enum err e = map_put(&ss->ended_by_seq, seq, place);
	ASSERT(e == ERR_OK);
	e = map_put(&ss->ended_by_request, key, place);
	ASSERT(e == ERR_OK);
}

void stream_stopped_queue(struct streams *ss, u32 slot)
{
	struct stream_slot *t = &ss->slots[slot];
	if (!t->s.stop_due || t->stopped_queued)
		return;
	t->stopped_queued = true;
	t->stopped_next = NO_INDEX;
	if (ss->stopped_head == NO_INDEX)
		ss->stopped_head = slot;
	else
		ss->slots[ss->stopped_tail].stopped_next = slot;
	ss->stopped_tail = slot;
}

void stream_slot_ended(struct streams *ss, u32 slot)
{
	struct stream *s = &ss->slots[slot].s;
	u64 key = stream_request_key(ss, s->client_id, s->req_id);
	u32 other;

	ASSERT(s->state == STREAM_ENDED);
	ss->live--;
	seq_unmap(ss, slot);
	if (map_get(&ss->by_request, key, &other) && other == slot)
		map_remove(&ss->by_request, key);
	ended_remember(ss, s->seq, key, s->token_count);
	stream_stopped_queue(ss, slot);
}

/* After anything was done to a stream that was live before. */
static void slot_settle(struct streams *ss, u32 slot)
{
	if (ss->slots[slot].s.state == STREAM_ENDED)
		stream_slot_ended(ss, slot);
	else if (ss->slots[slot].s.state == STREAM_HELD)
		stream_stopped_queue(ss, slot);
	stream_group_news(ss, slot);
}

/* ---------------------------------------------------------------- results */

/* True when earlier results are missing: this one waits until the scheduler has filled the gap by another
 * OPEN. */
static bool token_push(struct streams *ss, struct stream *s, u64 epoch, u32 position, u32 token,
		       const struct token_logprobs *lp, u64 now_ns)
{
	switch (stream_push(s, epoch, position, token, lp)) {
	case STREAM_TAKEN:
		ss->counters.tokens++;
		break;
	case STREAM_DOUBLED:
		ss->counters.doubled++;
		break;
	case STREAM_LATE:
		ss->counters.late++;
		break;
	case STREAM_GAP:
		ss->counters.gaps++;
		ss->gap = true;
		if (s->gap_ns == 0)
			s->gap_ns = now_ns ? now_ns : 1;
		return true;
	}
	return false;
}

struct early_target {
	struct streams *ss;
	struct stream *s;
	u64 now_ns;
};

static bool early_apply(void *ctx, const struct early_result *r)
{
	struct early_target *c = ctx;
	struct token_logprobs lp = early_logprobs(r);

	if (!r->is_prompt)
		return token_push(c->ss, c->s, r->epoch, r->position, r->token, &lp, c->now_ns);
	(void)stream_push_prompt(c->s, r->epoch, r->position, &lp);
	return false;
}

/* The live stream of a result; NO_INDEX: it is late, or was put by until its OPEN comes. */
static u32 result_slot(struct streams *ss, u64 seq, u64 epoch, u32 position, u32 token, bool is_prompt,
		       const struct token_logprobs *lp, u64 now_ns)
{
	u32 slot;
	if (map_get(&ss->by_seq, seq, &slot))
		return slot;
	if (epoch < ss->epoch || map_get(&ss->ended_by_seq, seq, NULL)) {
		ss->counters.late++;
		return NO_INDEX;
	}
	ss->counters.early++;
	early_add(&ss->early, seq, epoch, position, token, is_prompt, lp, now_ns);
	return NO_INDEX;
}

/* The log-probabilities at `*at` of the concatenated lists; count 0 when the lists do not hold together. */
static struct token_logprobs logprobs_at(const u32 *ids, const f32 *values, u32 total, u32 *at, u32 count, u32 count_max,
					 u32 rank)
{
	struct token_logprobs lp = {.rank = rank};
	if (count > count_max || count > total - *at)
		return lp;
	lp.count = count;
	lp.ids = ids + *at;
	lp.values = values + *at;
	*at += count;
	return lp;
}

static void prompts_push(struct streams *ss, const struct ipc_result *r, u64 epoch, u64 now_ns)
{
	u32 total = r->plp_ids_count < r->plp_values_count ? r->plp_ids_count : r->plp_values_count;
	u32 at = 0;

	for (u32 i = 0; i < r->plp_seq_count; i++) {
		struct token_logprobs lp =
			logprobs_at(r->plp_ids, r->plp_values, total, &at, r->plp_count[i], EMBEDDING_MAX, r->plp_rank[i]);
		if (lp.count == 0)
			continue;
		u32 slot = result_slot(ss, r->plp_seq[i], epoch, r->plp_position[i], 0, true, &lp, now_ns);
		if (slot == NO_INDEX)
			continue;
		(void)stream_push_prompt(&ss->slots[slot].s, epoch, r->plp_position[i], &lp);
		stream_group_news(ss, slot);
	}
}

/* Hands the stream what came before it could be used. */
static void early_settle(struct streams *ss, u32 slot, u64 now_ns)
{
	struct early_target target = {ss, &ss->slots[slot].s, now_ns};
	if (ss->early.count > 0)
		early_take(&ss->early, target.s->seq, early_apply, &target);
	slot_settle(ss, slot);
}

/* Every column of a table has the same length. */
static bool result_valid(const struct ipc_result *r)
{
	return r->position_count == r->seq_count && r->token_count == r->seq_count &&
	       r->lp_count_count == r->lp_entry_count && r->lp_rank_count == r->lp_entry_count &&
	       r->plp_position_count == r->plp_seq_count && r->plp_count_count == r->plp_seq_count &&
	       r->plp_rank_count == r->plp_seq_count;
}

void streams_result(struct streams *ss, const struct ipc_result *r, u64 epoch, u64 now_ns)
{
	if (!result_valid(r)) {
		ss->counters.malformed++;
		return;
	}
	prompts_push(ss, r, epoch, now_ns);
	u32 total = r->lp_ids_count < r->lp_values_count ? r->lp_ids_count : r->lp_values_count;
	u32 lp_at = 0, lp_next = 0, beam = 0;

	for (u32 i = 0; i < r->seq_count; i++) {
		struct token_logprobs lp = {0};
		if (lp_next < r->lp_entry_count && r->lp_entry[lp_next] == i) {
			lp = logprobs_at(r->lp_ids, r->lp_values, total, &lp_at, r->lp_count[lp_next], LOGPROBS_MAX + 1,
					 r->lp_rank[lp_next]);
			lp_next++;
		}
		if (beam < r->beam_entry_count && r->beam_entry[beam] == i) {
			beam++; /* of no stream: the scheduler tells what became of it */
			continue;
		}
		u32 slot = result_slot(ss, r->seq[i], epoch, r->position[i], r->token[i], false, &lp, now_ns);
		if (slot == NO_INDEX)
			continue;
		struct stream *s = &ss->slots[slot].s;
		bool gap = s->gap_ns != 0;
		if (token_push(ss, s, epoch, r->position[i], r->token[i], &lp, now_ns))
			early_add(&ss->early, s->seq, epoch, r->position[i], r->token[i], false, &lp, now_ns);
		if (gap && s->gap_ns == 0) /* filled by what the scheduler had kept: what waited behind it follows */
			early_settle(ss, slot, now_ns);
		else
			slot_settle(ss, slot);
	}
}

/* ---------------------------------------------------------------- open and close */

/* A sequence that is not wanted any more, or has ended with its output number `tokens`: the scheduler hears of it, nobody
 * else. Only a session's turn goes on to that number; what was given out of others needs no scheduler. */
static void open_answer_stopped(struct streams *ss, const struct ipc_open *open, u64 epoch, u32 tokens)
{
	u32 slot = slot_take(ss);
	if (slot == NO_INDEX) {
		ss->counters.refused++;
		return;
	}
	struct stream *s = &ss->slots[slot].s;
	stream_refuse(s, open, epoch, NULL);
	s->stop_count = open->confirm ? tokens : open->output_tokens_count;
	if (!map_get(&ss->ended_by_seq, open->seq, NULL))
		ended_remember(ss, open->seq, stream_request_key(ss, open->client_id, open->req_id), tokens);
	stream_stopped_queue(ss, slot);
}

static void seq_map(struct streams *ss, u32 slot)
{
	enum err e = map_put(&ss->by_seq, ss->slots[slot].s.seq, slot);
	ASSERT(e == ERR_OK); /* as many places as slots */
}

static void open_continue(struct streams *ss, u32 slot, const struct ipc_open *open, u64 epoch, u64 now_ns)
{
	struct stream *s = &ss->slots[slot].s;
	seq_unmap(ss, slot);
	enum err e = stream_continue(s, open, epoch);
	seq_map(ss, slot);
	if (e != ERR_OK)
		stream_end(s, FINISH_ERROR, err_text(e), true);
	early_settle(ss, slot, now_ns);
}

static void open_new(struct streams *ss, const struct ipc_open *open, u64 epoch, u64 now_ns)
{
	u32 group = stream_group_of(ss, open->client_id, now_ns);
	u32 slot = group == NO_INDEX ? NO_INDEX : slot_take(ss);
	if (slot == NO_INDEX) {
		ss->counters.refused++;
		if (group == NO_INDEX)
			open_answer_stopped(ss, open, epoch, open->output_tokens_count);
		return;
	}
	struct stream *s = &ss->slots[slot].s;
	if (ss->live >= ss->config.streams_max) {
		ss->counters.refused++;
		stream_refuse(s, open, epoch, "the detokenizer has too many open requests");
	} else {
		enum err e = stream_open(s, ss->config.tokenizer, open, epoch);
		if (e != ERR_OK)
			stream_refuse(s, open, epoch,
				      e == ERR_INVALID ? "the stop strings are empty, too many or not UTF-8"
						       : err_text(e));
	}
	ss->live++;
	stream_group_add(ss, group, slot);
	stream_group_claim(ss, slot);
	if (s->state != STREAM_ENDED) {
		enum err e = map_put(&ss->by_request, stream_request_key(ss, s->client_id, s->req_id), slot);
		ASSERT(e == ERR_OK);
		seq_map(ss, slot);
	}
	early_settle(ss, slot, now_ns);
}

void streams_open(struct streams *ss, const struct ipc_open *open, u64 epoch, u64 now_ns)
{
	u64 key = stream_request_key(ss, open->client_id, open->req_id);
	u32 slot, place;

	if (epoch > ss->epoch)
		ss->epoch = epoch;
	if (map_get(&ss->ended_by_seq, open->seq, &place)) {
		/* opened again by a scheduler that does not know of its end yet */
		open_answer_stopped(ss, open, epoch, ss->ended[place].tokens);
		return;
	}
	if (map_get(&ss->by_request, key, &slot)) {
		struct stream *s = &ss->slots[slot].s;
		if (s->seq == open->seq || s->state == STREAM_ORPHAN || epoch > s->epoch) {
			open_continue(ss, slot, open, epoch, now_ns);
			return;
		}
		/* its client uses the number again: the older request ends here */
		stream_end(s, s->closing ? s->close_reason : FINISH_ABORT, NULL, !s->closing);
		slot_settle(ss, slot);
	} else if (open->output_tokens_count > 0 && map_get(&ss->ended_by_request, key, &place)) {
		/* it has ended here before the client could know: its last chunk is on the way */
		open_answer_stopped(ss, open, epoch, ss->ended[place].tokens);
		return;
	}
	if (map_get(&ss->by_seq, open->seq, &slot)) {
		stream_end(&ss->slots[slot].s, FINISH_ERROR, "the scheduler gave its sequence id away",
			   false);
		slot_settle(ss, slot);
	}
	open_new(ss, open, epoch, now_ns);
}

void streams_close(struct streams *ss, const struct ipc_close *close, u64 now_ns)
{
	u32 slot;
	if (!map_get(&ss->by_seq, close->seq, &slot))
		return; /* ended by itself */
	enum finish_reason reason = close->reason < FINISH_REASON_COUNT ? close->reason : FINISH_ERROR;
	stream_close(&ss->slots[slot].s, close->output_count, reason, close->text, close->text_count, now_ns);
	slot_settle(ss, slot);
}

/* ---------------------------------------------------------------- STOPPED, restarts, time */

bool streams_peek_stopped(struct streams *ss, struct ipc_stopped *out)
{
	if (ss->stopped_head == NO_INDEX)
		return false;
	const struct stream *s = &ss->slots[ss->stopped_head].s;
	*out = (struct ipc_stopped){.seq = s->seq, .output_count = s->stop_count};
	return true;
}

void streams_pop_stopped(struct streams *ss)
{
	ASSERT(ss->stopped_head != NO_INDEX);
	u32 slot = ss->stopped_head;
	struct stream_slot *t = &ss->slots[slot];

	ss->stopped_head = t->stopped_next;
	t->stopped_queued = false;
	t->s.stop_due = false;
	if (t->group == NO_INDEX)
		stream_slot_release(ss, slot);
}

void streams_scheduler_restarted(struct streams *ss, u64 epoch, u64 now_ns)
{
	if (epoch > ss->epoch)
		ss->epoch = epoch;
	while (ss->stopped_head != NO_INDEX)
		streams_pop_stopped(ss);
	map_clear(&ss->ended_by_seq);
	early_expire(&ss->early, UINT64_MAX);
	for (u32 i = 0; i < ss->slots_used; i++) {
		struct stream *s = &ss->slots[i].s;
		if (s->state != STREAM_LIVE && s->state != STREAM_HELD)
			continue;
		seq_unmap(ss, i);
		if (s->state == STREAM_HELD) {
			s->since_ns = now_ns ? now_ns : 1;
		} else if (s->closing) {
			stream_end(s, s->close_reason, NULL, false);
			slot_settle(ss, i);
		} else {
			s->state = STREAM_ORPHAN;
			s->since_ns = now_ns;
		}
	}
}

bool streams_take_gap(struct streams *ss)
{
	bool gap = ss->gap;
	ss->gap = false;
	return gap;
}

static void gap_end(struct streams *ss, struct stream *s)
{
	struct err_msg em;
	(void)err_set(&em, ERR_SEQUENCE,
		      "output tokens from number %u on were lost on the way to the detokenizer",
		      s->token_count);
	ss->counters.lost++;
	stream_end(s, FINISH_ERROR, em.text, true);
}

/* A scheduler that is greeted again tells everything once more. */
static void held_ask(struct streams *ss, struct stream *s, u64 now_ns)
{
	if (s->gap_ns && now_ns - s->gap_ns <= ss->config.close_ns)
		return;
	ss->gap |= s->gap_ns != 0;
	s->gap_ns = now_ns ? now_ns : 1;
}

void streams_expire(struct streams *ss, u64 now_ns)
{
	const struct streams_config *c = &ss->config;

	early_expire(&ss->early, now_ns > c->early_ns ? now_ns - c->early_ns : 0);
	ss->counters.early_dropped = ss->early.dropped;
	for (u32 i = 0; i < ss->slots_used; i++) {
		struct stream *s = &ss->slots[i].s;
		if (s->state == STREAM_LIVE && s->closing && now_ns - s->since_ns > c->close_ns)
			stream_end(s, s->close_reason, NULL, false);
		else if (s->state == STREAM_LIVE && s->gap_ns != 0 && now_ns - s->gap_ns > c->close_ns)
			gap_end(ss, s);
		else if (s->state == STREAM_HELD && s->since_ns == 0)
			held_ask(ss, s, now_ns);
		else if ((s->state == STREAM_ORPHAN || s->state == STREAM_HELD) && now_ns - s->since_ns > c->orphan_ns)
			stream_end(s, FINISH_ERROR, "the scheduler was restarted and nobody asked again",
				   false);
		else
			continue;
		slot_settle(ss, i);
	}
}
