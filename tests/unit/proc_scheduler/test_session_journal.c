/* The journal of sessions: what comes back after the process died, with damage of every kind, and with a full disk. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/clock.h"
#include "common/log.h"
#include "proc_scheduler/session_journal.h"
#include "proc_scheduler/session_records.h"

enum { FINGERPRINT = 77, FILE_MAX = 1 << 22 };

struct bench {
	char dir[64], file[128];
	struct sessions *ss;
	struct session_journal j;
};

static void start(struct bench *b, u32 sessions)
{
	struct sessions_config c = {.session_max = sessions, .token_max = 1 << 20, .secret = 5};
	struct err_msg em;

	cr_assert_eq(sessions_create(&b->ss, &c, &em), ERR_OK);
	cr_assert_eq(session_journal_open(&b->j, b->dir, FINGERPRINT, b->ss, &em), ERR_OK, "%s", em.text);
}

static void begin(struct bench *b)
{
	log_init("test", LOG_LEVEL_ERROR, false); /* damage is what this is about */
	strcpy(b->dir, "/tmp/test_journal_XXXXXX");
	cr_assert_not_null(mkdtemp(b->dir));
	snprintf(b->file, sizeof(b->file), "%s/sessions.journal", b->dir);
	start(b, 16);
}

/* As if the process had died: nothing is said to anybody. */
static void die(struct bench *b)
{
	close(b->j.fd);
	close(b->j.lock_fd);
	if (b->j.next_fd >= 0)
		close(b->j.next_fd);
	buf_fini(&b->j.record);
	b->ss->sink = (struct sessions_sink){0};
	sessions_destroy(&b->ss);
}

static void restart(struct bench *b)
{
	die(b);
	start(b, 16);
}

static void end(struct bench *b)
{
	char command[128];

	session_journal_close(&b->j);
	sessions_destroy(&b->ss);
	snprintf(command, sizeof(command), "rm -r %s", b->dir);
	cr_assert_eq(system(command), 0);
}

static struct session *find(struct bench *b, const char *name)
{
	return sessions_find(b->ss, 3, (const u8 *)name, (u32)strlen(name));
}

static struct session *add(struct bench *b, const char *name)
{
	struct session *s;

	cr_assert_eq(sessions_add(b->ss, 3, (const u8 *)name, (u32)strlen(name), (i64)clock_now_ns(), &s), ERR_OK);
	return s;
}

static void begin_turn(struct bench *b, struct session *s, u32 base)
{
	s->turn_base = base;
	s->turn_client = 8;
	s->turn_req = s->turn_count + 1;
	sessions_begin_turn(b->ss, s, 99, (i64)clock_now_ns());
}

static void turn(struct bench *b, struct session *s, u32 base, u32 first, u32 count)
{
	static u32 tokens[4096];

	for (u32 i = 0; i < count; i++)
		tokens[i] = first + i;
	begin_turn(b, s, base);
	sessions_end_turn(b->ss, s, tokens, count, 0, (i64)clock_now_ns());
}

static long file_bytes(const struct bench *b)
{
	struct stat st;

	cr_assert_eq(stat(b->file, &st), 0);
	return (long)st.st_size;
}

static void flip(const struct bench *b, long at)
{
	unsigned char byte;
	int fd = open(b->file, O_RDWR);

	cr_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
	byte ^= 0x10;
	cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

Test(session_journal, a_last_turn_that_was_cut_off_is_told_from_others)
{
	struct bench b;
	begin(&b);
	struct session *s = add(&b, "ends");
	turn(&b, s, 0, 100, 5);
	s->ending = true;
	begin_turn(&b, s, 5);
	s = add(&b, "goes-on");
	turn(&b, s, 0, 100, 5);
	begin_turn(&b, s, 5);
	for (u32 round = 0; round < 2; round++) { /* from the records of the turns, then from those of whole sessions */
		restart(&b);
		cr_assert(find(&b, "ends")->cut_off && find(&b, "ends")->ending);
		cr_assert(find(&b, "goes-on")->cut_off && !find(&b, "goes-on")->ending);
		b.j.next_minimum = 0;
		for (u32 i = 0; b.j.next_minimum == 0; i++)
			session_journal_tick(&b.j, i);
	}
	sessions_begin_turn(b.ss, find(&b, "ends"), 7, 1);
	sessions_undo_turn(b.ss, find(&b, "ends"), 1);
	restart(&b);
	cr_assert(!find(&b, "ends")->cut_off && !find(&b, "ends")->ending);
	end(&b);
}

Test(session_journal, histories_come_back)
{
	struct bench b;
	u32 out[600];
	begin(&b);
	turn(&b, add(&b, "a"), 0, 0, 500);
	turn(&b, add(&b, "b"), 0, 7, 10);
	turn(&b, find(&b, "a"), 300, 1000, 50); /* a step back */
	turn(&b, add(&b, "gone"), 0, 0, 5);
	sessions_drop(b.ss, find(&b, "gone"), SESSION_END_ASKED);
	find(&b, "b")->used_ns -= 50;
	restart(&b);
	cr_assert_eq(b.ss->count, 2);
	cr_assert_eq(find(&b, "a")->token_count, 350);
	cr_assert_eq(find(&b, "a")->turn_count, 2);
	cr_assert_eq(find(&b, "a")->turn_req, 2);
	cr_assert_not(find(&b, "a")->cut_off);
	cr_assert_eq(find(&b, "b")->token_count, 10);
	sessions_read(b.ss, find(&b, "a"), out, 350);
	cr_assert_eq(out[299], 299);
	cr_assert_eq(out[349], 1049);
	cr_assert_eq(b.ss->idle.head, sessions_slot(b.ss, find(&b, "b"))); /* in order of last use */
	turn(&b, find(&b, "a"), 350, 0, 1); /* and it goes on from there */
	restart(&b);
	cr_assert_eq(find(&b, "a")->token_count, 351);
	end(&b);
}

Test(session_journal, why_a_session_left_is_known_later)
{
	static const char *const names[SESSION_END_COUNT] = {"asked", "expired", "evicted", "outgrew", "empty", "damaged"};
	struct bench b;
	begin(&b);
	for (u32 i = 0; i < SESSION_END_COUNT; i++) {
		turn(&b, add(&b, names[i]), 0, 0, 5 + i);
		sessions_drop(b.ss, find(&b, names[i]), (enum session_end)i);
	}
	for (u32 round = 0; round < 3; round++) {
		if (round > 0) { /* of the rewritten file, and of one that was rewritten from that */
			b.j.next_minimum = 0;
			for (u32 i = 0; b.j.next_minimum == 0; i++)
				session_journal_tick(&b.j, i);
		}
		restart(&b);
		cr_assert_eq(b.ss->count, 0);
		for (u32 i = 0; i < SESSION_END_COUNT; i++) {
			const struct session_gone *g = sessions_find_gone(b.ss, 3, (const u8 *)names[i], (u32)strlen(names[i]));
			cr_assert_not_null(g, "%s", names[i]);
			cr_assert_eq(g->why, i, "%s", names[i]);
			cr_assert_eq(g->token_count, 5 + i);
			cr_assert_eq(g->turn_count, 1);
		}
	}
	add(&b, "asked");
	cr_assert_null(sessions_find_gone(b.ss, 3, (const u8 *)"asked", 5));
	end(&b);
}

Test(session_journal, of_those_that_left_as_many_are_written_as_are_remembered)
{
	struct bench b;
	char name[16];
	begin(&b);
	for (u32 i = 0; i < SESSION_GONE_MAX + 10; i++) {
		snprintf(name, sizeof(name), "s%u", i);
		turn(&b, add(&b, name), 0, 0, 5);
		sessions_drop(b.ss, find(&b, name), SESSION_END_ASKED);
	}
	turn(&b, add(&b, "s500"), 0, 0, 7); /* begun anew */
	b.j.next_minimum = 0;
	for (u32 i = 0; b.j.next_minimum == 0; i++)
		session_journal_tick(&b.j, i);
	restart(&b);
	cr_assert_eq(b.ss->count, 1);
	cr_assert_eq(find(&b, "s500")->token_count, 7);
	for (u32 i = 0; i < SESSION_GONE_MAX + 10; i++) {
		snprintf(name, sizeof(name), "s%u", i);
		const struct session_gone *g = sessions_find_gone(b.ss, 3, (const u8 *)name, (u32)strlen(name));
		cr_assert_eq(g != NULL, i >= 10 && i != 500, "%s", name);
	}
	end(&b);
}

Test(session_journal, a_history_that_got_shorter_stays_so)
{
	struct bench b;
	u32 out[600];
	begin(&b);
	turn(&b, add(&b, "a"), 0, 0, 500);
	turn(&b, find(&b, "a"), 500, 1000, 50);
	u64 life = find(&b, "a")->life;
	sessions_shorten(b.ss, find(&b, "a"), 505);
	for (u32 round = 0; round < 2; round++) {
		restart(&b);
		cr_assert_eq(find(&b, "a")->token_count, 505 + round);
		cr_assert_eq(find(&b, "a")->turn_count, 2 + round);
		cr_assert_eq(find(&b, "a")->turn_base, 500 + 5 * round);
		cr_assert_eq(find(&b, "a")->life, life);
		sessions_read(b.ss, find(&b, "a"), out, 505);
		cr_assert_eq(out[504], 1004);
		if (round == 0)
			turn(&b, find(&b, "a"), 505, 0, 1); /* it goes on from there */
	}
	end(&b);
}

Test(session_journal, turns_that_got_shorter_push_none_out_that_left)
{
	struct bench b;
	begin(&b);
	turn(&b, add(&b, "left"), 0, 0, 5);
	sessions_drop(b.ss, find(&b, "left"), SESSION_END_ASKED);
	turn(&b, add(&b, "a"), 0, 0, SESSION_GONE_MAX + 10);
	for (u32 i = 0; i < SESSION_GONE_MAX; i++) /* of as many turns, it would be once each */
		sessions_shorten(b.ss, find(&b, "a"), SESSION_GONE_MAX + 9 - i);
	restart(&b);
	cr_assert_eq(find(&b, "a")->token_count, 10);
	const struct session_gone *g = sessions_find_gone(b.ss, 3, (const u8 *)"left", 4);
	cr_assert(g && g->why == SESSION_END_ASKED);
	end(&b);
}

/* Whole sessions of which one came in place of the other: the first one's end is lost. */
Test(session_journal, a_whole_session_takes_the_place_of_another_one_with_its_name)
{
	struct bench b;
	u32 out[5];
	begin(&b);
	turn(&b, add(&b, "a"), 0, 0, 9);
	struct sessions_sink sink = b.ss->sink;
	b.ss->sink = (struct sessions_sink){0};
	sessions_drop(b.ss, find(&b, "a"), SESSION_END_ASKED);
	turn(&b, add(&b, "a"), 0, 100, 7);
	u64 life = find(&b, "a")->life;
	b.ss->sink = sink;
	sessions_shorten(b.ss, find(&b, "a"), 5);
	restart(&b);
	cr_assert_eq(find(&b, "a")->token_count, 5);
	cr_assert_eq(find(&b, "a")->turn_count, 1);
	cr_assert_eq(find(&b, "a")->life, life);
	sessions_read(b.ss, find(&b, "a"), out, 5);
	cr_assert_eq(out[4], 104);
	end(&b);
}

/* Of the first record, as session_records.c lays it out, with a checksum that fits. */
static void forge_begun(const struct bench *b, i64 begun_s)
{
	enum { KIND = 4, BYTES = 8, CHECKSUM = 16, OWNER = 24, BEGUN = 64 };
	char record[1024];
	u32 kind;
	u64 bytes;
	int fd = open(b->file, O_RDWR);

	cr_assert(fd >= 0 && pread(fd, record, sizeof(record), SESSION_RECORD_HEADER_BYTES) > BEGUN);
	memcpy(&kind, record + KIND, sizeof(kind));
	memcpy(&bytes, record + BYTES, sizeof(bytes));
	cr_assert_lt(bytes, sizeof(record));
	memcpy(record + BEGUN, &begun_s, sizeof(begun_s));
	u64 sum = XXH3_64bits_withSeed(record + OWNER, bytes - OWNER, FINGERPRINT ^ kind ^ bytes << 8);
	memcpy(record + CHECKSUM, &sum, sizeof(sum));
	cr_assert_eq(pwrite(fd, record, bytes, SESSION_RECORD_HEADER_BYTES), (ssize_t)bytes);
	close(fd);
}

Test(session_journal, times_that_no_clock_shows_are_at_most_a_century_away)
{
	static const i64 times[] = {INT64_MIN, INT64_MIN / 2, -10000000000, 20000000000, INT64_MAX};
	const i64 century_ns = (i64)100 * 366 * 24 * 3600 * 1000000000;

	for (size_t i = 0; i < sizeof(times) / sizeof(*times); i++) {
		struct bench b;
		begin(&b);
		turn(&b, add(&b, "a"), 0, 0, 5);
		forge_begun(&b, times[i]);
		restart(&b);
		i64 begun_ns = find(&b, "a")->begun_ns, now_ns = (i64)clock_now_ns();
		cr_assert(times[i] < 0 ? begun_ns < now_ns && begun_ns >= -century_ns
				       : begun_ns > now_ns && begun_ns <= now_ns + century_ns);
		end(&b);
	}
}

Test(session_journal, a_turn_in_work_is_known_as_cut_off)
{
	struct bench b;
	begin(&b);
	turn(&b, add(&b, "a"), 0, 0, 20);
	begin_turn(&b, find(&b, "a"), 15);
	begin_turn(&b, add(&b, "first"), 0);
	restart(&b);
	cr_assert(find(&b, "a")->cut_off);
	cr_assert_eq(find(&b, "a")->token_count, 20);
	cr_assert_eq(find(&b, "a")->turn_client, 8);
	cr_assert_eq(find(&b, "a")->turn_req, 2);
	cr_assert_null(find(&b, "first")); /* it has nothing to go on from */
	begin_turn(&b, find(&b, "a"), 20);
	sessions_undo_turn(b.ss, find(&b, "a"), 0);
	restart(&b);
	cr_assert_not(find(&b, "a")->cut_off);
	cr_assert_eq(find(&b, "a")->token_count, 20);
	end(&b);
}

Test(session_journal, a_torn_tail_is_dropped_at_every_length)
{
	struct bench b;
	begin(&b);
	turn(&b, add(&b, "a"), 0, 0, 20);
	long sound = file_bytes(&b);
	turn(&b, find(&b, "a"), 20, 0, 6);
	long whole = file_bytes(&b);
	for (long cut = sound + 1; cut < whole; cut += 5) {
		cr_assert_eq(truncate(b.file, cut), 0);
		restart(&b);
		cr_assert_eq(find(&b, "a")->token_count, 20);
		/* Never silently the one before: if the turn's beginning is there, it is known to lack its end. */
		cr_assert(find(&b, "a")->cut_off || cut < sound + 168);
		turn(&b, find(&b, "a"), 20, 0, 6); /* what is appended behind the cut is sound */
		restart(&b);
		cr_assert_eq(find(&b, "a")->token_count, 26);
		cr_assert_eq(truncate(b.file, sound), 0);
		restart(&b);
		turn(&b, find(&b, "a"), 20, 0, 6);
	}
	end(&b);
}

Test(session_journal, no_flipped_bit_gives_a_wrong_history)
{
	struct bench b;
	u32 out[64];
	begin(&b);
	turn(&b, add(&b, "a"), 0, 0, 20);
	turn(&b, add(&b, "b"), 0, 0, 20);
	turn(&b, find(&b, "a"), 20, 20, 20);
	turn(&b, find(&b, "b"), 20, 20, 20);
	long bytes = file_bytes(&b);
	static char copy[FILE_MAX];
	int fd = open(b.file, O_RDONLY);
	cr_assert_eq(read(fd, copy, sizeof(copy)), bytes);
	close(fd);
	for (long at = SESSION_RECORD_HEADER_BYTES; at < bytes; at += 3) {
		flip(&b, at);
		restart(&b);
		for (u32 i = 0; i < 2; i++) {
			const struct session *s = find(&b, i ? "b" : "a");
			if (!s)
				continue;
			cr_assert(s->token_count == 40 || (s->token_count == 20 && s->cut_off), "byte %ld: %u tokens", at,
				  s->token_count);
			sessions_read(b.ss, s, out, s->token_count);
			for (u32 k = 0; k < s->token_count; k++)
				cr_assert_eq(out[k], k, "byte %ld", at);
		}
		fd = open(b.file, O_WRONLY | O_TRUNC);
		cr_assert_eq(write(fd, copy, (size_t)bytes), bytes);
		close(fd);
	}
	restart(&b);
	cr_assert_eq(find(&b, "a")->token_count, 40);
	end(&b);
}

Test(session_journal, what_is_not_ours_is_refused)
{
	struct bench b, other;
	struct err_msg em;
	begin(&b);
	other = b;
	cr_assert_eq(session_journal_open(&other.j, b.dir, FINGERPRINT, b.ss, &em), ERR_BUSY);
	cr_assert(strstr(em.text, "another engine"), "%s", em.text);
	turn(&b, add(&b, "a"), 0, 0, 20);
	die(&b);
	struct sessions_config c = {.session_max = 4, .token_max = 4096};
	cr_assert_eq(sessions_create(&b.ss, &c, &em), ERR_OK);
	cr_assert_eq(session_journal_open(&b.j, b.dir, FINGERPRINT + 1, b.ss, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "another model"), "%s", em.text);
	flip(&b, 3);
	cr_assert_eq(session_journal_open(&b.j, b.dir, FINGERPRINT, b.ss, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "no journal"), "%s", em.text);
	cr_assert_eq(session_journal_open(&b.j, "/proc/nothing", FINGERPRINT, b.ss, &em), ERR_IO);
	cr_assert(strstr(em.text, "--session-dir"), "%s", em.text);
	cr_assert_eq(truncate(b.file, 0), 0);
	cr_assert_eq(session_journal_open(&b.j, b.dir, FINGERPRINT, b.ss, &em), ERR_OK, "%s", em.text);
	end(&b);
}

Test(session_journal, it_is_rewritten_when_it_grew_and_turns_go_on_meanwhile)
{
	struct bench b;
	begin(&b);
	for (u32 i = 0; i < 10; i++) {
		char name[8];
		snprintf(name, sizeof(name), "s%u", i);
		turn(&b, add(&b, name), 0, i, 20 + i);
	}
	for (u32 i = 0; file_bytes(&b) < (1 << 20); i++)
		turn(&b, find(&b, "s0"), 0, i, 4000);
	long before = file_bytes(&b);
	b.j.next_slot = 0;
	session_journal_tick(&b.j, clock_now_ns());
	turn(&b, find(&b, "s3"), 23, 500, 7);
	for (u32 i = 0; i < 8; i++)
		session_journal_tick(&b.j, clock_now_ns());
	cr_assert_lt(file_bytes(&b), before / 10);
	turn(&b, find(&b, "s4"), 24, 500, 8);
	restart(&b);
	cr_assert_eq(b.ss->count, 10);
	cr_assert_eq(find(&b, "s0")->token_count, 4000);
	cr_assert_eq(find(&b, "s3")->token_count, 30);
	cr_assert_eq(find(&b, "s4")->token_count, 32);
	end(&b);
}

static void limit_files(rlim_t bytes)
{
	struct rlimit l = {bytes, RLIM_INFINITY};

	signal(SIGXFSZ, SIG_IGN);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &l), 0);
}

Test(session_journal, a_full_disk_is_an_error_at_start_and_a_warning_later)
{
	struct bench b;
	struct err_msg em;
	begin(&b);
	turn(&b, add(&b, "a"), 0, 0, 1000);
	limit_files((rlim_t)file_bytes(&b) + 300);
	turn(&b, find(&b, "a"), 1000, 0, 1000); /* does not fit; the store goes on */
	cr_assert(b.j.failed);
	cr_assert_eq(find(&b, "a")->token_count, 2000);
	/* Better no session than one that lacks a turn. */
	cr_assert_eq(file_bytes(&b), SESSION_RECORD_HEADER_BYTES);
	session_journal_tick(&b.j, b.j.retry_ns);
	cr_assert(b.j.failed);
	limit_files(RLIM_INFINITY);
	session_journal_tick(&b.j, b.j.retry_ns);
	cr_assert_not(b.j.failed);
	restart(&b);
	cr_assert_eq(find(&b, "a")->token_count, 2000);
	die(&b);
	struct sessions_config c = {.session_max = 4, .token_max = 4096};
	cr_assert_eq(sessions_create(&b.ss, &c, &em), ERR_OK);
	limit_files((rlim_t)file_bytes(&b) + 10);
	cr_assert_eq(session_journal_open(&b.j, b.dir, FINGERPRINT, b.ss, &em), ERR_IO);
	cr_assert(strstr(em.text, "make room"), "%s", em.text);
	limit_files(RLIM_INFINITY);
	cr_assert_eq(session_journal_open(&b.j, b.dir, FINGERPRINT, b.ss, &em), ERR_OK);
	end(&b);
}
