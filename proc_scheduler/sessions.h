/* The histories of conversations: tokens of all turns, by owner and name. A bounded store: histories lie in chunks of
 * a pool that is reserved at start; where room lacks, the session that was used least recently leaves. KV blocks are
 * none of its business: they live in the prefix cache and come back from the history. */
#ifndef TERCET_PROC_SCHEDULER_SESSIONS_H
#define TERCET_PROC_SCHEDULER_SESSIONS_H

#include "common/err.h"
#include "common/map.h"
#include "common/session.h"
#include "common/types.h"

/* SESSION_OVER_S: so long the last turn of a session may be sent again after its end, or after the start of a process that found it
 * in the journal; where --session-ttl is less, so long. */
enum { SESSION_CHUNK_TOKENS = 256, SESSION_GONE_MAX = 1024, SESSION_OVER_S = 600 };
#define SESSION_NONE UINT32_MAX

/* Why a session is there no more. */
enum session_end {
	SESSION_END_ASKED,   /* its client ended it */
	SESSION_END_EXPIRED, /* not used for longer than the limit */
	SESSION_END_EVICTED, /* others needed its room */
	SESSION_END_OUTGREW, /* its last turn did not fit beside those that run */
	SESSION_END_EMPTY,   /* its first turn gave no token */
	SESSION_END_DAMAGED, /* a part of its journal is lost */
	SESSION_END_COUNT
};

/* Times are nanoseconds of the monotonic clock; of a session from before the host's start they are negative. */
struct session {
	u64 owner;
	char name[SESSION_NAME_MAX + 1]; /* "": the slot is free */
	u64 life;			 /* tells it from others that had its name before */
	u32 token_count, turn_count;
	u32 first_chunk, last_chunk; /* SESSION_NONE: no tokens */
	u32 prev, next;		     /* in its list, in order of last use; free slots by `next` */
	bool with_over;		     /* which list it is in while it does not run: that of those that are over, or the idle ones */
	u64 running;		     /* the sequence of its turn; 0: idle */
	bool cut_off;		     /* its last turn began in an earlier life of the process, and did not end; or it is over */
	bool ending;		     /* that turn was to be its last one */
	bool redone;		     /* the turn that runs is its last one once more: the history has its end from before */
	u64 turn_client, turn_req;   /* the request of its last turn, */
	u32 turn_base;		     /* and the length of the history in front of it */
	u64 turn_seq;		     /* its sequence, which may be over; 0: of an earlier life of the process */
	u32 turn_prompt;	     /* when it is over: the length of the history up to its first output */
	bool may_stop;		     /* it ended by its tokens, and may have a stop string in front of these */
	u64 settles_ns;		     /* until then the word may come that it ended in front of its last outputs; 0: no more */
	u32 kv_tokens;		     /* tokens at its beginning whose KV was there when its last turn ended */
	u64 cache_salt;		     /* of the last turn */
	i64 begun_ns, used_ns;
};

/* Called synchronously with every change that has to outlive the process; `s` is borrowed for the call. */
struct sessions_sink {
	void *ctx;
	/* A turn begins; the history does not change yet. Not told of one that is redone: should nothing come of it, its end
	 * from before holds. */
	void (*begun)(void *ctx, const struct session *s);
	/* A turn ended: behind the first turn_base tokens the history is now `count` others. */
	void (*ended)(void *ctx, const struct session *s, const u32 *tokens, u32 count);
	void (*dropped)(void *ctx, const struct session *s, enum session_end why);
	/* The last turn's end that was told of is another one: the history got shorter behind it, or the turn was redone. */
	void (*changed)(void *ctx, const struct session *s);
};

struct sessions_config {
	u32 session_max; /* at least 1 */
	u32 token_max;	 /* of all histories; rounded up to whole chunks */
	u64 ttl_ns;	 /* 0: never */
	u64 secret;
};

/* One that is there no more, as it was. */
struct session_gone {
	u64 key; /* 0: empty */
	u64 owner;
	char name[SESSION_NAME_MAX + 1];
	enum session_end why;
	u32 token_count, turn_count;
	i64 begun_ns, used_ns;
};

struct session_list {
	u32 head, tail; /* least recently used first */
};

struct sessions {
	struct sessions_config config;
	struct sessions_sink sink; /* functions may be NULL */
	struct session *slots;
	struct map by_key;
	u32 count, free_slot;
	struct session_list idle, over;
	u32 *tokens;	 /* [chunk_count][SESSION_CHUNK_TOKENS]: address space, used as it is written */
	u32 *next_chunk; /* [chunk_count] */
	u32 chunk_count, free_chunk, free_chunks;
	struct session_gone gone[SESSION_GONE_MAX]; /* a ring */
	u32 gone_next;
	u64 added; /* ever */
	u64 token_total, dropped[SESSION_END_COUNT];
};

/* ERR_NO_MEMORY */
MUST_CHECK enum err sessions_create(struct sessions **out, const struct sessions_config *config,
				    struct err_msg *em);
void sessions_destroy(struct sessions **ss);

/* ERR_INVALID: not 1 to 64 of the allowed characters. */
MUST_CHECK enum err session_name_check(const u8 *name, u32 bytes, struct err_msg *em);
/* NULL when there is none; one that is over is found. */
struct session *sessions_find(const struct sessions *ss, u64 owner, const u8 *name, u32 bytes);
/* Of the last SESSION_GONE_MAX that left the one of that name, NULL: none, or another has its name now. Until the next one leaves. */
const struct session_gone *sessions_find_gone(const struct sessions *ss, u64 owner, const u8 *name, u32 bytes);
/* Why there is none, with what to do: ERR_NOT_FOUND, ERR_DROPPED. */
MUST_CHECK enum err sessions_missing(const struct sessions *ss, u64 owner, const u8 *name, u32 bytes,
				     struct err_msg *em);
/* A new one without tokens, idle. When there are too many one leaves: the first that was over, or the least recently used idle
 * one. ERR_BUSY: all of them run. It must not be there yet. */
MUST_CHECK enum err sessions_add(struct sessions *ss, u64 owner, const u8 *name, u32 bytes, i64 now_ns,
				 struct session **out);
/* Its end, idle or not. */
void sessions_drop(struct sessions *ss, struct session *s, enum session_end why);
/* What a life before had of one that left: as if it had left now. It must not be there. */
void sessions_add_gone(struct sessions *ss, const struct session *s, enum session_end why);
/* Forgets the tokens behind the first `count`. */
void sessions_cut(struct sessions *ss, struct session *s, u32 count);
/* Puts tokens behind its own; others leave for them. ERR_NO_SPACE: even so there is no room; nothing was added. */
MUST_CHECK enum err sessions_append(struct sessions *ss, struct session *s, const u32 *tokens, u32 count);
/* Copies the first `count` of its tokens. */
void sessions_read(const struct sessions *ss, const struct session *s, u32 *out, u32 count);
/* The token at `index`, which must be there. */
u32 sessions_token(const struct sessions *ss, const struct session *s, u32 index);

/* A turn begins as sequence `seq`; all but its tokens and times must be set. No other begins before it ended. */
void sessions_begin_turn(struct sessions *ss, struct session *s, u64 seq, i64 now_ns);
/* It ended: behind the first turn_base tokens the history is now `tokens`; the KV of the first `kv_tokens` was there.
 * With no room for them the session leaves. One that was redone takes its own place and counts once. */
void sessions_end_turn(struct sessions *ss, struct session *s, const u32 *tokens, u32 count, u32 kv_tokens, i64 now_ns);
/* Its last turn ended: it is over. For its client it is there no more, but until SESSION_OVER_S have passed, or room is needed, it
 * stays as it was in front of that turn, which may be sent again. Without tokens it leaves: that turn began it, and can again. */
void sessions_retire(struct sessions *ss, struct session *s, i64 now_ns);
/* How many are there, and their tokens, without those that are over. A walk through these. */
void sessions_totals(const struct sessions *ss, u32 *count, u64 *token_count);
/* The idle session whose last turn was sequence `seq`, NULL: none. A walk from the one used last. */
struct session *sessions_last_turn(const struct sessions *ss, u64 seq);
/* The idle session whose last turn was that request, and which was used at or behind `since_ns`; NULL: none. */
struct session *sessions_ended_turn(const struct sessions *ss, u64 client, u64 req, i64 since_ns);
/* An idle session's last turn turns out to have ended at the first `count` tokens, at most those that are there. */
void sessions_shorten(struct sessions *ss, struct session *s, u32 count);
/* It ended and changes nothing; one that was redone takes its end from before along: what stood in front of it is left. A
 * session without tokens leaves. */
void sessions_undo_turn(struct sessions *ss, struct session *s, i64 now_ns);
/* Makes `s` the one used last. */
void sessions_touch(struct sessions *ss, struct session *s, i64 now_ns);
/* Drops what was idle, or is over, for too long; about once a second. */
void sessions_expire(struct sessions *ss, i64 now_ns);
/* Drops every session with a token that is not below `vocab_size`; how many. */
u32 sessions_check_vocab(struct sessions *ss, u32 vocab_size);

/* Its last turn was to end it. It ended, or its end is not known: that was lost with an earlier life of the process. */
static inline bool session_is_over(const struct session *s)
{
	return s->cut_off && s->ending && !s->running;
}

static inline u32 sessions_slot(const struct sessions *ss, const struct session *s)
{
	return (u32)(s - ss->slots);
}

#endif
