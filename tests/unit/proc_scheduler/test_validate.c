/* What SUBMIT is refused for: each with its error and the number that would be right. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/proc_scheduler/fixture.h"

static struct fixture *f;
static struct ipc_submit m;
static struct err_msg em;

static void setup(void)
{
	struct sched_config c = fixture_config();

	f = fixture_create(&c);
	m = fixture_message(1, 1, 10, 5);
}

static void teardown(void)
{
	fixture_destroy(&f);
}

TestSuite(validate, .init = setup, .fini = teardown);

static enum err submit(void)
{
	struct sched_admission a;
	enum err e = sched_submit(f->s, &m, 1, &a, &em);

	cr_assert_eq(sched_live_count(f->s), e == ERR_OK, "a refused request leaves nothing behind");
	return e;
}

#define REFUSED(code, part)                                      \
	do {                                                     \
		cr_assert_eq(submit(), code);                    \
		cr_assert(strstr(em.text, part), "%s", em.text); \
	} while (0)

Test(validate, a_good_request_is_accepted)
{
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
}

Test(validate, an_empty_prompt)
{
	m.tokens_count = 0;
	REFUSED(ERR_INVALID, "empty");
}

Test(validate, outputs_without_a_prompt)
{
	m.output_count = 10;
	REFUSED(ERR_INVALID, "output_count is 10");
}

Test(validate, a_prompt_as_long_as_the_context_names_both_lengths)
{
	m.tokens_count = 128;
	REFUSED(ERR_TOO_LONG, "128 tokens");
	m.tokens_count = 127;
	m.tokens = fixture_message(1, 1, 127, 5).tokens;
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
}

Test(validate, a_prompt_that_the_pool_can_never_hold_names_both_numbers)
{
	struct sched_config c = fixture_config();
	c.block_count = 8;
	fixture_destroy(&f);
	f = fixture_create(&c);
	m = fixture_message(1, 1, 32, 5);
	REFUSED(ERR_NEVER_FITS, "needs 9 KV blocks of 4");
	cr_assert(strstr(em.text, "has 8"), "%s", em.text);
	m = fixture_message(1, 1, 31, 5);
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
}

Test(validate, those_behind_a_request_that_never_fits_proceed)
{
	m.tokens_count = 128;
	cr_assert_eq(submit(), ERR_TOO_LONG);
	u64 seq = fixture_submit(f, 1, 5, 2);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, seq)->reason, FINISH_LENGTH);
}

Test(validate, a_token_outside_the_vocabulary)
{
	u32 tokens[2] = {1, FIXTURE_VOCAB};
	m.tokens = tokens;
	m.tokens_count = 2;
	REFUSED(ERR_INVALID, "tokens[1] is 1000");
}

Test(validate, a_stop_id_and_a_bias_outside_the_vocabulary)
{
	u32 id = 5000;
	f32 value = 1;
	m.stop_ids = &id;
	m.stop_ids_count = 1;
	REFUSED(ERR_INVALID, "stop_token_ids[0] is 5000");
	m.stop_ids_count = 0;
	m.bias_ids = &id;
	m.bias_ids_count = 1;
	REFUSED(ERR_INVALID, "1 ids and 0 values");
	m.bias_values = &value;
	m.bias_values_count = 1;
	REFUSED(ERR_INVALID, "logit_bias[0] is 5000");
}

Test(validate, biases_out_of_range_and_not_numbers)
{
	u32 id = 5;
	f32 value = NAN;
	m.bias_ids = &id;
	m.bias_values = &value;
	m.bias_ids_count = m.bias_values_count = 1;
	REFUSED(ERR_INVALID, "logit_bias of token 5");
	value = -100.5f;
	REFUSED(ERR_INVALID, "-100");
	value = -100;
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
}

Test(validate, too_many_of_anything)
{
	m.stop_ids_count = STOP_IDS_MAX + 1;
	REFUSED(ERR_INVALID, "65 stop ids");
	m.stop_ids_count = 0;
	m.bias_ids_count = m.bias_values_count = BIAS_MAX + 1;
	REFUSED(ERR_INVALID, "1025");
	m.bias_ids_count = m.bias_values_count = 0;
	m.stop_string_bytes_count = STOP_STRINGS_MAX + 1;
	REFUSED(ERR_INVALID, "17 stop strings");
	m.stop_string_bytes_count = 0;
	m.stop_strings_count = STOP_STRING_BYTES_MAX + 1;
	REFUSED(ERR_TOO_LONG, "1025 bytes");
}

Test(validate, sampling_parameters_out_of_range)
{
	m.temperature = -1;
	REFUSED(ERR_INVALID, "temperature");
	m.temperature = NAN;
	REFUSED(ERR_INVALID, "temperature");
	m.temperature = 1;
	m.top_p = 0;
	REFUSED(ERR_INVALID, "top_p");
	m.top_p = 1;
	m.max_tokens = 0;
	REFUSED(ERR_INVALID, "max_tokens");
	m.max_tokens = 5;
	m.min_tokens = 6;
	REFUSED(ERR_INVALID, "min_tokens");
	m.min_tokens = 0;
	m.flags = 1u << 20;
	REFUSED(ERR_INVALID, "flags");
}

Test(validate, stop_strings_that_do_not_add_up_or_are_not_utf8)
{
	u32 bytes[2] = {3, 2};
	m.stop_string_bytes = bytes;
	m.stop_string_bytes_count = 2;
	m.stop_strings = (const u8 *)"abc\xff\xfe";
	m.stop_strings_count = 5;
	REFUSED(ERR_INVALID, "stop string 1 is not valid UTF-8");
	m.stop_strings = (const u8 *)"abcde";
	m.stop_strings_count = 4;
	REFUSED(ERR_INVALID, "stop string 1 ends behind");
	m.stop_strings_count = 6;
	m.stop_strings = (const u8 *)"abcdef";
	REFUSED(ERR_INVALID, "add up to 5");
	bytes[1] = 0;
	m.stop_strings_count = 3;
	REFUSED(ERR_INVALID, "stop string 1 is empty");
	bytes[1] = 2;
	m.stop_strings_count = 5;
	m.flags |= SAMPLING_NO_TEXT;
	REFUSED(ERR_INVALID, "tokens only");
}

Test(validate, a_length_that_would_wrap_around)
{
	u32 bytes[3] = {0xffffffff, 2, 4};
	m.stop_string_bytes = bytes;
	m.stop_string_bytes_count = 3;
	m.stop_strings = (const u8 *)"abcde";
	m.stop_strings_count = 5;
	REFUSED(ERR_INVALID, "stop string 0 ends behind");
}

Test(validate, a_priority_without_the_policy_for_it)
{
	m.priority = 3;
	REFUSED(ERR_UNSUPPORTED, "priority is 3; the server runs with --scheduling-policy fcfs");
}

Test(validate, more_outputs_than_max_tokens_allows)
{
	m.output_count = 6;
	REFUSED(ERR_INVALID, "output_count is 6");
}

Test(validate, a_request_id_that_is_in_use)
{
	struct sched_admission a;

	cr_assert_eq(submit(), ERR_OK);
	cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_EXISTS);
	m.client_id = 2;
	cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_OK, "another client's ids are its own");
	sched_abort(f->s, 2, 1, 1);
	cr_assert_eq(sched_submit(f->s, &m, 1, &a, &em), ERR_OK, "an ended one may be used again");
}

/* ---------------------------------------------------------------- grammars */

Test(validate, a_grammar_is_taken_and_goes_with_every_add)
{
	static const char source[] = "[ab]+";

	m.grammar_kind = GRAMMAR_REGEX;
	m.grammar = (const u8 *)source;
	m.grammar_count = sizeof(source) - 1;
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	const struct ipc_step *step = fixture_plan(f);
	cr_assert_eq(step->grammar_add_count, 1);
	cr_assert_eq(step->grammar_kind[0], GRAMMAR_REGEX);
	cr_assert_eq(step->grammar_text_count, sizeof(source) - 1);
	cr_assert_eq(memcmp(step->grammar_text, source, sizeof(source) - 1), 0);
	cr_assert_eq(f->worker.batch->grammar_count, 1);
	fixture_deliver(f);
	step = fixture_plan(f);
	cr_assert_eq(step->grammar_add_count, 0, "only an add brings it");
	fixture_deliver(f);
	fake_worker_reset(&f->worker, f->s->kv.count, f->s->context_max);
	sched_restart_workers(f->s, f->s->kv.count, 0, 0, 2);
	step = fixture_plan(f);
	cr_assert_eq(step->grammar_add_count, 1, "and the worker that knows nothing gets it again");
	cr_assert_eq(step->add_token_count[0] - step->add_prompt_count[0], 2, "with the outputs that it has to replay");
}

Test(validate, grammars_that_cannot_be_name_what_is_wrong)
{
	static u8 text[GRAMMAR_SOURCE_MAX + 1];

	m.grammar = text;
	m.grammar_count = 1;
	REFUSED(ERR_INVALID, "grammar_kind is 0; of a grammar it must be 1 to 6");
	m.grammar_kind = GRAMMAR_KIND_COUNT;
	REFUSED(ERR_INVALID, "grammar_kind is 7");
	m.grammar_kind = GRAMMAR_REGEX;
	m.grammar_flags = 2;
	REFUSED(ERR_INVALID, "grammar_flags is 2");
	m.grammar_flags = 0;
	m.grammar_count = GRAMMAR_SOURCE_MAX + 1;
	REFUSED(ERR_TOO_LONG, "131073 bytes; at most 131072");
	m.grammar_count = 0;
	REFUSED(ERR_INVALID, "a source of 0 bytes");
	m.grammar_count = 1;
	text[0] = 0xff;
	REFUSED(ERR_INVALID, "not valid UTF-8");
	text[0] = 'a';
	m.flags = SAMPLING_IGNORE_EOS;
	REFUSED(ERR_INVALID, "ignore_eos");
	m.flags = 0;
	m.beam_width = 2;
	m.temperature = 0;
	REFUSED(ERR_UNSUPPORTED, "beam search cannot be constrained");
}

Test(validate, workers_without_a_tokenizer_take_no_grammar)
{
	struct sched_config c = fixture_config();

	snprintf(c.no_grammars, sizeof(c.no_grammars), "no tokenizer.json");
	fixture_destroy(&f);
	f = fixture_create(&c);
	m.grammar_kind = GRAMMAR_JSON_OBJECT;
	REFUSED(ERR_UNSUPPORTED, "cannot constrain outputs: no tokenizer.json");
	m.grammar_kind = GRAMMAR_KIND_NONE;
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
}

Test(validate, embeddings_are_told_only_where_there_are_any)
{
	struct sched_config c = fixture_config();
	const u32 rows = c.max_num_seqs;

	m.flags |= SAMPLING_EMBEDDING;
	REFUSED(ERR_UNSUPPORTED, "gives no embeddings");
	c.embedding_width = IPC_EMBEDDING_VALUES_MAX / rows;
	fixture_destroy(&f);
	f = fixture_create(&c);
	m.beam_width = 2;
	REFUSED(ERR_INVALID, "a beam search has no embedding");
	m.beam_width = 0;
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	c.embedding_width++;
	fixture_destroy(&f);
	f = fixture_create(&c);
	REFUSED(ERR_UNSUPPORTED, "--max-num-seqs");
	c.embedding_width = 8;
	snprintf(c.no_embeddings, sizeof(c.no_embeddings), "of another pooling");
	fixture_destroy(&f);
	f = fixture_create(&c);
	REFUSED(ERR_UNSUPPORTED, "gives no embeddings: of another pooling");
}

Test(validate, without_an_lm_head_there_is_nothing_but_embeddings)
{
	struct sched_config c = fixture_config();

	c.embedding_width = 8;
	c.headless = true;
	fixture_destroy(&f);
	f = fixture_create(&c);
	REFUSED(ERR_UNSUPPORTED, "no lm_head");
	m.flags |= SAMPLING_EMBEDDING;
	m.max_tokens = 2;
	REFUSED(ERR_UNSUPPORTED, "max_tokens must be 1");
	m.max_tokens = 1;
	m.prompt_logprobs = 1;
	REFUSED(ERR_UNSUPPORTED, "no lm_head");
	m.prompt_logprobs = -1;
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
}

Test(validate, below_min_tokens_a_grammar_decides_what_ends_a_request)
{
	m.min_tokens = 3;
	m.grammar_kind = GRAMMAR_JSON_OBJECT;
	cr_assert_eq(submit(), ERR_OK, "%s", em.text);
	const struct seq *q = NULL;
	for (u32 i = 0; i < f->s->seqs.slot_count; i++)
		if (f->s->seqs.slots[i].id)
			q = &f->s->seqs.slots[i];
	cr_assert(q != NULL);
	cr_assert_eq(seq_output_min(q, seqs_extra(&f->s->seqs, q)), 0);
}

Test(validate, a_sequence_that_a_worker_gives_up_ends_with_its_words)
{
	u64 seq = fixture_submit(f, 1, 5, 4), other = fixture_submit(f, 9, 5, 4);

	(void)fixture_plan(f);
	sched_fail(f->s, seq, "the grammar cannot be compiled", 3);
	sched_fail(f->s, seq, "again", 4);
	fixture_deliver(f);
	fixture_run(f);
	cr_assert_eq(fixture_end_of(f, seq)->reason, FINISH_ERROR);
	cr_assert_str_eq(fixture_end_of(f, seq)->text, "the grammar cannot be compiled");
	cr_assert_eq(fixture_end_of(f, other)->reason, FINISH_LENGTH);
}
