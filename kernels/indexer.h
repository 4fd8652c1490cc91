/* Ops of sparse attention (DeepSeek-AI 2025, DeepSeek V3.2): an indexer scores all that a query could attend to, and attention reads what scores best.
 * A part of the op table (kernels.h), whose rules hold here, too. Only the CPU has them.
 *
 * Keys of the indexer lie in a KV cache of one head without V (kern_kv.keys_alone), in the blocks of their tokens. */
#ifndef TERCET_KERNELS_INDEXER_H
#define TERCET_KERNELS_INDEXER_H

#include <stddef.h>

#include "common/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kern_kv;

/* Writes keys[t] into the cache at slots[t]; slot -1 writes nothing. */
struct kern_index_keys_args {
	const float *keys; /* [T][head_dim] */
	const i64 *slots;  /* [T] */
	const struct kern_kv *kv;
	u32 tokens;
};

/* A query that is to attend to some of its keys, which are 0 .. visible - 1 of `row`. */
struct kern_index_query {
	u32 token;   /* the row of what the step has one of a token */
	u32 row;     /* of the block tables */
	u32 visible; /* no fewer than are chosen */
};

/* The score of key k is sum_h weights[token][h] * max(queries[token][h] . key, 0), in rising order of h. chosen[token] are the `top` keys of the
 * largest scores, in rising order; of equal ones the first. What is chosen for a query depends on nothing but itself and its keys. */
struct kern_index_choose_args {
	u32 *chosen;	      /* out [T][top] */
	const float *queries; /* [T][heads][head_dim] */
	const float *weights; /* [T][heads] */
	const struct kern_index_query *list; /* [count] */
	const u32 *block_tables;	     /* rows of `block_stride` */
	const struct kern_kv *kv;
	float *scores;	     /* room: [count][score_stride] */
	size_t score_stride; /* no less than any `visible`, filled up to a multiple of KERN_INDEX_KEYS */
	u32 block_stride, count, heads, top;
};
enum { KERN_INDEX_KEYS = 32 };

/* Copies the keys and values that were chosen to where attention finds them side by side: those of query i into blocks [i * n, (i + 1) * n) of `to`,
 * n = ceil(top / its block_size), with zeros behind them. Both caches have one head of the same type and width. Keys lie apart, a word in a line each, which
 * is why what they share with values is taken from these; of KERN_I16 once more rounded, where scales differ, and of types of 8 bits never. */
struct kern_index_gather_args {
	const struct kern_kv *from, *to;
	const u32 *chosen;		     /* [T][top] */
	const struct kern_index_query *list; /* [count] */
	const u32 *block_tables;	     /* rows of `block_stride` */
	u32 block_stride, count, top;
	u32 apart; /* behind so many values, an even number, a key is what its value is; head_dim: it is another */
};

#ifdef __cplusplus
}
#endif
#endif
