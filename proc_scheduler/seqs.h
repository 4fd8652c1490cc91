/* The sequences the scheduler knows: a fixed number of slots with everything a request brought, its tokens,
 * its block hashes, and the index over (client, request). */
#ifndef TERCET_PROC_SCHEDULER_SEQS_H
#define TERCET_PROC_SCHEDULER_SEQS_H

#include "common/err.h"
#include "common/grammar_kind.h"
#include "common/map.h"
#include "common/sampling_params.h"
#include "common/types.h"
#include "proc_scheduler/prefix_cache.h"

enum { SEQ_SLOT_BITS = 21, SEQ_SLOTS_MAX = 1 << SEQ_SLOT_BITS };
#define SEQ_NONE UINT32_MAX

enum seq_state {
	SEQ_FREE,
	SEQ_WAITING,  /* in the waiting queue; preempted ones may still have tokens in flight */
	SEQ_RUNNING,  /* has a row */
	SEQ_DRAINING, /* its last allowed token is in flight; the row is given up */
	SEQ_HELD,     /* of a beam search: has no row and is in no queue; the first sequence waits for all */
};

/* What a plan reads of every running sequence comes first. Token counts are of prompt and outputs together.
 */
struct seq {
	u64 id;	       /* 0: free. Grows with every sequence; the low SEQ_SLOT_BITS are the slot */
	u32 known;     /* tokens whose value is known */
	u32 in_flight; /* planned outputs whose value is not back yet */
	u32 computed;  /* tokens whose KV is there once the planned steps have run */
	u32 capacity;  /* tokens that its blocks hold */
	u32 token_end; /* prompt_count + output_max: it ends there at the latest */
	u32 prompt_count;
	u32 row;
	u32 block_count;
	u32 hashed;	/* blocks whose hash is computed (full, known) */
	u32 filed;	/* blocks filed in the prefix cache */
	u16 group;	/* 1 + index of the beam search that it belongs to (groups.h); 0: none */
	u16 beam;	/* its place there */
	u32 prev, next; /* in the waiting queue */
	i32 priority;	/* lower goes first; 0 under first come, first served */
	u8 state;	/* enum seq_state */
	bool opened;	/* the detokenizer was told */
	bool preempted; /* has run before */
	bool beyond;	/* its KV is that of sequences longer than kv_switch_len */
	bool unnamed;	/* a beam that is no answer: no request has its slot */
	u64 client_id, req_id, cache_salt;
	u64 arrived_ns, scheduled_ns, first_token_ns, token_ns; /* 0: not yet */
	u32 held_count;	  /* outputs that came with its SUBMIT */
	u32 cached_count; /* prompt tokens found in the prefix cache when first scheduled */
	struct sampling_params params;
	u32 session;	   /* 0: none; else its slot + 1 */
	u32 session_flags; /* enum session_flag */
	u32 kv_tail;	   /* tokens at the beginning of which the cache may have the KV, the last block partly filled */
	/* Of models whose rows keep states; 0 in front of each: none. */
	u32 branch;			  /* tokens behind which it parts from another sequence, whose state there nobody has kept */
	u32 pending_tokens, pending_slot; /* behind so many the state is saved in that slot, which is its own until they are known */
	u32 saved_tokens, saved_slot;	  /* likewise the newest state of its answer, which is filed */
	u32 stop_count;	   /* not 0: it ends with so many outputs, since a stop string was found there */
};

/* What is read when a sequence is added, opened or preempted only. */
struct seq_extra {
	u32 host_first, host_count; /* while it waits: its chain of blocks in the host's memory; 0: none */
	u32 host_computed;	    /* tokens whose KV is there */
	u32 stop_count, bias_count, stop_string_count, stop_string_bytes_sum;
	u32 grammar_kind, grammar_flags, grammar_bytes; /* common/grammar_kind.h; the source: seqs_grammar */
	u32 lora; /* number of its adapter (--lora-modules), from 1; 0: the model alone */
	u32 stop_ids[STOP_IDS_MAX];
	u32 stop_string_bytes[STOP_STRINGS_MAX];
	u8 stop_strings[STOP_STRING_BYTES_MAX];
	u32 bias_ids[BIAS_MAX];
	f32 bias_values[BIAS_MAX];
};

struct seqs {
	struct seq *slots;
	struct seq_extra *extras;
	u32 *tokens;		   /* [slots][token_stride] */
	u8 *grammars;		   /* [slots][GRAMMAR_SOURCE_MAX] */
	struct block_hash *hashes; /* [slots][hash_stride] */
	u32 *free_slots;	   /* a stack */
	u32 free_count, slot_count;
	size_t token_stride, hash_stride;
	u64 next_number; /* of the next sequence */
	u64 secret;
	struct map by_request;
	void *memory; /* slots, extras, tokens, hashes: reserved address space, used as it is written */
	size_t memory_bytes;
};

/* `first_number`: sequence ids begin above it, so that a later life of the process gives none out again.
 * ERR_NO_MEMORY says what to lower. */
MUST_CHECK enum err seqs_init(struct seqs *t, u32 slot_count, u32 token_max, u32 block_size, u64 first_number,
			      u64 secret, struct err_msg *em);
void seqs_fini(struct seqs *t); /* zeroed accepted */

/* A zeroed slot with its id, client and request set, in the index. ERR_BUSY: no slot is free.
 * The (client, request) pair must not be there yet (seqs_find_request). */
MUST_CHECK enum err seqs_add(struct seqs *t, u64 client_id, u64 req_id, struct seq **out);
/* The same without a request: no index has it, and seqs_find_request never gives it. */
MUST_CHECK enum err seqs_add_unnamed(struct seqs *t, u64 client_id, struct seq **out);
void seqs_remove(struct seqs *t, struct seq *q);
/* NULL when there is none. */
struct seq *seqs_find_request(const struct seqs *t, u64 client_id, u64 req_id);

static inline u32 seqs_slot(const struct seqs *t, const struct seq *q)
{
	return (u32)(q - t->slots);
}

/* NULL: ended or never there. */
static inline struct seq *seqs_find(const struct seqs *t, u64 id)
{
	u64 slot = id & (SEQ_SLOTS_MAX - 1);

	return id && slot < t->slot_count && t->slots[slot].id == id ? &t->slots[slot] : NULL;
}

static inline u32 *seqs_tokens(const struct seqs *t, const struct seq *q)
{
	return t->tokens + seqs_slot(t, q) * t->token_stride;
}

static inline struct block_hash *seqs_hashes(const struct seqs *t, const struct seq *q)
{
	return t->hashes + seqs_slot(t, q) * t->hash_stride;
}

static inline struct seq_extra *seqs_extra(const struct seqs *t, const struct seq *q)
{
	return t->extras + seqs_slot(t, q);
}

static inline u8 *seqs_grammar(const struct seqs *t, const struct seq *q)
{
	return t->grammars + (size_t)seqs_slot(t, q) * GRAMMAR_SOURCE_MAX;
}

/* Outputs below which no token ends it. A grammar keeps those tokens away itself, for as long as it leaves any other. */
static inline u32 seq_output_min(const struct seq *q, const struct seq_extra *x)
{
	return x->grammar_kind ? 0 : q->params.min_tokens;
}

static inline u32 seq_output_count(const struct seq *q)
{
	return q->known - q->prompt_count;
}

/* Those that are final. A beam's may still be given up: it has none before the search is over. */
static inline u32 seq_final_count(const struct seq *q)
{
	return q->group ? 0 : seq_output_count(q);
}

/* Those that are kept when it ends: none behind a stop string, whenever that was found. */
static inline u32 seq_kept_count(const struct seq *q)
{
	u32 count = seq_final_count(q);

	return q->stop_count && q->stop_count < count ? q->stop_count : count;
}

#endif
