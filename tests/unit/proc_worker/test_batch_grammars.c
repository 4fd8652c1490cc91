/* Grammars of rows: brought by an add, kept for as long as the row, copied by a fork. */

#include "tests/unit/proc_worker/batch_fixture.h"

static void expect_grammar(const struct batch_state *b, u32 row, u32 kind, const char *source)
{
	cr_assert_eq(b->rows[row].grammar_kind, kind);
	cr_assert_eq(b->rows[row].grammar_bytes, strlen(source));
	cr_assert(memcmp(batch_state_grammar(b, row), source, strlen(source)) == 0);
}

Test(batch_grammars, a_grammar_stays_with_its_row)
{
	struct batch_state *b = create();
	struct mirror *m = mirror();
	struct mirror_add plain = prompt(0, 1, 3, 1), first = prompt(1, 2, 3, 1), second = prompt(2, 3, 3, 1);
	static const u32 others[2] = {1, 2};

	first.grammar_kind = GRAMMAR_REGEX;
	first.grammar = "[a-z]+";
	second.grammar_kind = GRAMMAR_JSON_OBJECT;
	mirror_begin(m);
	mirror_add(m, &plain);
	mirror_add(m, &first);
	mirror_add(m, &second);
	for (u32 row = 0; row < 3; row++)
		mirror_run(m, row, 3);
	step(m, b, TOKENS);
	cr_assert_eq(b->grammar_count, 2);
	cr_assert_eq(b->rows[0].grammar_kind, GRAMMAR_KIND_NONE);
	expect_grammar(b, 1, GRAMMAR_REGEX, "[a-z]+");
	expect_grammar(b, 2, GRAMMAR_JSON_OBJECT, "");

	/* Row 1 goes, comes again with what it has got, and is copied; row 0 goes, and the next one there has none. */
	mirror_begin(m);
	mirror_drop(m, 1);
	mirror_drop(m, 0);
	first = prompt(1, 2, 4, 1);
	first.prompt_count = 3;
	first.computed = 0;
	first.grammar_kind = GRAMMAR_REGEX;
	first.grammar = "[a-z]+";
	mirror_add(m, &first);
	plain.row = 0;
	plain.seq = 9;
	mirror_add(m, &plain);
	mirror_run(m, 1, 4);
	mirror_run(m, 0, 3);
	step(m, b, TOKENS);
	cr_assert_eq(b->grammar_count, 2);
	expect_grammar(b, 1, GRAMMAR_REGEX, "[a-z]+");
	cr_assert_eq(b->rows[0].grammar_kind, GRAMMAR_KIND_NONE);
	mirror_begin(m);
	mirror_fork(m, 3, 1, 4, UINT32_MAX);
	mirror_grow(m, 1, 30);
	mirror_grow(m, 2, 31);
	mirror_grow(m, 3, 32);
	mirror_grow(m, 0, 33);
	step(m, b, TOKENS);
	cr_assert_eq(b->grammar_count, 3);
	expect_grammar(b, 3, GRAMMAR_REGEX, "[a-z]+");
	mirror_begin(m);
	mirror_drop(m, others[0]);
	mirror_drop(m, others[1]);
	mirror_drop(m, 3);
	step(m, b, TOKENS);
	cr_assert_eq(b->grammar_count, 0);
	batch_state_destroy(&b);
}

Test(batch_grammars, grammars_that_cannot_be_are_refused_by_name)
{
	static const struct {
		u32 add, kind, bytes;
		const char *text;
	} cases[] = {
		{1, GRAMMAR_REGEX, 1, "grammar_add[0] is 1; it must be an index from 0 into the 1 rows added"},
		{0, GRAMMAR_KIND_NONE, 1, "grammar_kind[0] is 0"},
		{0, GRAMMAR_KIND_COUNT, 1, "grammar_kind[0] is 7; it must be 1 to 6"},
		{0, GRAMMAR_REGEX, 2, "grammar_text has 1 elements; 2 are needed"},
	};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		struct batch_state *b = create();
		struct mirror *m = mirror();
		struct mirror_add add = prompt(0, 1, 3, 1);
		add.grammar_kind = GRAMMAR_REGEX;
		add.grammar = "a";
		mirror_begin(m);
		mirror_add(m, &add);
		mirror_run(m, 0, 3);
		m->grammar_add[0] = cases[i].add;
		m->grammar_kind[0] = cases[i].kind;
		m->grammar_bytes[0] = cases[i].bytes;
		cr_assert_eq(refused(m, b, cases[i].text), ERR_INVALID);
		batch_state_destroy(&b);
	}
}
