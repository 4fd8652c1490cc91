/* Journals of sessions. The input first drives a store of sessions whose journal is written as the scheduler writes it, then
 * damages the file: cuts it, flips bits, swaps, doubles and removes records, writes bytes of its own into it. Whatever is read
 * back must be what some session of that name was at some time, whole; without damage, what it was at last. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/log.h"
#include "fuzz.h"
#include "proc_scheduler/session_records.h"

enum { NAMES = 3, STATES_MAX = 512, RECORDS_MAX = 512, TURN_MAX = 300, FINGERPRINT = 77, OPS_MAX = 200 };
static const i64 NOW_NS = 1000000000;

struct state {
	u32 name, count, last;
	u64 sum;
};

struct world {
	const uint8_t *data;
	size_t bytes, at;
	struct sessions *ss;
	struct buf file;
	u64 begins[RECORDS_MAX + 1]; /* of records, and the end */
	u32 record_count;
	struct state states[STATES_MAX]; /* that were whole at some time */
	u32 state_count;
	u32 next_token; /* none comes twice */
	bool damaged;
};

static u32 byte(struct world *w)
{
	return w->at < w->bytes ? w->data[w->at++] : 0;
}

static struct sessions *create(void)
{
	struct sessions_config config = {.session_max = NAMES, .token_max = 1 << 20, .secret = 5};
	struct sessions *ss;
	struct err_msg em;

	if (sessions_create(&ss, &config, &em))
		abort();
	return ss;
}

static struct session *find(struct sessions *ss, u32 name)
{
	const u8 letter = (u8)('a' + name);

	return sessions_find(ss, name % 2, &letter, 1);
}

static struct state state_of(const struct sessions *ss, const struct session *s)
{
	struct state st = {.name = (u32)(s->name[0] - 'a'), .count = s->token_count};

	for (u32 i = 0, chunk = s->first_chunk; i < s->token_count; i++) {
		if (i && i % SESSION_CHUNK_TOKENS == 0)
			chunk = ss->next_chunk[chunk];
		st.last = ss->tokens[(size_t)chunk * SESSION_CHUNK_TOKENS + i % SESSION_CHUNK_TOKENS];
		st.sum = (st.sum ^ st.last) * 0x9e3779b97f4a7c15u;
	}
	return st;
}

static bool same(const struct state *a, const struct state *b)
{
	return a->name == b->name && a->count == b->count && a->last == b->last && a->sum == b->sum;
}

/* ---------------------------------------------------------------- writing */

static void close_record(struct world *w)
{
	ASSERT(buf_ok(&w->file) && w->record_count < RECORDS_MAX);
	w->begins[++w->record_count] = w->file.bytes;
}

static void on_begun(void *ctx, const struct session *s)
{
	struct world *w = ctx;

	session_record_put(&w->file, FINGERPRINT, SESSION_RECORD_BEGUN, s, NULL, 0);
	close_record(w);
}

static void on_ended(void *ctx, const struct session *s, const u32 *tokens, u32 count)
{
	struct world *w = ctx;

	session_record_put(&w->file, FINGERPRINT, SESSION_RECORD_ENDED, s, tokens, count);
	close_record(w);
}

static void on_dropped(void *ctx, const struct session *s, enum session_end why)
{
	struct world *w = ctx;

	session_record_put_dropped(&w->file, FINGERPRINT, s, why);
	close_record(w);
}

static void turn(struct world *w, u32 name, bool undone)
{
	struct session *s = find(w->ss, name);
	const u8 letter = (u8)('a' + name);
	u32 tokens[TURN_MAX], count = 1 + byte(w) % 8;

	if (count == 8)
		count = TURN_MAX; /* into another chunk */
	if (!s && sessions_add(w->ss, name % 2, &letter, 1, NOW_NS, &s))
		abort();
	s->turn_base = s->token_count - byte(w) % 4 * s->token_count / 4;
	s->turn_client = name;
	s->turn_req++;
	sessions_begin_turn(w->ss, s, 1, NOW_NS);
	for (u32 i = 0; i < count; i++)
		tokens[i] = w->next_token++;
	if (undone)
		sessions_undo_turn(w->ss, s, NOW_NS);
	else
		sessions_end_turn(w->ss, s, tokens, count, 0, NOW_NS);
	if (s->name[0] && w->state_count < STATES_MAX)
		w->states[w->state_count++] = state_of(w->ss, s);
}

static void write_journal(struct world *w)
{
	u32 ops = byte(w) % OPS_MAX;

	session_record_header(&w->file, FINGERPRINT);
	w->begins[0] = w->file.bytes;
	for (u32 i = 0; i < ops && w->at < w->bytes && w->record_count < RECORDS_MAX - 4; i++) {
		u32 op = byte(w), name = op / 8 % NAMES;
		struct session *s = find(w->ss, name);
		if (op % 8 < 5) {
			turn(w, name, op % 8 == 4);
		} else if (op % 8 < 7 && s) {
			sessions_drop(w->ss, s, SESSION_END_ASKED);
		} else if (s) {
			session_record_put_state(&w->file, FINGERPRINT, w->ss, s);
			close_record(w);
		}
	}
}

/* ---------------------------------------------------------------- damage */

/* Puts record `from` in front of record `to`. */
static void copy_record(struct world *w, u32 from, u32 to)
{
	u64 begin = w->begins[from], bytes = w->begins[from + 1] - begin, at = w->begins[to];
	char *copy = malloc(bytes);

	if (!copy || w->record_count == RECORDS_MAX || !buf_reserve(&w->file, bytes)) {
		free(copy);
		return;
	}
	memcpy(copy, w->file.data + begin, bytes);
	memmove(w->file.data + at + bytes, w->file.data + at, w->file.bytes - at);
	memcpy(w->file.data + at, copy, bytes);
	w->file.bytes += bytes;
	memmove(w->begins + to + 1, w->begins + to, (w->record_count + 1 - to) * sizeof(w->begins[0]));
	for (u32 i = to + 1; i <= w->record_count + 1; i++)
		w->begins[i] += bytes;
	w->record_count++;
	free(copy);
}

static void remove_record(struct world *w, u32 which)
{
	u64 begin = w->begins[which], end = w->begins[which + 1];

	memmove(w->file.data + begin, w->file.data + end, w->file.bytes - end);
	w->file.bytes -= end - begin;
	for (u32 i = which; i < w->record_count; i++)
		w->begins[i] = w->begins[i + 1] - (end - begin);
	w->record_count--;
}

static void damage(struct world *w)
{
	u32 op = byte(w), a = w->record_count ? byte(w) % w->record_count : 0, b = w->record_count ? byte(w) % w->record_count : 0;
	u64 at = (byte(w) | byte(w) << 8) % w->file.bytes;

	w->damaged = true;
	switch (op % 5) {
	case 0: /* one takes another one's place */
		if (!w->record_count)
			break;
		copy_record(w, a, b);
		remove_record(w, a >= b ? a + 1 : a);
		break;
	case 1:
		if (w->record_count)
			copy_record(w, a, b);
		break;
	case 2:
		if (w->record_count)
			remove_record(w, a);
		break;
	case 3:
		w->file.data[at] ^= (char)(1 << op / 8 % 8);
		break;
	default:
		for (u32 n = byte(w) % 32; n && at < w->file.bytes; n--)
			w->file.data[at++] = (char)byte(w);
	}
}

/* ---------------------------------------------------------------- reading */

static struct sessions *read_back(const struct buf *file, enum err *e)
{
	struct sessions *ss = create();
	struct session_restore out;
	struct err_msg em;
	int fd = memfd_create("journal", MFD_CLOEXEC);

	if (fd < 0 || write(fd, file->data, file->bytes) != (ssize_t)file->bytes)
		abort();
	*e = session_records_read(fd, "journal", FINGERPRINT, ss, &out, &em);
	ASSERT(*e || out.good_bytes <= file->bytes);
	close(fd);
	return ss;
}

static void check(struct world *w, struct sessions *got)
{
	struct buf again = {0};
	enum err e;

	session_record_header(&again, FINGERPRINT);
	for (u32 i = 0; i < got->config.session_max; i++) {
		const struct session *s = &got->slots[i];
		if (!s->name[0])
			continue;
		struct state st = state_of(got, s);
		u32 k = 0;
		while (k < w->state_count && !same(&w->states[k], &st))
			k++;
		ASSERT(k < w->state_count); /* whole, and its own */
		session_record_put_state(&again, FINGERPRINT, got, s);
	}
	ASSERT(buf_ok(&again));
	struct sessions *third = read_back(&again, &e);
	ASSERT(e == ERR_OK && third->count == got->count);
	sessions_destroy(&third);
	for (u32 name = 0; name < NAMES && !w->damaged; name++) {
		const struct session *s = find(got, name), *wanted = find(w->ss, name);
		ASSERT((s == NULL) == (wanted == NULL));
		struct state a = s ? state_of(got, s) : (struct state){0}, b = s ? state_of(w->ss, wanted) : a;
		ASSERT(same(&a, &b));
	}
	buf_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct world w;
	enum err e;

	log_init("fuzz", LOG_LEVEL_ERROR, false);
	w = (struct world){.data = data, .bytes = bytes, .ss = create(), .next_token = 1};
	w.ss->sink = (struct sessions_sink){&w, on_begun, on_ended, on_dropped};
	write_journal(&w);
	for (u32 n = byte(&w) % 8; n; n--)
		damage(&w);
	u32 cut = byte(&w);
	if (cut % 4 == 3) {
		w.damaged = true;
		w.file.bytes -= (cut / 4 | byte(&w) << 6) % w.file.bytes;
	}
	struct sessions *got = read_back(&w.file, &e);
	ASSERT(w.damaged || e == ERR_OK);
	if (!e)
		check(&w, got);
	sessions_destroy(&got);
	w.ss->sink = (struct sessions_sink){0};
	sessions_destroy(&w.ss);
	buf_fini(&w.file);
	return 0;
}
