/* The streams in a world where results are lost, doubled and early, where scheduler and detokenizer die and
 * begin anew, and clients come and go: every request must still end once, with the tokens and the text that
 * it has in peace. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/finish.h"
#include "stream_oracle.h"

enum { REQUESTS = 6, CLIENT = 7 };

/* A request as its scheduler sees it. */
struct job {
	struct scenario scenario;
	struct stop_list stops;
	struct oracle oracle;
	u64 req_id;
	u64 seq;
	u32 known;  /* outputs the scheduler has */
	bool live;  /* the scheduler runs it */
	bool ended; /* it has ended there: told again after a restart of the detokenizer */
	u32 end_reason;
	bool confirm;	/* it is a session's turn: its end is held until the scheduler says that it has it */
	bool tell;	/* which it has not said yet */
	bool kept;	/* all its outputs outlive the scheduler */
	u32 stop_count; /* 0: no stop string was found, else the scheduler waits for so many outputs */
};

struct world {
	struct streams *ss;
	struct job jobs[REQUESTS];
	struct client_view *view;
	bool attached;
	u64 epoch;
	u64 next_seq;
	u64 now_ns;
};

static struct request_view *view_of(struct world *w, const struct job *j)
{
	return view_request(w->view, j->req_id);
}

/* OPEN with everything that the scheduler has of it. */
static void job_open(struct world *w, struct job *j)
{
	struct ipc_open open = scenario_open(&j->scenario, j->seq, &j->stops);
	open.client_id = CLIENT;
	open.req_id = j->req_id;
	open.output_tokens = j->scenario.tokens;
	open.output_tokens_count = j->known;
	open.confirm = j->confirm;
	streams_open(w->ss, &open, w->epoch, w->now_ns);
}

static void job_close(struct world *w, struct job *j)
{
	struct ipc_close close = {.seq = j->seq, .reason = j->end_reason, .output_count = j->known};
	streams_close(w->ss, &close, w->now_ns);
	j->tell = false;
}

/* The scheduler has the end of it. */
static void job_end(struct job *j, u32 reason)
{
	j->live = false;
	j->ended = true;
	j->end_reason = reason;
	j->tell = j->confirm;
	j->kept = true;
}

static void job_tell(struct world *w, struct job *j)
{
	struct ipc_close close = {.seq = j->seq, .reason = FINISH_NONE, .output_count = j->known};
	streams_close(w->ss, &close, w->now_ns);
	j->tell = false;
}

static void open_everything(struct world *w)
{
	for (u32 i = 0; i < REQUESTS; i++) {
		struct job *j = &w->jobs[i];
		if (!j->live && !j->ended)
			continue;
		job_open(w, j);
		if (j->ended)
			job_close(w, j);
	}
}

static void client_attach(struct world *w)
{
	u64 ids[REQUESTS];
	u32 tokens[REQUESTS], n = 0;
	for (u32 i = 0; i < REQUESTS; i++) {
		const struct request_view *r = view_of(w, &w->jobs[i]);
		if (r->finishes > 0)
			continue;
		ids[n] = r->req_id;
		tokens[n++] = r->token_count;
	}
	struct ipc_attach attach = {.client_id = CLIENT,
				    .live_req_id = ids,
				    .live_req_id_count = n,
				    .live_token_count = tokens,
				    .live_token_count_count = n};
	cr_assert_eq(streams_client_ready(w->ss, &attach), ERR_OK);
	w->attached = true;
}

static void client_read(struct world *w)
{
	if (!w->attached)
		client_attach(w);
	view_drain(w->view, w->ss);
	for (u32 i = 0; i < REQUESTS; i++) {
		const struct job *j = &w->jobs[i];
		const struct request_view *r = view_of(w, j);
		if (j->confirm && r->finishes)
			cr_assert(j->kept && j->known >= r->token_count, "what the client has heard of could be lost");
	}
}

/* STOPPEDs reach the scheduler. */
static void stopped_read(struct world *w)
{
	struct ipc_stopped stopped;
	while (streams_peek_stopped(w->ss, &stopped)) {
		for (u32 i = 0; i < REQUESTS; i++) {
			struct job *j = &w->jobs[i];
			if (!j->live || j->seq != stopped.seq)
				continue;
			j->stop_count = stopped.output_count;
			if (!j->confirm || j->stop_count <= j->known)
				job_end(j, FINISH_STOP);
		}
		streams_pop_stopped(w->ss);
	}
}

/* ---------------------------------------------------------------- what happens */

static void result_send(struct world *w, const struct job *j, u32 position)
{
	struct ipc_result r = {.seq = &j->seq,
			       .seq_count = 1,
			       .position = &position,
			       .position_count = 1,
			       .token = &j->scenario.tokens[position],
			       .token_count = 1};
	streams_result(w->ss, &r, w->epoch, w->now_ns);
}

/* One step of a request: the scheduler has the token at once, its way to here is hard. */
static void job_step(struct world *w, struct job *j)
{
	const struct scenario *c = &j->scenario;
	static const u32 eos[] = {TOK_EOS};
	struct finish_rule rule = {.output_max = c->output_max,
				   .output_min = c->output_min,
				   .eos_ids = eos,
				   .eos_count = 1,
				   .stop_ids = &c->stop_id,
				   .stop_count = 1};

	if (j->known == c->token_count) {
		if (j->oracle.finish != FINISH_NONE)
			return; /* a stop string is on its way here */
		/* the scenario has no end of its own */
		job_end(j, FINISH_ABORT);
		job_close(w, j);
		return;
	}
	u32 position = j->known++, luck = (u32)rand() % 100;
	if (luck >= 5)
		result_send(w, j, position);
	if (luck < 15)
		result_send(w, j, (u32)rand() % j->known);
	struct finish fin = finish_check(&rule, j->known, c->tokens[position]);
	if (fin.reason == FINISH_NONE && j->stop_count && j->stop_count <= j->known)
		fin.reason = FINISH_STOP;
	if (fin.reason != FINISH_NONE)
		job_end(j, fin.reason);
}

static void detokenizer_dies(struct world *w)
{
	streams_destroy(&w->ss);
	w->ss = fixture_streams(32);
	w->attached = false;
	if (rand() % 2)
		client_attach(w);
	open_everything(w);
}

/* Everything forgotten but what the client holds. */
static void scheduler_dies(struct world *w)
{
	client_read(w);
	w->epoch += 1000;
	streams_scheduler_restarted(w->ss, w->epoch, w->now_ns);
	client_read(w); /* aborts that waited for tokens have ended by that */
	for (u32 i = 0; i < REQUESTS; i++) {
		struct job *j = &w->jobs[i];
		const struct request_view *r = view_of(w, j);
		j->live = r->finishes == 0;
		j->ended = j->tell = false;
		j->stop_count = 0;
		if (!j->live)
			continue;
		j->kept = false;
		j->seq = w->next_seq++;
		j->known = r->token_count;
		job_open(w, j);
	}
}

static void something_happens(struct world *w)
{
	u32 luck = (u32)rand() % 1000;
	w->now_ns++;
	if (luck < 8) {
		detokenizer_dies(w);
	} else if (luck < 16) {
		scheduler_dies(w);
	} else if (luck < 200) {
		client_read(w);
	} else if (luck < 300) {
		stopped_read(w);
	} else if (luck < 310 || (luck < 400 && streams_take_gap(w->ss))) {
		open_everything(w);
	} else {
		struct job *j = &w->jobs[(u32)rand() % REQUESTS];
		if (j->live)
			job_step(w, j);
		else if (j->tell)
			job_tell(w, j);
	}
}

/* ---------------------------------------------------------------- the run */

static void world_begin(struct world *w)
{
	w->ss = fixture_streams(32);
	w->attached = false;
	memset(w->view, 0, sizeof(struct request_view) * REQUESTS);
	w->view->count = 0;
	w->view->skip_ended = true;
	for (u32 i = 0; i < REQUESTS; i++) {
		struct job *j = &w->jobs[i];
		memset(j, 0, sizeof(*j));
		scenario_draw(&j->scenario);
		oracle_run(&j->scenario, &j->oracle);
		j->req_id = i + 1;
		j->seq = w->next_seq++;
		j->live = true;
		j->confirm = rand() % 2;
		if (rand() % 2)
			job_step(w, j); /* a result before its OPEN */
		if (j->live || j->ended)
			job_open(w, j);
	}
}

static bool all_told(struct world *w)
{
	for (u32 i = 0; i < REQUESTS; i++)
		if (view_of(w, &w->jobs[i])->finishes == 0)
			return false;
	return true;
}

static void job_check(struct world *w, const struct job *j, u32 round)
{
	struct oracle o = j->oracle;
	const struct request_view *r = view_of(w, j);

	cr_assert_eq(r->finishes, 1);
	cr_assert_neq(r->finish, FINISH_ERROR, "round %u: %s", round, r->error);
	if (o.finish == FINISH_NONE) {
		/* an abort need not wait for tokens that are lost when the scheduler dies */
		o.finish = FINISH_ABORT;
		o.token_count = r->token_count < o.token_count ? r->token_count : o.token_count;
		o.text_bytes = naive_text(&j->scenario, o.token_count, false, true, o.text);
	}
	cr_assert_eq(r->finish, o.finish, "round %u: ended with %u instead of %u", round, r->finish,
		     o.finish);
	cr_assert_eq(r->token_count, o.token_count, "round %u: %u tokens instead of %u", round,
		     r->token_count, o.token_count);
	cr_assert_eq(memcmp(r->tokens, j->scenario.tokens, o.token_count * sizeof(u32)), 0, "round %u",
		     round);
	cr_assert_eq(r->text_bytes, o.text_bytes, "round %u: '%s' instead of '%.*s'", round, r->text,
		     (int)o.text_bytes, o.text);
	cr_assert_eq(memcmp(r->text, o.text, o.text_bytes), 0, "round %u", round);
}

Test(streams_faults, every_request_ends_once_with_the_text_it_has_in_peace, .timeout = 120)
{
	struct world w = {.view = calloc(1, sizeof(*w.view)), .epoch = 1, .next_seq = 1, .now_ns = 1};

	oracle_words();
	srand(777);
	for (u32 round = 0; round < 5000; round++) {
		world_begin(&w);
		for (u32 step = 0; !all_told(&w); step++) {
			cr_assert_lt(step, 20000, "round %u: a request never ends", round);
			something_happens(&w);
		}
		for (u32 i = 0; i < REQUESTS; i++)
			job_check(&w, &w.jobs[i], round);
		streams_destroy(&w.ss);
	}
	free(w.view);
}
