/* What encoding writes to: one per thread, reused from call to call. */
#ifndef TERCET_TEXT_SCRATCH_PRIV_H
#define TERCET_TEXT_SCRATCH_PRIV_H

#include "common/buf.h"
#include "common/types.h"
#include "text/regex_priv.h"

enum {
	PRETOK_STAGES_MAX = 16,
	PIECE_KEY_MAX = 30,
	PIECE_IDS_MAX = 8,
	PIECE_WAYS = 2,
	PIECE_SETS = 1 << 14, /* 2 MiB of remembered pieces */
};

/* A remembered piece and its ids: one cache line. key_bytes 0: empty. */
struct piece_slot {
	u8 key_bytes;
	u8 id_count;
	char key[PIECE_KEY_MAX];
	u32 ids[PIECE_IDS_MAX];
};

/* One symbol of the piece being merged: a linked list in an array. */
struct symbol {
	u32 id;
	u32 prev;
	u32 next;
	u32 rank;   /* of the pair (this, next); UINT32_MAX: does not merge */
	u32 merged; /* id of that pair */
};

/* The best way to a position of a piece (Unigram): the token that ends there and where it began. */
struct best_path {
	double score;
	u32 from; /* UINT32_MAX: no way found yet */
	u32 next; /* where the token behind this position ends, on the way that was chosen */
	u32 id;
};

/* A part of the text that a pre-tokenizer judged. */
struct span {
	u32 from;
	u32 to;
	bool match;
};

struct text_scratch {
	u64 owner; /* the tokenizer whose pieces are remembered */
	struct piece_slot *pieces;
	struct symbol *symbols;
	u64 *heap;
	u32 symbols_max;
	u32 heap_max;
	struct best_path *paths; /* all unreached between pieces */
	size_t paths_max;
	struct buf spelled;      /* a part of a piece as the vocabulary writes it */
	struct regex_scratch regex;
	struct buf normal[2];
	struct buf stage_text[PRETOK_STAGES_MAX];
	struct span *stage_spans[PRETOK_STAGES_MAX];
	u32 stage_spans_max[PRETOK_STAGES_MAX];
};

#endif
