/* Writes and reads the records of the sessions' journal, and the fingerprint that ties it to a model. Runs in the
 * scheduler's I/O shell. Never believes a byte of the file. */
#include "proc_scheduler/session_records.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/clock.h"
#include "proc_scheduler/session_journal.h"

enum { RECORD_MAGIC = 0x53535254 /* "TRSS" */, FORMAT_VERSION = 2 };
static const char header_magic[8] = "TRCTSESS";
/* Bits of a record's `turn`; of SESSION_RECORD_DROPPED why it left, plus 1, from WHY_SHIFT on: 0, as releases before wrote, is
 * taken for the reason that asks least of whoever reads it. */
enum { TURN_CUT_OFF = 1, TURN_ENDS_SESSION = 2, WHY_SHIFT = 8 };
static const i64 NS_PER_S = 1000000000;

struct file_header {
	char magic[8];
	u32 version, header_bytes;
	u64 fingerprint;
	u64 checksum; /* of all above */
};
_Static_assert(sizeof(struct file_header) == SESSION_RECORD_HEADER_BYTES, "the header has no padding");

/* Behind it `token_count` tokens, and zeros up to a multiple of 8 bytes. */
struct record {
	u32 magic, kind;
	u64 bytes;    /* of the whole */
	u64 checksum; /* XXH3-64 of all behind it, seeded with the fingerprint */
	u64 owner, life, cache_salt, turn_client, turn_req;
	i64 begun_s, used_s; /* wall clock */
	u32 turn_count, turn_base, kv_tokens, token_count, total, turn;
	char name[SESSION_NAME_MAX];
};
_Static_assert(sizeof(struct record) % 8 == 0, "records stay aligned");
_Static_assert(sizeof(struct record) == 24 + 7 * 8 + 6 * 4 + SESSION_NAME_MAX, "a record has no padding");

static size_t padded(size_t bytes)
{
	return (bytes + 7) / 8 * 8;
}

static u64 checksum_of(const struct record *r, u64 fingerprint)
{
	size_t from = offsetof(struct record, owner);

	return XXH3_64bits_withSeed((const char *)r + from, r->bytes - from, fingerprint ^ r->kind ^ r->bytes << 8);
}

/* ---------------------------------------------------------------- writing */

void session_record_header(struct buf *out, u64 fingerprint)
{
	struct file_header h = {.version = FORMAT_VERSION, .header_bytes = sizeof(h), .fingerprint = fingerprint};

	memcpy(h.magic, header_magic, sizeof(h.magic));
	h.checksum = XXH3_64bits(&h, offsetof(struct file_header, checksum));
	buf_append(out, (const char *)&h, sizeof(h));
}

/* The head of a record, and where its tokens go; NULL: no memory. */
static u32 *begin_record(struct buf *out, enum session_record_kind kind, const struct session *s, u32 count)
{
	struct record r = {
		.magic = RECORD_MAGIC,
		.kind = kind,
		.bytes = padded(sizeof(r) + (size_t)count * sizeof(u32)),
		.owner = s->owner,
		.life = s->life,
		.cache_salt = s->cache_salt,
		.turn_client = s->turn_client,
		.turn_req = s->turn_req,
		.turn_count = s->turn_count,
		.turn_base = s->turn_base,
		.kv_tokens = s->kv_tokens,
		.token_count = count,
		.total = s->token_count,
		.turn = (s->cut_off || (s->running && !s->redone) ? TURN_CUT_OFF : 0) | (s->ending ? TURN_ENDS_SESSION : 0),
	};
	i64 now_ns = (i64)clock_now_ns(), wall_s = clock_wall_s();

	r.begun_s = wall_s - (now_ns - s->begun_ns) / NS_PER_S;
	r.used_s = wall_s - (now_ns - s->used_ns) / NS_PER_S;
	memcpy(r.name, s->name, SESSION_NAME_MAX);
	buf_append(out, (const char *)&r, sizeof(r));
	size_t rest = r.bytes - sizeof(r);
	if (!buf_reserve(out, rest))
		return NULL;
	u32 *tokens = (u32 *)(void *)(out->data + out->bytes);
	memset(tokens, 0, rest);
	out->bytes += rest;
	return tokens;
}

/* Its content is complete. */
static void end_record(u32 *tokens, u64 fingerprint)
{
	struct record *r = (struct record *)(void *)tokens - 1;

	r->checksum = checksum_of(r, fingerprint);
}

void session_record_put(struct buf *out, u64 fingerprint, enum session_record_kind kind, const struct session *s,
			const u32 *tokens, u32 count)
{
	u32 *to = begin_record(out, kind, s, count);

	if (!to)
		return;
	if (count)
		memcpy(to, tokens, count * sizeof(u32));
	end_record(to, fingerprint);
}

void session_record_put_dropped(struct buf *out, u64 fingerprint, const struct session *s, enum session_end why)
{
	u32 *to = begin_record(out, SESSION_RECORD_DROPPED, s, 0);

	if (!to)
		return;
	((struct record *)(void *)to - 1)->turn |= ((u32)why + 1) << WHY_SHIFT;
	end_record(to, fingerprint);
}

void session_record_put_gone(struct buf *out, u64 fingerprint, const struct sessions *ss)
{
	for (u32 i = 0; i < SESSION_GONE_MAX; i++) {
		const struct session_gone *g = &ss->gone[(ss->gone_next + i) % SESSION_GONE_MAX];
		if (!g->key)
			continue;
		struct session s = {.owner = g->owner,
				    .token_count = g->token_count,
				    .turn_count = g->turn_count,
				    .begun_ns = g->begun_ns,
				    .used_ns = g->used_ns};
		memcpy(s.name, g->name, sizeof(s.name));
		session_record_put_dropped(out, fingerprint, &s, g->why);
	}
}

void session_record_put_state(struct buf *out, u64 fingerprint, const struct sessions *ss, const struct session *s)
{
	u32 *to = begin_record(out, SESSION_RECORD_STATE, s, s->token_count);

	if (!to)
		return;
	sessions_read(ss, s, to, s->token_count);
	end_record(to, fingerprint);
}

/* ---------------------------------------------------------------- reading */

struct reader {
	const char *data;
	u64 bytes, fingerprint;
	struct sessions *sessions;
	struct session_restore *out;
	i64 now_ns, wall_s;
};

/* The sound record at `at`, or NULL. */
static const struct record *record_at(const struct reader *in, u64 at)
{
	const struct record *r = (const struct record *)(const void *)(in->data + at);

	if (in->bytes - at < sizeof(*r) || r->magic != RECORD_MAGIC || r->bytes > in->bytes - at ||
	    r->bytes < sizeof(*r) || r->bytes != padded(sizeof(*r) + (u64)r->token_count * sizeof(u32)) ||
	    r->checksum != checksum_of(r, in->fingerprint))
		return NULL;
	u32 name_bytes = (u32)strnlen(r->name, SESSION_NAME_MAX);
	return session_name_check((const u8 *)r->name, name_bytes, NULL) ? NULL : r;
}

static void lose(struct reader *in, struct session *s)
{
	sessions_drop(in->sessions, s, SESSION_END_DAMAGED);
	in->out->dropped++;
}

/* When a record's session began, or was used, by this process's clock; what is further away than a century is a century away. */
static i64 time_of(const struct reader *in, i64 wall_s)
{
	static const i64 century_s = (i64)100 * 366 * 24 * 3600;
	i64 age_s;

	if (__builtin_sub_overflow(in->wall_s, wall_s, &age_s))
		age_s = wall_s < 0 ? century_s : -century_s;
	age_s = age_s > century_s ? century_s : age_s < -century_s ? -century_s : age_s;
	return in->now_ns - age_s * NS_PER_S;
}

/* A new one for a record that tells of it from its beginning; NULL: it does not, or there is no place. */
static struct session *add(struct reader *in, const struct record *r, bool from_beginning)
{
	struct session *s = NULL;

	if (!from_beginning || sessions_add(in->sessions, r->owner, (const u8 *)r->name,
					    (u32)strnlen(r->name, SESSION_NAME_MAX), time_of(in, r->begun_s), &s))
		return NULL;
	return s;
}

static void take_fields(struct reader *in, struct session *s, const struct record *r)
{
	s->life = r->life;
	s->turn_client = r->turn_client;
	s->turn_req = r->turn_req;
	s->turn_base = r->turn_base;
	s->turn_count = r->turn_count;
	s->cache_salt = r->cache_salt;
	s->cut_off = r->kind == SESSION_RECORD_BEGUN || (r->kind == SESSION_RECORD_STATE && (r->turn & TURN_CUT_OFF));
	s->ending = s->cut_off && (r->turn & TURN_ENDS_SESSION);
	sessions_touch(in->sessions, s, session_is_over(s) ? in->now_ns : time_of(in, r->used_s));
}

/* Tokens from `base` on. What does not go on where the session is shows that a record is missing. */
static void take_tokens(struct reader *in, struct session *s, const struct record *r, u32 base)
{
	const u32 *tokens = (const u32 *)(const void *)(r + 1);

	if (base > s->token_count || (u64)base + r->token_count != r->total || r->turn_base > r->total) {
		lose(in, s);
		return;
	}
	sessions_cut(in->sessions, s, base);
	if (sessions_append(in->sessions, s, tokens, r->token_count))
		sessions_drop(in->sessions, s, SESSION_END_EVICTED);
	else
		take_fields(in, s, r);
}

static enum session_end why_of(const struct record *r)
{
	u32 why = r->turn >> WHY_SHIFT;

	return why > 0 && why <= SESSION_END_COUNT ? (enum session_end)(why - 1) : SESSION_END_EVICTED;
}

/* It left before the file was rewritten, or all else about it is lost. */
static void take_gone(struct reader *in, const struct record *r)
{
	struct session s = {.owner = r->owner,
			    .token_count = r->total,
			    .turn_count = r->turn_count,
			    .begun_ns = time_of(in, r->begun_s),
			    .used_ns = time_of(in, r->used_s)};

	memcpy(s.name, r->name, strnlen(r->name, SESSION_NAME_MAX));
	sessions_add_gone(in->sessions, &s, why_of(r));
}

/* The session that a turn's record goes on with, or one that begins with it; NULL: neither. One of an earlier life has left,
 * though its record of that is lost. */
static struct session *find_or_add(struct reader *in, const struct record *r, struct session *s, bool from_beginning)
{
	if (s && s->life != r->life) {
		lose(in, s);
		s = NULL;
	}
	return s ? s : add(in, r, from_beginning);
}

static void take(struct reader *in, const struct record *r)
{
	struct session *s = sessions_find(in->sessions, r->owner, (const u8 *)r->name,
					  (u32)strnlen(r->name, SESSION_NAME_MAX));

	switch (r->kind) {
	case SESSION_RECORD_STATE: /* of one that is there it is no end: those take places among the ones that left */
		if (s && s->life != r->life) {
			sessions_drop(in->sessions, s, SESSION_END_EVICTED);
			s = NULL;
		}
		s = s ? s : add(in, r, true);
		if (s)
			take_tokens(in, s, r, 0);
		break;
	case SESSION_RECORD_BEGUN:
		s = find_or_add(in, r, s, r->turn_count == 0);
		if (s && (s->turn_count != r->turn_count || r->turn_base > s->token_count))
			lose(in, s);
		else if (s)
			take_fields(in, s, r);
		break;
	case SESSION_RECORD_ENDED:
		s = find_or_add(in, r, s, r->turn_base == 0 && r->turn_count == 1);
		if (s && s->turn_count + (r->token_count > 0) != r->turn_count)
			lose(in, s);
		else if (s)
			take_tokens(in, s, r, r->turn_base);
		break;
	case SESSION_RECORD_DROPPED:
		if (s)
			sessions_drop(in->sessions, s, why_of(r));
		else
			take_gone(in, r);
		break;
	default:
		break; /* its checksum covers the kind: it is of a later version */
	}
}

static enum err check_header(const struct reader *in, const char *path, struct err_msg *em)
{
	struct file_header h;

	memcpy(&h, in->data, sizeof(h));
	if (memcmp(h.magic, header_magic, sizeof(h.magic)) ||
	    h.checksum != XXH3_64bits(&h, offsetof(struct file_header, checksum)))
		return err_set(em, ERR_INVALID, "%s is no journal of sessions, or damaged at its beginning; move it away", path);
	if (h.version != FORMAT_VERSION || h.header_bytes != sizeof(h))
		return err_set(em, ERR_INVALID, "%s has format %u; this release reads %d: move it away", path, h.version,
			       FORMAT_VERSION);
	if (h.fingerprint != in->fingerprint)
		return err_set(em, ERR_INVALID,
			       "%s has sessions of another model (the tokenizer is another one); name another "
			       "--session-dir, or remove it",
			       path);
	return ERR_OK;
}

/* Sound records in order; damaged bytes are passed over. */
static void read_records(struct reader *in)
{
	u64 at = SESSION_RECORD_HEADER_BYTES;

	in->out->good_bytes = at;
	while (in->bytes - at >= 8) {
		const struct record *r = record_at(in, at);
		if (!r) {
			at += 8;
			in->out->lost_bytes += 8;
			continue;
		}
		take(in, r);
		in->out->records++;
		at += r->bytes;
		in->out->good_bytes = at;
	}
	in->out->lost_bytes += in->bytes - at;
}

/* Those whose first turn was cut off have nothing to go on from. */
static void drop_empty(struct sessions *ss)
{
	for (u32 i = 0; i < ss->config.session_max; i++)
		if (ss->slots[i].name[0] && ss->slots[i].token_count == 0)
			sessions_drop(ss, &ss->slots[i], SESSION_END_EMPTY);
}

enum err session_records_read(int fd, const char *path, u64 fingerprint, struct sessions *ss,
			      struct session_restore *out, struct err_msg *em)
{
	struct stat st;

	*out = (struct session_restore){0};
	if (fstat(fd, &st))
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	if (st.st_size < SESSION_RECORD_HEADER_BYTES)
		return err_set(em, ERR_INVALID, "%s is no journal of sessions; move it away", path);
	void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED)
		return err_set(em, ERR_IO, "%s cannot be read: %s", path, strerror(errno));
	struct reader in = {.data = data,
			    .bytes = (u64)st.st_size,
			    .fingerprint = fingerprint,
			    .sessions = ss,
			    .out = out,
			    .now_ns = (i64)clock_now_ns(),
			    .wall_s = clock_wall_s()};
	enum err e = check_header(&in, path, em);
	if (!e) {
		read_records(&in);
		drop_empty(ss);
	}
	munmap(data, (size_t)st.st_size);
	return e;
}

/* ---------------------------------------------------------------- whose */

static bool hash_file(const char *path, u64 *hash)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	void *data = MAP_FAILED;

	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0)
		data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (fd >= 0)
		close(fd);
	if (data == MAP_FAILED)
		return false;
	*hash = XXH3_64bits(data, (size_t)st.st_size);
	munmap(data, (size_t)st.st_size);
	return true;
}

u64 session_journal_fingerprint(const char *model_dir)
{
	static const char *const names[] = {"tokenizer.json", "tekken.json",   "tokenizer.model", "spiece.model",
					    "tiktoken.model", "qwen.tiktoken", "vocab.json"};
	char path[4352];
	u64 hash;

	for (u32 i = 0; i < COUNT_OF(names); i++) {
		int n = snprintf(path, sizeof(path), "%s/%s", model_dir, names[i]);
		if (n > 0 && n < (int)sizeof(path) && hash_file(path, &hash))
			return hash;
	}
	return XXH3_64bits(model_dir, strlen(model_dir));
}
