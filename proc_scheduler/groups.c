/* Owns the state of beam searches: their sequences, what the beams have reported, the choice of those that go on, and
 * the end. Runs inside the scheduling core; the rules of sched.c hold. Which steps the beams run in is planned in
 * groups_plan.c. */
#include "proc_scheduler/groups.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/region.h"
#include "proc_scheduler/sched_priv.h"

/* ---------------------------------------------------------------- memory */

/* Live beams and answers, each with a path of its own, and a round's new outputs before the old ones are given up. */
static u32 node_count(u32 token_max)
{
	return (2 * BEAM_WIDTH_MAX + 1) * (token_max + 1);
}

static enum err init_rows(struct groups *t, u32 token_max)
{
	t->row_seq = calloc(IPC_ROWS_MAX, sizeof(u64));
	t->row_position = calloc(IPC_ROWS_MAX, sizeof(u32));
	t->row_token = calloc(IPC_ROWS_MAX, sizeof(u32));
	t->lp_entry = calloc(IPC_ROWS_MAX, sizeof(u32));
	t->lp_count = calloc(IPC_ROWS_MAX, sizeof(u32));
	t->lp_rank = calloc(IPC_ROWS_MAX, sizeof(u32));
	t->lp_ids = calloc(IPC_LOGPROBS_MAX, sizeof(u32));
	t->lp_values = calloc(IPC_LOGPROBS_MAX, sizeof(f32));
	t->path = calloc((size_t)token_max + 1, sizeof(u32));
	return t->row_seq && t->row_position && t->row_token && t->lp_entry && t->lp_count && t->lp_rank && t->lp_ids &&
			       t->lp_values && t->path
		       ? ERR_OK
		       : ERR_NO_MEMORY;
}

enum err groups_init(struct groups *t, u32 token_max)
{
	u32 nodes = node_count(token_max);
	size_t each = (beam_nodes_bytes(nodes) + 4095) & ~(size_t)4095;

	*t = (struct groups){.all = calloc(GROUPS_MAX, sizeof(*t->all)), .memory_bytes = each * GROUPS_MAX};
	if (!t->all || init_rows(t, token_max))
		return ERR_NO_MEMORY;
	void *memory = region_reserve(t->memory_bytes);
	if (!memory)
		return ERR_NO_MEMORY;
	t->memory = memory;
	for (u32 i = 0; i < GROUPS_MAX; i++)
		beam_nodes_init(&t->all[i].tree, (char *)memory + i * each, nodes);
	return ERR_OK;
}

void groups_fini(struct groups *t)
{
	region_release(t->memory, t->memory_bytes);
	free(t->row_seq);
	free(t->row_position);
	free(t->row_token);
	free(t->lp_entry);
	free(t->lp_count);
	free(t->lp_rank);
	free(t->lp_ids);
	free(t->lp_values);
	free(t->path);
	free(t->all);
	*t = (struct groups){0};
}

struct beam_group *groups_of(const struct sched *s, const struct seq *q)
{
	return q->group ? &s->groups.all[q->group - 1] : NULL;
}

static struct seq *beam_seq(const struct sched *s, const struct beam_group *g, u32 beam)
{
	return group_seq(&s->seqs, g, beam);
}

/* ---------------------------------------------------------------- begin */

static void copy_extra(struct seq_extra *to, const struct seq_extra *from)
{
	to->stop_count = from->stop_count;
	to->bias_count = from->bias_count;
	to->lora = from->lora;
	memcpy(to->stop_ids, from->stop_ids, from->stop_count * sizeof(u32));
	memcpy(to->bias_ids, from->bias_ids, from->bias_count * sizeof(u32));
	memcpy(to->bias_values, from->bias_values, from->bias_count * sizeof(f32));
}

/* A sequence of the group that is not the first. Only that one computes the prompt for its log-probabilities. */
static struct seq *add_member(struct sched *s, const struct seq *leader, u32 beam, bool is_answer)
{
	struct seq *q;
	enum err e = is_answer ? seqs_add(&s->seqs, leader->client_id, leader->req_id + beam, &q)
			       : seqs_add_unnamed(&s->seqs, leader->client_id, &q);

	ASSERT(e == ERR_OK);
	q->prompt_count = q->known = leader->prompt_count;
	q->token_end = leader->token_end;
	q->cache_salt = leader->cache_salt;
	q->priority = leader->priority;
	q->arrived_ns = leader->arrived_ns;
	q->params = leader->params;
	q->params.prompt_logprobs = -1;
	q->state = SEQ_HELD;
	copy_extra(seqs_extra(&s->seqs, q), seqs_extra(&s->seqs, leader));
	return q;
}

void groups_add(struct sched *s, struct seq *leader, const struct ipc_submit *m)
{
	u32 index = 0;

	while (s->groups.all[index].width)
		index++;
	ASSERT(index < GROUPS_MAX);
	struct beam_group *g = &s->groups.all[index];
	struct beam_nodes tree = g->tree;
	beam_nodes_clear(&tree);
	*g = (struct beam_group){.width = m->beam_width,
				 .answer_count = m->answer_count ? m->answer_count : 1,
				 .live_count = 1,
				 .length_penalty = m->length_penalty,
				 .tree = tree};
	g->nodes[0] = BEAM_NODE_NONE;
	s->groups.used++;
	for (u32 beam = 0; beam < g->width; beam++) {
		struct seq *q = beam ? add_member(s, leader, beam, beam < g->answer_count) : leader;
		g->slots[beam] = seqs_slot(&s->seqs, q);
		g->fork_of[beam] = BEAM_NONE;
		q->group = (u16)(index + 1);
		q->beam = (u16)beam;
	}
}

static void release(struct sched *s, struct beam_group *g)
{
	for (u32 beam = g->answer_count; beam < g->width; beam++)
		seqs_remove(&s->seqs, beam_seq(s, g, beam));
	g->width = 0;
	s->groups.used--;
}

/* ---------------------------------------------------------------- rows */

void groups_give_up_rows(struct sched *s, struct beam_group *g)
{
	for (u32 beam = 0; beam < g->width; beam++) {
		struct seq *q = beam_seq(s, g, beam);
		if (q->state == SEQ_RUNNING) {
			sched_give_up_row(s, q);
			q->state = SEQ_HELD;
		}
		g->fork_of[beam] = BEAM_NONE;
		g->is_set[beam] = false;
		g->shared_tokens[beam] = 0;
	}
	s->groups.spare_rows -= g->spare_count;
	while (g->spare_count)
		s->free_rows[s->free_row_count++] = g->spare_rows[--g->spare_count];
}

/* The row stays the group's. */
static void give_up_beam(struct sched *s, struct beam_group *g, u32 beam)
{
	struct seq *q = beam_seq(s, g, beam);

	q->in_flight = 0;
	g->is_set[beam] = false;
	if (q->state != SEQ_RUNNING)
		return;
	sched_give_up_row(s, q);
	q->state = SEQ_HELD;
	g->spare_rows[g->spare_count++] = s->free_rows[--s->free_row_count];
	s->groups.spare_rows++;
}

static void queue_first(struct sched *s, struct beam_group *g)
{
	struct seq *leader = beam_seq(s, g, 0);

	leader->state = SEQ_WAITING;
	leader->preempted = true;
	waiting_push_head(&s->waiting, &s->seqs, leader);
}

void groups_preempt(struct sched *s, struct beam_group *g)
{
	groups_give_up_rows(s, g);
	queue_first(s, g);
	stats_add(s->stats, STATS_NUM_PREEMPTIONS, 1);
}

void groups_requeue(struct sched *s, struct beam_group *g)
{
	for (u32 beam = 0; beam < g->width; beam++) {
		struct seq *q = beam_seq(s, g, beam);
		if (q->state == SEQ_RUNNING) {
			running_remove(&s->running, g->slots[beam]);
			q->state = SEQ_HELD;
		}
		q->computed = q->capacity = q->block_count = q->filed = 0;
		g->fork_of[beam] = BEAM_NONE;
		g->is_set[beam] = false;
		g->shared_tokens[beam] = 0;
	}
	s->groups.spare_rows -= g->spare_count;
	g->spare_count = 0;
	queue_first(s, g);
}

/* ---------------------------------------------------------------- end */

static void copy_prompt(struct sched *s, const struct beam_group *g, const struct seq *q)
{
	const struct seq *leader = beam_seq(s, g, 0);

	if (q != leader)
		memcpy(seqs_tokens(&s->seqs, q), seqs_tokens(&s->seqs, leader), q->prompt_count * sizeof(u32));
}

/* Rows, blocks and the place in the queue. */
static void leave(struct sched *s, struct beam_group *g)
{
	struct seq *leader = beam_seq(s, g, 0);

	if (leader->state == SEQ_WAITING)
		waiting_remove(&s->waiting, &s->seqs, leader);
	leader->state = leader->state == SEQ_WAITING ? SEQ_HELD : leader->state;
	groups_give_up_rows(s, g);
	for (u32 i = 0; i < g->width; i++) {
		struct seq *q = beam_seq(s, g, i);
		q->in_flight = 0;
		q->cached_count = leader->cached_count;
	}
}

void groups_close(struct sched *s, struct beam_group *g, const struct seq *spared, enum finish_reason reason,
		  const char *text, u64 now_ns)
{
	leave(s, g);
	for (u32 i = 0; i < g->answer_count; i++) {
		struct seq *q = beam_seq(s, g, i);
		copy_prompt(s, g, q);
		q->known = q->prompt_count;
		if (q != spared) {
			sched_open(s, q);
			s->sink.close(s->sink.ctx, q, reason, text);
		}
	}
	release(s, g);
	for (u32 i = 0; i < g->answer_count; i++) {
		struct seq *q = beam_seq(s, g, i);
		q->group = 0;
		sched_finish(s, q, reason, text, now_ns);
	}
}

/* Outputs `first` to `end` of an answer, whose nodes are groups.path, as a RESULT. */
static void tell_part(struct sched *s, const struct beam_group *g, const struct seq *q, u32 first, u32 end)
{
	struct groups *t = &s->groups;
	const struct beam_nodes *tree = &g->tree;
	bool listed = q->params.logprobs >= 0;
	u32 n = end - first, ids = 0;

	for (u32 i = 0; i < n; i++) {
		u32 node = t->path[first + i];
		const struct beam_node *b = &tree->nodes[node];
		t->row_seq[i] = q->id;
		t->row_position[i] = first + i;
		t->row_token[i] = b->token;
		t->lp_entry[i] = i;
		t->lp_rank[i] = b->rank;
		t->lp_count[i] = b->count + 1;
		t->lp_ids[ids] = b->token;
		t->lp_values[ids++] = b->value;
		memcpy(t->lp_ids + ids, tree->ids + (size_t)node * LOGPROBS_MAX, b->count * sizeof(u32));
		memcpy(t->lp_values + ids, tree->values + (size_t)node * LOGPROBS_MAX, b->count * sizeof(f32));
		ids += b->count;
	}
	struct ipc_result m = {.step = s->diff.step,
			       .seq = t->row_seq,
			       .seq_count = n,
			       .position = t->row_position,
			       .position_count = n,
			       .token = t->row_token,
			       .token_count = n,
			       .lp_entry = t->lp_entry,
			       .lp_entry_count = listed ? n : 0,
			       .lp_count = t->lp_count,
			       .lp_count_count = listed ? n : 0,
			       .lp_rank = t->lp_rank,
			       .lp_rank_count = listed ? n : 0,
			       .lp_ids = t->lp_ids,
			       .lp_ids_count = listed ? ids : 0,
			       .lp_values = t->lp_values,
			       .lp_values_count = listed ? ids : 0};
	s->sink.result(s->sink.ctx, &m);
}

static void tell_answer(struct sched *s, const struct beam_group *g, struct seq *q, const struct beam_answer *a)
{
	u32 *outputs = seqs_tokens(&s->seqs, q) + q->prompt_count;
	u32 node = a->node;

	copy_prompt(s, g, q);
	for (u32 i = a->outputs; i-- > 0; node = g->tree.nodes[node].parent) {
		s->groups.path[i] = node;
		outputs[i] = g->tree.nodes[node].token;
	}
	ASSERT(node == BEAM_NODE_NONE);
	q->known = q->prompt_count + a->outputs;
	sched_open(s, q);
	for (u32 first = 0; first < a->outputs; first += IPC_ROWS_MAX) {
		u32 rest = a->outputs - first;
		tell_part(s, g, q, first, first + (rest < IPC_ROWS_MAX ? rest : IPC_ROWS_MAX));
	}
}

/* Opens the answers' streams and gives them their outputs, by which they end. */
static void end(struct sched *s, struct beam_group *g, u64 now_ns)
{
	struct err_msg em;

	if (g->answers.count < g->answer_count) {
		err_set(&em, ERR_INTERNAL,
			"the beam search found %u answers of %u, since too few tokens have a finite log-probability",
			g->answers.count, g->answer_count);
		groups_close(s, g, NULL, FINISH_ERROR, em.text, now_ns);
		return;
	}
	leave(s, g);
	for (u32 i = 0; i < g->answer_count; i++)
		tell_answer(s, g, beam_seq(s, g, i), &g->answers.best[i]);
	release(s, g);
	for (u32 i = 0; i < g->answer_count; i++) {
		struct seq *q = beam_seq(s, g, i);
		q->group = 0;
		sched_finish(s, q, g->answers.best[i].reason, "", now_ns);
	}
}

/* ---------------------------------------------------------------- the choice */

static struct beam_rule rule_of(const struct sched *s, const struct beam_group *g)
{
	const struct seq *leader = beam_seq(s, g, 0);

	return (struct beam_rule){.width = g->width,
				  .prompt_count = leader->prompt_count,
				  .length_penalty = g->length_penalty,
				  .early_stopping = leader->params.flags & SAMPLING_EARLY_STOPPING,
				  .finish = sched_rule(s, leader)};
}

/* A pick becomes an output behind its beam's. */
static u32 add_node(struct sched *s, struct beam_group *g, const struct beam_pick *p)
{
	u32 beam = g->live[p->beam];
	const struct beam_report *r = &g->reports[beam];
	i32 wanted = beam_seq(s, g, 0)->params.logprobs;
	struct beam_node n = {.parent = g->nodes[beam], .token = p->token, .rank = p->place + 1, .value = p->value};

	n.count = wanted < 0 ? 0 : (u32)wanted < r->count ? (u32)wanted : r->count;
	return beam_nodes_add(&g->tree, n, r->ids, r->values);
}

static void add_answer(struct sched *s, struct beam_group *g, const struct beam_rule *rule, const struct beam_pick *p,
		       u32 outputs, enum finish_reason reason)
{
	u32 lost, node = add_node(s, g, p);

	if (beam_answers_add(&g->answers, rule,
			     (struct beam_answer){.node = node, .outputs = outputs, .sum = p->sum, .reason = reason}, &lost))
		beam_nodes_unref(&g->tree, lost);
}

/* The sequence of a beam that ends gets the tokens of one that has several successors. */
static void copy_beam(struct sched *s, struct beam_group *g, u32 to, u32 from)
{
	struct seq *q = beam_seq(s, g, to);
	const struct seq *p = beam_seq(s, g, from);

	ASSERT(q->state == SEQ_HELD || (to == 0 && q->state == SEQ_WAITING));
	memcpy(seqs_tokens(&s->seqs, q), seqs_tokens(&s->seqs, p), p->known * sizeof(u32));
	memcpy(seqs_hashes(&s->seqs, q), seqs_hashes(&s->seqs, p), p->hashed * sizeof(struct block_hash));
	q->known = p->known;
	q->hashed = p->hashed;
	q->beyond = p->beyond;
	g->fork_of[to] = p->state == SEQ_RUNNING ? from : BEAM_NONE;
}

/* homes[k]: the beam that pick k goes on as. The first pick of a beam stays where it is; the others take the places of
 * beams that have none, which give theirs up. */
static void find_homes(struct sched *s, struct beam_group *g, const struct beam_picks *picks, u32 *homes)
{
	bool taken[BEAM_WIDTH_MAX] = {false};
	u32 free = 0;

	for (u32 k = 0; k < picks->next_count; k++) {
		u32 beam = g->live[picks->next[k].beam];
		homes[k] = taken[beam] ? BEAM_NONE : beam;
		taken[beam] = true;
	}
	for (u32 i = 0; i < g->live_count; i++)
		if (!taken[g->live[i]])
			give_up_beam(s, g, g->live[i]);
	for (u32 k = 0; k < picks->next_count; k++) {
		if (homes[k] != BEAM_NONE)
			continue;
		while (taken[free])
			free++;
		taken[free] = true;
		homes[k] = free;
		copy_beam(s, g, free, g->live[picks->next[k].beam]);
	}
}

static void go_on(struct sched *s, struct beam_group *g, const struct beam_picks *picks)
{
	u32 homes[BEAM_WIDTH_MAX], nodes[BEAM_WIDTH_MAX], n = picks->next_count;

	for (u32 k = 0; k < n; k++)
		nodes[k] = add_node(s, g, &picks->next[k]);
	for (u32 i = 0; i < g->live_count; i++) {
		struct seq *q = beam_seq(s, g, g->live[i]);
		beam_nodes_unref(&g->tree, g->nodes[g->live[i]]);
		if (q->state == SEQ_RUNNING) /* forks must not file what they share with it once more */
			sched_file_blocks(s, q, s->diff.step);
	}
	find_homes(s, g, picks, homes);
	for (u32 k = 0; k < n; k++) {
		const struct beam_pick *p = &picks->next[k];
		struct seq *q = beam_seq(s, g, homes[k]);
		seqs_tokens(&s->seqs, q)[q->known++] = p->token;
		q->in_flight = 0;
		g->nodes[homes[k]] = nodes[k];
		g->sums[homes[k]] = p->sum;
		g->is_set[homes[k]] = p->token != g->reports[g->live[p->beam]].sampled;
	}
	memcpy(g->live, homes, n * sizeof(u32));
	g->live_count = n;
	g->reported = 0;
	for (u32 beam = 0; beam < g->width; beam++)
		g->reports[beam].there = false;
}

/* All beams have reported. */
static void choose(struct sched *s, struct beam_group *g, u64 now_ns)
{
	struct beam_rule rule = rule_of(s, g);
	struct beam_offer offers[BEAM_WIDTH_MAX];
	struct beam_picks picks;
	struct seq *leader = beam_seq(s, g, 0);
	u32 outputs = seq_output_count(beam_seq(s, g, g->live[0]));

	if (outputs == 0)
		stats_observe(s->stats, STATS_TTFT, (f64)(now_ns - leader->arrived_ns) / 1e9);
	for (u32 i = 0; i < g->live_count; i++) {
		const struct beam_report *r = &g->reports[g->live[i]];
		offers[i] = (struct beam_offer){g->sums[g->live[i]], r->ids, r->values, r->count};
	}
	beam_pick(&rule, offers, g->live_count, outputs, &picks);
	stats_add(s->stats, STATS_GENERATION_TOKENS, g->live_count);
	outputs++;
	for (u32 i = 0; i < picks.ended_count; i++)
		add_answer(s, g, &rule, &picks.ended[i], outputs, FINISH_STOP);
	bool last = outputs == rule.finish.output_max;
	for (u32 i = 0; last && i < picks.next_count; i++)
		add_answer(s, g, &rule, &picks.next[i], outputs, FINISH_LENGTH);
	if (last || picks.next_count == 0 || beam_is_over(&rule, &g->answers, picks.next[0].sum, outputs))
		end(s, g, now_ns);
	else
		go_on(s, g, &picks);
}

void groups_report(struct sched *s, struct seq *q, const struct ipc_result *m, u32 i, u32 lp, u32 ids, u64 now_ns)
{
	struct beam_group *g = groups_of(s, q);
	struct beam_report *r = &g->reports[q->beam];

	if (r->there)
		return;
	r->there = true;
	r->sampled = m->token[i];
	/* The sampled token stands in front of the best. */
	r->count = m->lp_count[lp] - 1 < LOGPROBS_MAX ? m->lp_count[lp] - 1 : LOGPROBS_MAX;
	memcpy(r->ids, m->lp_ids + ids + 1, r->count * sizeof(u32));
	memcpy(r->values, m->lp_values + ids + 1, r->count * sizeof(f32));
	if (++g->reported == g->live_count)
		choose(s, g, now_ns);
}
