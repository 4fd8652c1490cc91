/* A scheduling core with sessions, of which tests use one, "talk". */
#ifndef TERCET_TESTS_UNIT_PROC_SCHEDULER_TALK_H
#define TERCET_TESTS_UNIT_PROC_SCHEDULER_TALK_H

#include <criterion/criterion.h>

#include "tests/unit/proc_scheduler/fixture.h"

/* Blocks of 16, room for four sessions; 999 ends a sequence. destroy() gives the sessions back. */
static inline struct sched_config config_with_sessions(void)
{
	struct sched_config c = fixture_config();
	struct sessions_config sc = {.session_max = 4, .token_max = 4096, .secret = 3};

	c.block_size = 16;
	c.max_model_len = 256;
	c.max_num_batched_tokens = 256;
	c.eos_count = 1;
	c.eos_ids[0] = 999;
	cr_assert_eq(sessions_create(&c.sessions, &sc, NULL), ERR_OK);
	return c;
}

static inline void destroy(struct fixture *f, struct sched_config *c)
{
	fixture_destroy(&f);
	sessions_destroy(&c->sessions);
}

/* A turn of the session "talk". */
static inline struct ipc_submit message(u64 req_id, u32 first, u32 count, u32 max_tokens, u32 flags)
{
	struct ipc_submit m = fixture_message(req_id, first, count, max_tokens);

	m.session = (const u8 *)"talk";
	m.session_count = 4;
	m.session_flags = flags;
	m.flags |= SAMPLING_IGNORE_EOS;
	return m;
}

/* `seq` may be NULL. */
static inline enum err submit(struct fixture *f, const struct ipc_submit *m, u64 *seq, struct err_msg *em)
{
	struct sched_admission a;
	enum err e = sched_submit(f->s, m, f->now_ns, &a, em);

	if (seq)
		*seq = a.seq;
	return e;
}

/* Submits what is accepted; the sequence. */
static inline u64 good(struct fixture *f, const struct ipc_submit *m)
{
	struct err_msg em;
	u64 seq;

	cr_assert_eq(submit(f, m, &seq, &em), ERR_OK, "%s", em.text);
	return seq;
}

/* NULL: it is not there. */
static inline struct session *talk(struct fixture *f)
{
	return sessions_find(f->s->config.sessions, 0, (const u8 *)"talk", 4);
}

#endif
