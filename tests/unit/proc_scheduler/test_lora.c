/* Adapters in the core: whose number goes into a STEP, when, and that no KV is shared between them. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_scheduler/fixture.h"

static char first[] = "first", second[] = "second", path[] = "path";
static struct lora_module items[] = {{first, path}, {second, path}};
static const struct lora_modules loras = {items, COUNT_OF(items), 16};

static struct fixture *create(u32 blocks)
{
	struct sched_config c = fixture_config();

	c.loras = &loras;
	c.block_count = blocks;
	return fixture_create(&c);
}

static u64 submit(struct fixture *f, const char *lora, u32 from, u32 count, u32 max_tokens)
{
	struct ipc_submit m = fixture_message(f->next_req_id++, from, count, max_tokens);
	struct sched_admission a;
	struct err_msg em;

	m.lora = (const u8 *)lora;
	m.lora_count = (u32)strlen(lora);
	cr_assert_eq(sched_submit(f->s, &m, f->now_ns, &a, &em), ERR_OK, "%s", em.text);
	return a.seq;
}

Test(lora, the_number_is_sent_once_with_the_rows_that_have_one)
{
	struct fixture *f = create(64);

	submit(f, "", 1, 9, 4);
	submit(f, "second", 1, 9, 4);
	submit(f, "first", 1, 9, 4);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->add_row_count, 3);
	cr_assert_eq(step->add_lora_count, 3);
	cr_assert(step->add_lora[0] == 0 && step->add_lora[1] == 2 && step->add_lora[2] == 1);
	fixture_deliver(f);
	step = fixture_plan(f);
	cr_assert_eq(step->add_lora_count, 0);
	fixture_deliver(f);
	submit(f, "", 40, 9, 4); /* and one that has none brings none */
	step = fixture_plan(f);
	cr_assert(step->add_row_count == 1 && step->add_lora_count == 0);
	fixture_deliver(f);
	fixture_run(f);
	fixture_destroy(&f);
}

Test(lora, it_comes_again_when_the_workers_begin_anew)
{
	struct fixture *f = create(64);

	submit(f, "second", 1, 9, 9);
	fixture_plan(f);
	f->result_count = 0; /* lost */
	fake_worker_reset(&f->worker, 64, f->s->context_max);
	sched_restart_workers(f->s, 64, 0, 0, 2);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->add_lora_count, 1);
	cr_assert_eq(step->add_lora[0], 2);
	fixture_deliver(f);
	fixture_run(f);
	fixture_destroy(&f);
}

Test(lora, equal_prompts_share_blocks_within_an_adapter_only)
{
	static const char *const names[] = {"", "first", "second"};
	struct fixture *f = create(256);

	for (u32 round = 0; round < 2; round++)
		for (u32 i = 0; i < COUNT_OF(names); i++) {
			u64 q = submit(f, names[i], 1, 22, 2);
			fixture_plan(f);
			cr_assert_eq(fixture_seq(f, q)->cached_count, round ? 20 : 0, "\"%s\"", names[i]);
			fixture_deliver(f);
			fixture_run(f);
		}
	fixture_destroy(&f);
}

Test(lora, a_name_that_is_not_there_is_refused)
{
	struct fixture *f = create(64), *none;
	struct ipc_submit m = fixture_message(7, 1, 9, 4);
	struct sched_config c = fixture_config();
	struct sched_admission a;
	struct err_msg em;

	m.lora = (const u8 *)"firs";
	m.lora_count = 4;
	cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_NOT_FOUND);
	cr_assert(strstr(em.text, "no adapter \"firs\"; this server has 2"), "%s", em.text);
	fixture_destroy(&f);
	none = fixture_create(&c);
	cr_assert_eq(sched_submit(none->s, &m, 1, &a, &em), ERR_NOT_FOUND);
	fixture_destroy(&none);
}
