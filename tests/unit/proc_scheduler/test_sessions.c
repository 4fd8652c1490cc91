/* The store of histories: bounds, order of leaving, cutting and growing. */
#include <criterion/criterion.h>
#include <string.h>

#include "proc_scheduler/sessions.h"

static const i64 SECOND = 1000000000;

static struct sessions *create(u32 sessions, u32 chunks, u64 ttl_s)
{
	struct sessions_config c = {.session_max = sessions,
				    .token_max = chunks * SESSION_CHUNK_TOKENS,
				    .ttl_ns = ttl_s * (u64)SECOND,
				    .secret = 7};
	struct sessions *ss;
	struct err_msg em;

	cr_assert_eq(sessions_create(&ss, &c, &em), ERR_OK, "%s", em.text);
	return ss;
}

static struct session *find(struct sessions *ss, u64 owner, const char *name)
{
	return sessions_find(ss, owner, (const u8 *)name, (u32)strlen(name));
}

static struct session *add(struct sessions *ss, u64 owner, const char *name, i64 now)
{
	struct session *s;

	cr_assert_eq(sessions_add(ss, owner, (const u8 *)name, (u32)strlen(name), now, &s), ERR_OK);
	return s;
}

/* A turn whose tokens are first, first + 1, ... */
static void turn(struct sessions *ss, struct session *s, u32 base, u32 first, u32 count, i64 now)
{
	static u32 tokens[8 * SESSION_CHUNK_TOKENS];

	for (u32 i = 0; i < count; i++)
		tokens[i] = first + i;
	s->turn_base = base;
	sessions_begin_turn(ss, s, 99, now);
	sessions_end_turn(ss, s, tokens, count, 0, now);
}

static enum err missing(const struct sessions *ss, const char *name, struct err_msg *em)
{
	return sessions_missing(ss, 0, (const u8 *)name, (u32)strlen(name), em);
}

Test(sessions, a_history_grows_over_chunks_and_reads_back)
{
	struct sessions *ss = create(2, 8, 0);
	struct session *s = add(ss, 0, "a", 0);
	u32 out[3 * SESSION_CHUNK_TOKENS];

	turn(ss, s, 0, 0, 300, 0);
	turn(ss, s, 300, 300, 212, 0);
	turn(ss, s, 512, 512, 1, 0);
	cr_assert_eq(s->token_count, 513);
	cr_assert_eq(s->turn_count, 3);
	cr_assert_eq(ss->free_chunks, 5);
	sessions_read(ss, s, out, 513);
	for (u32 i = 0; i < 513; i++) {
		cr_assert_eq(out[i], i);
		cr_assert_eq(sessions_token(ss, s, i), i);
	}
	sessions_destroy(&ss);
}

Test(sessions, a_turn_from_an_earlier_base_forgets_what_came_behind)
{
	struct sessions *ss = create(2, 8, 0);
	struct session *s = add(ss, 0, "a", 0);
	u32 out[600];

	turn(ss, s, 0, 0, 600, 0);
	s->kv_tokens = 599;
	sessions_cut(ss, s, 300);
	cr_assert_eq(s->kv_tokens, 300);
	turn(ss, s, 256, 1000, 4, 0);
	cr_assert_eq(s->token_count, 260);
	cr_assert_eq(ss->free_chunks, 6);
	cr_assert_eq(ss->token_total, 260);
	sessions_read(ss, s, out, 260);
	cr_assert_eq(out[255], 255);
	cr_assert_eq(out[256], 1000);
	sessions_cut(ss, s, 0);
	cr_assert_eq(ss->free_chunks, 8);
	sessions_destroy(&ss);
}

Test(sessions, names_belong_to_their_owner)
{
	struct sessions *ss = create(4, 4, 0);
	struct session *a = add(ss, 1, "talk", 0), *b = add(ss, 2, "talk", 0);

	cr_assert_neq(a, b);
	cr_assert_eq(find(ss, 1, "talk"), a);
	cr_assert_eq(find(ss, 2, "talk"), b);
	cr_assert_null(find(ss, 0, "talk"));
	cr_assert_null(find(ss, 1, "tal"));
	sessions_destroy(&ss);
}

Test(sessions, names_are_checked)
{
	static const struct {
		const char *name;
		bool good;
	} cases[] = {{"a", true},   {"A-z_0.9:", true}, {"", false},	   {"a b", false},
		     {"a/b", false}, {"\xc3\xa9", false}, {"a\nb", false}};
	char longest[SESSION_NAME_MAX + 2];
	struct err_msg em;

	for (size_t i = 0; i < COUNT_OF(cases); i++)
		cr_assert_eq(session_name_check((const u8 *)cases[i].name, (u32)strlen(cases[i].name), &em) == ERR_OK,
			     cases[i].good, "%s", cases[i].name);
	memset(longest, 'x', sizeof(longest));
	cr_assert_eq(session_name_check((const u8 *)longest, SESSION_NAME_MAX, &em), ERR_OK);
	cr_assert_eq(session_name_check((const u8 *)longest, SESSION_NAME_MAX + 1, &em), ERR_INVALID);
	cr_assert_eq(session_name_check((const u8 *)"a\0b", 3, &em), ERR_INVALID);
}

Test(sessions, the_least_recently_used_leaves_first_and_is_remembered)
{
	struct sessions *ss = create(2, 4, 0);
	struct err_msg em;

	turn(ss, add(ss, 0, "a", 1), 0, 0, 5, 1);
	turn(ss, add(ss, 0, "b", 2), 0, 0, 5, 2);
	turn(ss, find(ss, 0, "a"), 5, 5, 5, 3);
	add(ss, 0, "c", 4);
	cr_assert_null(find(ss, 0, "b"));
	cr_assert_not_null(find(ss, 0, "a"));
	cr_assert_eq(missing(ss, "b", &em), ERR_DROPPED);
	cr_assert(strstr(em.text, "--max-sessions"), "%s", em.text);
	cr_assert_eq(missing(ss, "d", &em), ERR_NOT_FOUND);
	add(ss, 0, "b", 5); /* it is begun anew */
	cr_assert_not_null(find(ss, 0, "b"));
	cr_assert_eq(ss->count, 2);
	sessions_destroy(&ss);
}

Test(sessions, tokens_push_out_idle_sessions_but_none_that_runs)
{
	struct sessions *ss = create(4, 4, 0);
	struct session *a = add(ss, 0, "a", 1), *b = add(ss, 0, "b", 2), *c = add(ss, 0, "c", 3);
	struct err_msg em;

	turn(ss, a, 0, 0, 256, 1);
	turn(ss, b, 0, 0, 256, 2);
	turn(ss, c, 0, 0, 256, 3);
	sessions_begin_turn(ss, a, 5, 4); /* it would be the first to leave */
	turn(ss, c, 256, 0, 512, 5);
	cr_assert_null(find(ss, 0, "b"));
	cr_assert_not_null(find(ss, 0, "a"));
	cr_assert_eq(c->token_count, 768);
	turn(ss, c, 768, 0, 1, 6); /* only `a` could make room, and it runs */
	cr_assert_null(find(ss, 0, "c"));
	cr_assert_eq(missing(ss, "c", &em), ERR_DROPPED);
	cr_assert(strstr(em.text, "--session-tokens"), "%s", em.text);
	cr_assert_eq(ss->free_chunks, 3);
	sessions_destroy(&ss);
}

static struct session *retired(struct sessions *ss, const char *name, u32 tokens, i64 now_ns)
{
	struct session *s = add(ss, 0, name, now_ns);

	turn(ss, s, 0, 0, tokens, now_ns);
	s->ending = true;
	s->turn_base = s->token_count;
	sessions_begin_turn(ss, s, 9, now_ns);
	sessions_retire(ss, s, now_ns);
	return s;
}

Test(sessions, those_that_are_over_leave_before_idle_ones_and_count_for_nobody)
{
	struct sessions *ss = create(3, 4, 0);
	struct err_msg em;
	u64 tokens;
	u32 count;

	turn(ss, add(ss, 0, "a", 1), 0, 0, 256, 1);
	cr_assert(session_is_over(retired(ss, "b", 200, 2)));
	sessions_totals(ss, &count, &tokens);
	cr_assert_eq(count, 1);
	cr_assert_eq(tokens, 256);
	cr_assert_eq(missing(ss, "b", &em), ERR_DROPPED);
	cr_assert(strstr(em.text, "'b' was ended"), "%s", em.text);
	retired(ss, "c", 300, 3);
	turn(ss, add(ss, 0, "d", 4), 0, 0, 5, 4); /* for its name */
	cr_assert_null(find(ss, 0, "b"));
	cr_assert(session_is_over(find(ss, 0, "c")));
	turn(ss, find(ss, 0, "d"), 5, 5, 500, 5); /* for its tokens */
	cr_assert_null(find(ss, 0, "c"));
	cr_assert_not_null(find(ss, 0, "a"));
	cr_assert_eq(missing(ss, "c", &em), ERR_DROPPED);
	cr_assert(strstr(em.text, "'c' was ended"), "%s", em.text);
	sessions_totals(ss, &count, &tokens);
	cr_assert_eq(count, 2);
	cr_assert_eq(tokens, 256 + 505);
	sessions_destroy(&ss);
}

Test(sessions, those_that_are_over_leave_when_their_time_has_passed)
{
	for (u32 ttl = 0; ttl <= 1200; ttl += 60) {
		struct sessions *ss = create(3, 4, ttl);
		i64 limit = ttl && ttl < SESSION_OVER_S ? ttl : SESSION_OVER_S;
		retired(ss, "a", 300, 1 * SECOND);
		retired(ss, "b", 300, 2 * SECOND);
		sessions_expire(ss, (limit + 1) * SECOND);
		cr_assert_eq(ss->count, 2);
		sessions_expire(ss, (limit + 2) * SECOND);
		cr_assert_null(find(ss, 0, "a"));
		cr_assert_not_null(find(ss, 0, "b"));
		cr_assert_eq(sessions_find_gone(ss, 0, (const u8 *)"a", 1)->why, SESSION_END_ASKED);
		sessions_destroy(&ss);
	}
}

Test(sessions, one_without_tokens_leaves_at_its_last_turns_end)
{
	struct sessions *ss = create(2, 4, 0);
	struct session *s = add(ss, 0, "a", 0);

	s->ending = true;
	sessions_begin_turn(ss, s, 5, 0);
	sessions_retire(ss, s, 0);
	cr_assert_null(find(ss, 0, "a"));
	cr_assert_eq(ss->count, 0);
	s = add(ss, 0, "b", 0);
	turn(ss, s, 0, 0, 5, 0); /* the turn that is redone, now as the last one */
	s->redone = s->ending = true;
	sessions_begin_turn(ss, s, 6, 0);
	sessions_retire(ss, s, 0);
	cr_assert_null(find(ss, 0, "b"));
	cr_assert_eq(ss->free_chunks, 4);
	sessions_destroy(&ss);
}

Test(sessions, all_running_is_busy)
{
	struct sessions *ss = create(1, 4, 0);
	struct session *s = add(ss, 0, "a", 0), *other;

	sessions_begin_turn(ss, s, 5, 0);
	cr_assert_eq(sessions_add(ss, 0, (const u8 *)"b", 1, 0, &other), ERR_BUSY);
	sessions_undo_turn(ss, s, 0); /* without tokens it leaves */
	cr_assert_eq(ss->count, 0);
	cr_assert_eq(sessions_add(ss, 0, (const u8 *)"b", 1, 0, &other), ERR_OK);
	sessions_destroy(&ss);
}

Test(sessions, idle_ones_expire_in_order_and_running_ones_do_not)
{
	struct sessions *ss = create(4, 4, 10);
	struct err_msg em;

	turn(ss, add(ss, 0, "a", 0), 0, 0, 5, 1 * SECOND);
	turn(ss, add(ss, 0, "b", 0), 0, 0, 5, 2 * SECOND);
	turn(ss, add(ss, 0, "c", 0), 0, 0, 5, 3 * SECOND);
	sessions_begin_turn(ss, find(ss, 0, "b"), 5, 2 * SECOND);
	sessions_expire(ss, 11 * SECOND);
	cr_assert_eq(ss->count, 3);
	sessions_expire(ss, 12 * SECOND);
	cr_assert_null(find(ss, 0, "a"));
	sessions_expire(ss, 100 * SECOND);
	cr_assert_eq(ss->count, 1);
	cr_assert_not_null(find(ss, 0, "b"));
	cr_assert_eq(missing(ss, "a", &em), ERR_DROPPED);
	cr_assert(strstr(em.text, "--session-ttl"), "%s", em.text);
	sessions_destroy(&ss);
}

Test(sessions, tokens_beyond_the_vocabulary_drop_their_session)
{
	struct sessions *ss = create(4, 4, 0);

	turn(ss, add(ss, 0, "a", 0), 0, 0, 300, 0);
	turn(ss, add(ss, 0, "b", 0), 0, 0, 301, 0);
	cr_assert_eq(sessions_check_vocab(ss, 300), 1);
	cr_assert_not_null(find(ss, 0, "a"));
	cr_assert_null(find(ss, 0, "b"));
	sessions_destroy(&ss);
}
