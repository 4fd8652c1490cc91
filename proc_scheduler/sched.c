/* Owns the state of the scheduling core: sequences, queues, blocks, and what every event does to them. Runs
 * in the scheduler process, in the simulator and in the benchmark. Never does I/O, never reads a clock, never
 * allocates after create. The plan of a step is in sched_plan.c, what comes back of it in sched_result.c. */
#include "proc_scheduler/sched.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/region.h"
#include "common/step_digest.h"
#include "proc_scheduler/sched_priv.h"

enum { RETRY_MS_DEFAULT = 1000, RETRY_MS_MIN = 100, RETRY_MS_MAX = 10000, NS_PER_MS = 1000000 };
#define NS_PER_S 1e9

/* ---------------------------------------------------------------- life */

static u64 read_secret(const struct sched_config *c, size_t at)
{
	u64 v;

	memcpy(&v, c->secret + at, sizeof(v));
	return v;
}

/* What a STEP can have beside the tokens and blocks of its adds: biases, stop ids, the columns of all rows. */
static const u64 STEP_OTHER_BYTES_MAX = 12u << 20;

/* Whether a sequence of the whole context can be added in one step. */
static enum err check_message(const struct sched *s, u32 blocks_of_one, struct err_msg *em)
{
	u64 bytes = sizeof(u32) * ((u64)s->context_max + blocks_of_one);

	if (blocks_of_one <= IPC_BLOCKS_MAX && bytes <= IPC_FRAME_BYTES_MAX - STEP_OTHER_BYTES_MAX)
		return ERR_OK;
	return err_set(em, ERR_TOO_LONG,
		       "a sequence of %u tokens in blocks of %u does not fit into a message of %u MiB; lower "
		       "--max-model-len or raise --block-size",
		       s->context_max, s->config.block_size, IPC_FRAME_BYTES_MAX >> 20);
}

static enum err init_pools(struct sched *s, struct err_msg *em)
{
	const struct sched_config *c = &s->config;
	u32 blocks_of_one = (s->context_max + c->block_size - 1) / c->block_size;
	u32 slot_count = c->max_queued_requests + c->max_num_seqs * (c->async_depth + 3);
	enum err e = check_message(s, blocks_of_one, em);

	if (!e)
		e = seqs_init(&s->seqs, slot_count, s->context_max, c->block_size, c->first_number,
			      read_secret(c, 0), em);
	if (e)
		return e;
	s->block_stride = blocks_of_one;
	s->row_blocks = calloc((size_t)c->max_num_seqs * blocks_of_one, sizeof(u32));
	s->free_rows = calloc(c->max_num_seqs, sizeof(u32));
	s->pinned_blocks = calloc(c->max_num_seqs, sizeof(u32));
	if (!s->row_blocks || !s->free_rows || !s->pinned_blocks)
		e = ERR_NO_MEMORY;
	if (!e)
		e = running_init(&s->running, c->max_num_seqs);
	if (!e)
		e = groups_init(&s->groups, s->context_max);
	if (!e)
		e = prefix_cache_init(&s->cache, c->block_count, c->block_size, c->secret);
	if (!e)
		e = state_cache_init(&s->states, c->prefix_caching ? c->state_slots : 0);
	if (!e)
		e = kv_blocks_init(&s->kv, c->block_count, c->prefix_caching ? &s->cache : NULL);
	if (!e)
		e = host_blocks_init(&s->host, c->host_block_count);
	if (!e)
		e = step_diff_init(&s->diff, c->max_num_seqs, s->context_max, blocks_of_one);
	return e ? region_refuse(em, "out of memory for %u blocks and %u rows; lower --kv-cache-memory, --max-num-seqs or --max-model-len",
				 c->block_count, c->max_num_seqs)
		 : ERR_OK;
}

enum err sched_create(struct sched **out, const struct sched_config *config, const struct sched_sink *sink,
		      struct stats_page *stats, struct err_msg *em)
{
	*out = NULL;
	ASSERT(config->async_depth <= SCHED_DEPTH_MAX);
	ASSERT(config->draft_max == 0 || config->async_depth == 0); /* else plans would not know the positions */
	ASSERT(!config->recurrent || (config->host_block_count == 0 && config->draft_max == 0)); /* neither brings a row's state along */
	ASSERT(config->max_num_seqs > 0 && config->max_num_seqs <= IPC_ROWS_MAX);
	ASSERT(config->max_num_batched_tokens > 0 && config->block_count > 0);
	struct sched *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	s->config = *config;
	s->sink = *sink;
	s->stats = stats;
	u64 pool_tokens = (u64)config->block_count * config->block_size;
	s->context_max = config->max_model_len < pool_tokens ? config->max_model_len : (u32)pool_tokens;
	waiting_init(&s->waiting);
	enum err e = init_pools(s, em);
	if (e) {
		sched_destroy(&s);
		return e;
	}
	for (u32 i = 0; i < config->max_num_seqs; i++)
		s->free_rows[i] = config->max_num_seqs - 1 - i;
	s->free_row_count = config->max_num_seqs;
	stats_set(stats, STATS_KV_BLOCKS, config->block_count);
	*out = s;
	return ERR_OK;
}

void sched_destroy(struct sched **s)
{
	if (!*s)
		return;
	seqs_fini(&(*s)->seqs);
	running_fini(&(*s)->running);
	groups_fini(&(*s)->groups);
	kv_blocks_fini(&(*s)->kv);
	host_blocks_fini(&(*s)->host);
	prefix_cache_fini(&(*s)->cache);
	state_cache_fini(&(*s)->states);
	step_diff_fini(&(*s)->diff);
	free((*s)->row_blocks);
	free((*s)->free_rows);
	free((*s)->pinned_blocks);
	free(*s);
	*s = NULL;
}

/* ---------------------------------------------------------------- state changes */

void sched_give_up_row(struct sched *s, struct seq *q)
{
	ASSERT(q->state == SEQ_RUNNING);
	if (sched_is_ending(q))
		s->ending_count--;
	step_diff_drop(&s->diff, q->row, q->computed);
	kv_blocks_release_all(&s->kv, sched_blocks(s, q), q->block_count);
	s->free_rows[s->free_row_count++] = q->row;
	running_remove(&s->running, seqs_slot(&s->seqs, q));
	sched_forget_saved(s, q);
	q->computed = q->capacity = q->block_count = q->filed = 0;
}

void sched_preempt(struct sched *s, struct seq *q)
{
	sched_give_up_row(s, q);
	q->state = SEQ_WAITING;
	q->preempted = true;
	waiting_push_head(&s->waiting, &s->seqs, q);
	stats_add(s->stats, STATS_NUM_PREEMPTIONS, 1);
}

static void count_finish(struct sched *s, const struct seq *q, enum finish_reason reason, u64 now_ns)
{
	static const enum stats_id counters[FINISH_REASON_COUNT] = {
		[FINISH_STOP] = STATS_REQUESTS_STOP,
		[FINISH_LENGTH] = STATS_REQUESTS_LENGTH,
		[FINISH_ABORT] = STATS_REQUESTS_ABORT,
		[FINISH_ERROR] = STATS_REQUESTS_ERROR,
	};

	ASSERT(reason > FINISH_NONE && reason < FINISH_REASON_COUNT);
	stats_add(s->stats, counters[reason], 1);
	stats_observe(s->stats, STATS_E2E, (double)(now_ns - q->arrived_ns) / NS_PER_S);
	if (q->first_token_ns) {
		stats_observe(s->stats, STATS_DECODE, (double)(q->token_ns - q->first_token_ns) / NS_PER_S);
		stats_observe(s->stats, STATS_INFERENCE, (double)(q->token_ns - q->scheduled_ns) / NS_PER_S);
	}
	u32 outputs = seq_output_count(q);
	if (q->first_token_ns && outputs > 1)
		stats_observe(s->stats, STATS_TPOT,
			      (double)(q->token_ns - q->first_token_ns) / NS_PER_S / (outputs - 1));
	stats_observe(s->stats, STATS_PARAMS_MAX_TOKENS, q->token_end - q->prompt_count);
	stats_observe(s->stats, STATS_PROMPT_LEN, q->prompt_count);
	stats_observe(s->stats, STATS_OUTPUT_LEN, outputs);
	if (s->finished_ns) {
		u64 gap = now_ns - s->finished_ns;
		s->finish_interval_ns = s->finish_interval_ns ? (s->finish_interval_ns * 7 + gap) / 8 : gap;
	}
	s->finished_ns = now_ns;
}

/* `tell`: the detokenizer does not know of this end. A session's turn is kept before the detokenizer may give its end
 * out: what its client has heard of is there, whoever dies next. */
static void finish(struct sched *s, struct seq *q, enum finish_reason reason, const char *text, u64 now_ns, bool tell)
{
	bool turn = q->session != 0;

	if (q->state == SEQ_RUNNING) {
		sched_keep_tail(s, q);
		sched_give_up_row(s, q);
	} else if (q->state == SEQ_WAITING)
		waiting_remove(&s->waiting, &s->seqs, q);
	sched_swap_forget(s, q);
	count_finish(s, q, reason, now_ns);
	if (turn)
		sched_end_turn(s, q, reason == FINISH_ABORT, now_ns);
	if (tell || (turn && q->opened))
		s->sink.close(s->sink.ctx, q, tell ? reason : FINISH_NONE, text);
	s->sink.end(s->sink.ctx, q, seqs_extra(&s->seqs, q), seqs_tokens(&s->seqs, q), reason, text);
	seqs_remove(&s->seqs, q);
}

void sched_finish(struct sched *s, struct seq *q, enum finish_reason reason, const char *text, u64 now_ns)
{
	finish(s, q, reason, text, now_ns, false);
}

void sched_open(struct sched *s, struct seq *q)
{
	if (q->opened)
		return;
	q->opened = true;
	s->sink.open(s->sink.ctx, q, seqs_extra(&s->seqs, q), seqs_tokens(&s->seqs, q));
}

void sched_close(struct sched *s, struct seq *q, enum finish_reason reason, const char *text, u64 now_ns)
{
	sched_open(s, q);
	finish(s, q, reason, text, now_ns, true);
}

u32 sched_find_lora(const struct sched *s, const struct ipc_submit *m)
{
	return m->lora_count && s->config.loras ? lora_modules_find(s->config.loras, (const char *)m->lora, m->lora_count) : 0;
}

/* The number is hashed with a secret, so that no salt of a client's leads to an adapter's KV. */
u64 sched_cache_salt(const struct sched *s, const struct ipc_submit *m)
{
	u64 lora = sched_find_lora(s, m);

	return lora ? step_digest_mix(m->cache_salt ^ step_digest_mix(lora ^ read_secret(&s->config, 16))) : m->cache_salt;
}

/* ---------------------------------------------------------------- requests */

static u32 retry_after_ms(const struct sched *s)
{
	if (!s->finish_interval_ns)
		return RETRY_MS_DEFAULT;
	u64 ms = 2 * s->finish_interval_ns / NS_PER_MS;
	return ms < RETRY_MS_MIN ? RETRY_MS_MIN : ms > RETRY_MS_MAX ? RETRY_MS_MAX : (u32)ms;
}

struct finish_rule sched_rule(const struct sched *s, const struct seq *q)
{
	const struct seq_extra *x = seqs_extra(&s->seqs, q);

	return (struct finish_rule){
		.output_max = q->token_end - q->prompt_count,
		.output_min = seq_output_min(q, x),
		.ignore_eos = q->params.flags & SAMPLING_IGNORE_EOS,
		.eos_ids = s->config.eos_ids,
		.eos_count = s->config.eos_count,
		.stop_ids = x->stop_ids,
		.stop_count = x->stop_count,
	};
}

static void fill(struct sched *s, struct seq *q, const struct ipc_submit *m, const struct session_turn *t, u64 now_ns)
{
	struct seq_extra *x = seqs_extra(&s->seqs, q);
	u32 own = m->tokens_count - t->skip;

#define COPY_PARAM(A, type, name, def, min, max) q->params.name = m->name;
	SAMPLING_TABLE(COPY_PARAM, 0)
#undef COPY_PARAM
	if (q->params.seed == 0)
		q->params.seed = s->config.seed;
	if (q->params.seed == 0)
		q->params.seed = step_digest_mix(q->id ^ read_secret(&s->config, 8)) | 1;
	x->lora = sched_find_lora(s, m);
	q->cache_salt = sched_cache_salt(s, m);
	q->priority = m->priority;
	q->prompt_count = (u32)turn_prompt(t, m);
	q->known = t->base + own;
	q->held_count = m->output_count;
	q->token_end = q->prompt_count + validate_output_max(s, m, q->prompt_count);
	q->arrived_ns = now_ns;
	if (t->base)
		sessions_read(s->config.sessions, t->session, seqs_tokens(&s->seqs, q), t->base);
	if (own)
		memcpy(seqs_tokens(&s->seqs, q) + t->base, m->tokens + t->skip, own * sizeof(u32));
	x->stop_count = m->stop_ids_count;
	x->bias_count = m->bias_ids_count;
	x->stop_string_count = m->stop_string_bytes_count;
	x->stop_string_bytes_sum = m->stop_strings_count;
	x->grammar_kind = m->grammar_kind;
	x->grammar_flags = m->grammar_flags;
	x->grammar_bytes = m->grammar_count;
	if (x->grammar_kind)
		stats_add(s->stats, STATS_REQUESTS_CONSTRAINED, 1);
	if (x->grammar_bytes)
		memcpy(seqs_grammar(&s->seqs, q), m->grammar, x->grammar_bytes);
	if (x->stop_count)
		memcpy(x->stop_ids, m->stop_ids, x->stop_count * sizeof(u32));
	if (x->bias_count) {
		memcpy(x->bias_ids, m->bias_ids, x->bias_count * sizeof(u32));
		memcpy(x->bias_values, m->bias_values, x->bias_count * sizeof(f32));
	}
	if (x->stop_string_count) {
		memcpy(x->stop_string_bytes, m->stop_string_bytes, x->stop_string_count * sizeof(u32));
		memcpy(x->stop_strings, m->stop_strings, x->stop_string_bytes_sum);
	}
}

static enum err refuse(struct sched *s, enum err e)
{
	stats_add(s->stats, STATS_REQUESTS_REFUSED, 1);
	return e;
}

/* Errors that do not depend on what the message says. */
static enum err check_room(struct sched *s, const struct ipc_submit *m, struct sched_admission *out,
			   struct err_msg *em)
{
	u32 free_rows = s->config.max_num_seqs - s->running.count;

	if (s->draining)
		return err_set(em, ERR_SHUTDOWN, "the server is shutting down and takes no new requests");
	if (m->beam_width) {
		enum err e = groups_check_room(s, m, em);
		out->retry_after_ms = e == ERR_BUSY ? retry_after_ms(s) : 0;
		if (e)
			return e;
	}
	if (seqs_find_request(&s->seqs, m->client_id, m->req_id))
		return err_set(em, ERR_EXISTS, "request %llu of this client is there already",
			       (unsigned long long)m->req_id);
	if (s->waiting.count < s->config.max_queued_requests + free_rows && s->seqs.free_count)
		return ERR_OK;
	out->retry_after_ms = retry_after_ms(s);
	return err_set(em, ERR_BUSY,
		       "%u requests are waiting and %u running, and the queue takes %u; try again in %u ms",
		       s->waiting.count, s->running.count, s->config.max_queued_requests,
		       out->retry_after_ms);
}

enum err sched_submit(struct sched *s, const struct ipc_submit *m, u64 now_ns, struct sched_admission *out,
		      struct err_msg *em)
{
	struct session_turn t;
	struct seq *q;

	*out = (struct sched_admission){0};
	enum err e = sched_check_turn(s, m, now_ns, &t, em);
	out->turn_runs = t.runs;
	if (!e)
		e = validate_submit(s, m, &t, em);
	if (!e)
		e = check_room(s, m, out, em);
	if (e)
		return out->turn_runs ? e : refuse(s, e);
	e = seqs_add(&s->seqs, m->client_id, m->req_id, &q);
	if (e)
		return refuse(s, err_set(em, e, "no slot for another request"));
	fill(s, q, m, &t, now_ns);
	if (t.named && (e = sched_begin_turn(s, m, &t, q, now_ns, em))) {
		seqs_remove(&s->seqs, q);
		out->retry_after_ms = retry_after_ms(s);
		return refuse(s, e);
	}
	out->seq = q->id;
	out->waiting = s->waiting.count;
	q->state = SEQ_WAITING;
	waiting_push(&s->waiting, &s->seqs, q);
	if (m->beam_width)
		groups_add(s, q, m);
	if (m->output_count) {
		struct finish_rule rule = sched_rule(s, q);
		struct finish f = finish_check(&rule, m->output_count, m->tokens[m->tokens_count - 1]);
		if (f.reason != FINISH_NONE)
			sched_close(s, q, f.reason, "", now_ns);
	}
	return ERR_OK;
}

/* With all that belongs to it. */
static void close_request(struct sched *s, struct seq *q, enum finish_reason reason, const char *text, u64 now_ns)
{
	struct beam_group *g = groups_of(s, q);

	if (g)
		groups_close(s, g, NULL, reason, text, now_ns);
	else
		sched_close(s, q, reason, text, now_ns);
}

bool sched_abort(struct sched *s, u64 client_id, u64 req_id, u64 now_ns)
{
	struct seq *q = seqs_find_request(&s->seqs, client_id, req_id);

	if (!q) {
		sched_give_up_ended(s, client_id, req_id, now_ns);
		return false;
	}
	close_request(s, q, FINISH_ABORT, "", now_ns);
	return true;
}

u32 sched_abort_client(struct sched *s, u64 client_id, u64 now_ns)
{
	u32 count = 0;

	for (u32 i = 0; i < s->seqs.slot_count; i++) {
		struct seq *q = &s->seqs.slots[i];
		if (q->id == 0 || q->client_id != client_id)
			continue;
		close_request(s, q, FINISH_ABORT, "", now_ns);
		count++;
	}
	return count;
}

void sched_fail(struct sched *s, u64 seq, const char *text, u64 now_ns)
{
	struct seq *q = seqs_find(&s->seqs, seq);

	if (q)
		close_request(s, q, FINISH_ERROR, text, now_ns);
}

void sched_fail_all(struct sched *s, const char *text, u64 now_ns)
{
	for (u32 i = 0; i < s->seqs.slot_count; i++)
		if (s->seqs.slots[i].id)
			close_request(s, &s->seqs.slots[i], FINISH_ERROR, text, now_ns);
}

void sched_stopped(struct sched *s, u64 seq, u32 output_count, u64 now_ns)
{
	struct seq *q = seqs_find(&s->seqs, seq);

	if (!q) { /* its last tokens, which ended it here, came before the word of the stop string in front of them */
		if (s->config.sessions) {
			sched_turn_stopped(s, seq, output_count);
			s->sink.kept(s->sink.ctx, seq, output_count);
		}
		return;
	}
	if (q->group) { /* what was to read its first answer is gone */
		groups_close(s, groups_of(s, q), q, FINISH_ABORT, "", now_ns);
		return;
	}
	q->stop_count = output_count;
	/* Outputs that the detokenizer has and that are still on the way here are waited for: they belong to the history of
	 * a session, and to what the detokenizer's next life is told should it die before this end is delivered. */
	if (output_count <= seq_output_count(q))
		sched_finish(s, q, FINISH_STOP, "", now_ns);
}

void sched_drain(struct sched *s)
{
	s->draining = true;
}
