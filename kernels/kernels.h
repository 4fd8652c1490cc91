/* The door of kernels/: the op table. One args struct and one slot per op; the readable reference fills the table, stronger variants
 * overwrite their slots. Compiles as C11 and as (CUDA) C++.
 *
 * Some groups of ops have headers of their own: indexer.h, recurrent.h, sampling.h and streams.h; so have weights, with the types of values (weight.h), and
 * what a device does between steps and layers (device_step.h).
 *
 * Shapes are row-major; "[T][H]" means T rows of H. T: tokens of a step, R: rows (sequences) of a step, V: vocabulary. On the CPU
 * activations are float; weights and KV cache are bf16 or float. All pointers are borrowed for the call. Ops never allocate: what they
 * need beyond their arguments is in the context's scratch, sized by kern_scratch_bytes.
 *
 * Device variants (kern_ops_init_cuda) differ in this: activations are bf16, and the args say so (`dtype`), but for the residual
 * stream and what rope_kv reads, which are float; every pointer in the args, and every pointer behind one, is device memory, but
 * those marked "host"; an op returns when its kernels are queued in the context's stream. They refuse with ERR_UNSUPPORTED what they
 * have no kernel for and with ERR_INVALID what no call may ask for, both before anything is queued; ERR_DEVICE: the launch failed. */
#ifndef TERCET_KERNELS_KERNELS_H
#define TERCET_KERNELS_KERNELS_H

#include "common/err.h"
#include "common/types.h"
#include "kernels/device_step.h"
#include "kernels/indexer.h"
#include "kernels/recurrent.h"
#include "kernels/sampling.h"
#include "kernels/streams.h"
#include "kernels/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instruction sets a variant may need; found at run time, less those that slow a processor down, or masked by tests and by TERCET_KERN_CAPS. */
enum kern_cap {
	KERN_CAP_AVX2 = 1u << 0, KERN_CAP_AVX512 = 1u << 1, /* with FMA and F16C; F, BW, DQ, VL */
	KERN_CAP_AVX512_BF16 = 1u << 2, KERN_CAP_AVX512_VNNI = 1u << 3,
	KERN_CAP_PORTABLE = 1u << 4, /* the compiler's vectors: every processor has it; without, only references */
	KERN_CAP_AVX_VNNI = 1u << 5, /* VNNI in vectors of 256 bits, also of processors without AVX-512 */
	KERN_CAP_AMX = 1u << 6, /* tiles, their products of bytes and of bfloat16, and AVX-512 with VNNI and BF16 */
	KERN_CAP_ALL = 0xffffffffu,
};
u32 kern_caps_detect(void);
/* A list as in TERCET_KERN_CAPS: "portable,avx2,avx_vnni,avx512,avx512_bf16,avx512_vnni,amx", "all" or "none". ERR_INVALID names the word. */
enum err kern_caps_parse(const char *text, u32 *mask, struct err_msg *em);

/* ---------------------------------------------------------------- threads */

/* A pool of threads that live as long as it does. The caller's thread is worker 0. Between runs the others
 * spin for some microseconds and then sleep, so an idle engine costs nothing. */
struct kern_threads;
typedef void (*kern_task_fn)(void *arg, u32 task, u32 thread);
/* threads 0: automatic (cores available to the process). */
enum err kern_threads_create(struct kern_threads **out, u32 threads, struct err_msg *em);
void kern_threads_destroy(struct kern_threads **t);
u32 kern_threads_count(const struct kern_threads *t);
/* Runs fn(arg, 0..tasks-1, thread), each task once, and returns when all are done. Not reentrant. */
void kern_threads_run(struct kern_threads *t, u32 tasks, kern_task_fn fn, void *arg);
/* Memory that a later run will read: from now on a thread that waits for tasks fetches, once, `bytes` from `base` +
 * its number * `stride` into its caches. Replaces what was said before; NULL: nothing. The memory is never touched
 * otherwise and may vanish. By the caller of runs, between them. */
void kern_threads_ahead(struct kern_threads *t, const void *base, size_t stride, size_t bytes);

struct kern_ctx {
	struct kern_threads *threads;
	void *scratch; /* 64-byte aligned */
	size_t scratch_bytes;
	void *stream;		  /* device stream; NULL on the CPU */
	struct kern_cuda *device; /* of the device's library calls; NULL on the CPU */
};

/* ---------------------------------------------------------------- ops */

/* An array of activations: float where the args' dtype is KERN_F32 (the default), bf16 where it is BF16. */
#define KERN_ACTIVATIONS(qualifier, name)   \
	union {                             \
		qualifier float *name;      \
		qualifier u16 *name##_bf16; \
	}

/* Rows in 8 bits: value = data[t][i] * scales[t], where the largest of a row is 127 (KERN_I8) or 448 (KERN_F8E4M3), rounded to nearest even.
 * A row of zeros has scale 0. */
struct kern_quantized {
	void *data;    /* [T][width] */
	float *scales; /* [T] */
	enum kern_dtype dtype;
};

/* out[t] = table[ids[t]] * scale; out [T][H]. With tensor parallelism the table is a slice of the vocabulary [first, first + rows): other ids
 * give zeros. Devices and the reference: with `accumulate` += instead. */
struct kern_embedding_args {
	float *out;
	const u32 *ids;
	const void *table;
	enum kern_dtype table_dtype;
	u32 tokens, hidden, first, rows;
	float scale; /* 0: as they are */
	bool accumulate;
};

/* If `add` is not NULL: x[t] += add[t], and, on the CPU, with `scale` x[t] = (x[t] + add[t]) * scale[0]. Then out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight. `out` may be NULL (only add), or `x` (in place).
 * Zhang, Sennrich 2019. Devices: `weight` NULL: out[t] = x[t], rounded. */
struct kern_rmsnorm_args {
	KERN_ACTIVATIONS(, out);      /* [T][H] */
	KERN_ACTIVATIONS(, x);	      /* [T][H], the residual stream */
	KERN_ACTIVATIONS(const, add); /* [T][H] or NULL */
	const float *weight, *scale;  /* [H], or, see above, NULL; [1] or NULL */
	float eps;
	u32 tokens, hidden;
	enum kern_dtype dtype, x_dtype; /* of out and add; of x: float for the residual stream */
	/* Devices: the result also, or only (`out` NULL), as 8 bits with a scale per token; else NULL. */
	struct kern_quantized *quantized; /* host */
};

/* out[t][n] = sum_k x[t][k] * w[n][k] (+ bias[n]); accumulates in float. `accumulate`: += instead of =. */
struct kern_matmul_args {
	KERN_ACTIVATIONS(, out);     /* [T][out_stride] */
	KERN_ACTIVATIONS(const, x);  /* [T][x_stride] */
	const struct kern_weight *w; /* host; its data on the device */
	const float *bias;	     /* [N] or NULL */
	u32 tokens;
	u32 x_stride, out_stride; /* in elements */
	bool accumulate;
	enum kern_dtype dtype, out_dtype; /* of x; of out (bf16 in, float out: logits, and into the residual stream) */
	/* CPU, few tokens: the weights of the product that follows, or NULL. Threads that have nothing to do fetch
	 * their beginning into their caches until then. Changes no result. */
	const struct kern_weight *next;
	/* What surrounds the product, in the same kernel: few tokens on devices; on CPUs all but rope, of many tokens. */
	const struct kern_matmul_fusion *fusion; /* host */
};

/* SiLU: x / (1 + e^-x). GELU (Hendrycks, Gimpel 2016): x times the share of a normal distribution below x, exactly or by its form with tanh. */
enum kern_activation { KERN_SILU, KERN_GELU_TANH, KERN_GELU, KERN_RELU, KERN_RELU_SQUARED };

/* Fused with a matrix product of at most KERN_FUSED_TOKENS tokens (a step of decoding), on CPUs of more than KERN_CPU_UNFUSED_TOKENS and
 * with the bits of the separate ops, which the caller uses where a variant cannot: ERR_UNSUPPORTED, nothing written. */
enum { KERN_FUSED_TOKENS = 16, KERN_CPU_UNFUSED_TOKENS = 32 };
struct kern_rope_kv_args;
struct kern_matmul_fusion {
	/* [K]: x is RMSNorm(x) * norm_weight, and is float, the residual stream; NULL: as it is, on devices bf16 */
	const float *norm_weight;
	float norm_eps;
	/* The rows of W are gate and then up: out[t][i] = act(product[t][i]) * product[t][N / 2 + i]. */
	bool act_mul;
	enum kern_activation act;
	/* CPU: a product with weights of the same type whose x is `out`, computed, too, with its own fusion; behind act_mul `out` may hold anything. Host; or NULL */
	const struct kern_matmul_args *then;
	/* The product is what rope_kv reads: rotated and written as it would, and `out` is not written. With norms
	 * of heads or an 8-bit cache the product lies in `qkv` in between, else that is ignored. Host; NULL: not. */
	const struct kern_rope_kv_args *rope;
};

/* The KV cache of one layer: an array of blocks for K and one for V. A slot is block * block_size + offset. Inside a block V is
 * [kv_heads][block_size][head_dim]. K is [kv_heads][head_dim / c][block_size][c] with c = 4 / bytes of the type: the keys of a block lie side by
 * side, so that one vector holds the same dimension of many keys. On devices K is laid out as V: what their matrix units read is a key's
 * dimensions side by side.
 *
 * KERN_I8, KERN_F8E4M3 and, on the CPU alone, KERN_I16 have a scale per token and head, of K and of V: value = stored * scale, where the
 * largest of a token's head is stored as 127, 448 or 16383, rounded to nearest even. The scales [block_size] of a head, in float, follow its
 * values inside the block, so that a block stays one range of bytes. On the CPU KERN_I8 stores 128 more, as unsigned bytes, and head_dim is
 * filled up to a multiple of 4. A head of KERN_I16 that has a NaN or an infinity is one of NaN. Blocks are opaque to callers. head_dim is even. */
struct kern_kv {
	void *k, *v;
	enum kern_dtype dtype;
	u32 block_size, kv_heads, head_dim;
	/* CPU, of k and v alike: blocks lie in runs of 2^run of them, and between two runs are `gap` bytes of others, such as those of other
	 * layers. `gap` 0: all blocks lie in a line. */
	u32 run;
	size_t gap;
	bool keys_alone; /* CPU: there is no V, and `v` is NULL */
};
/* Bytes of the K, and as many of the V where there is one, of one block on the CPU. */
size_t kern_kv_block_bytes(const struct kern_kv *kv);

/* Splits qkv [T][(heads + 2 kv_heads) * head_dim], adds `bias` and applies q_norm / k_norm (RMSNorm over head_dim) where given, rotates q and
 * k (RoPE, neox halves: pairs (i, i + rope_dim/2)) by cos/sin[positions[t]], writes q to `q` and k, v into the cache at slots[t]; slot -1
 * writes nothing (padding). `interleaved`: the pairs are (2 i, 2 i + 1); they are written as halves all the same, in q and in K alike, which
 * changes no score. With `clip` what is read, with its bias, is bounded by -clip and clip; with `norm_behind` norms are behind the rotation
 * (their weights are then of halves; on devices it goes with halves); with `q_scales` q is multiplied by q_scales[positions[t]] behind both. q may stay where it is read, `q_stride` apart.
 * With `layer_norms`, on CPUs, norms are LayerNorm,
 * before the rotation, and every head of q and k has weights of its own. With `rope_apart`, which goes with halves, the pairs are (i, i + rope_apart), rope_dim / 2 of them; `norm_v`, which goes with norms
 * before the rotation, divides the heads of v by their root mean square (RMSNorm without weights); with `v_is_k`, which goes with halves, qkv
 * and bias have no v: it is what k is before its norm. Without KV heads only q is read and written, and `slots` may be NULL. */
struct kern_rope_kv_args {
	KERN_ACTIVATIONS(, q); /* out [T][heads][head_dim] */
	const float *qkv;
	const float *bias;   /* [(heads + 2 kv_heads) * head_dim] or NULL */
	const float *q_norm; /* [head_dim], with `layer_norms` [heads][head_dim]; or NULL */
	const float *k_norm;
	float norm_eps, clip; /* clip 0: none */
	const float *cos, *sin; /* [positions_max][rope_dim / 2] */
	const float *q_scales; /* [positions_max] or NULL */
	const u32 *positions; /* [T] */
	const i64 *slots;     /* [T] */
	struct kern_kv kv;
	u32 tokens, heads, rope_dim, rope_apart;
	u32 q_stride, qkv_stride; /* floats from a token of q (CPU), of qkv to the next; 0: as wide as it is */
	bool interleaved, norm_behind, norm_v, v_is_k, layer_norms;
	enum kern_dtype dtype;
};

/* The same with LayerNorm (Ba et al. 2016): out[t] = (x[t] - mean(x[t])) / sqrt(variance(x[t]) + eps) * weight + bias. */
struct kern_layernorm_args {
	KERN_ACTIVATIONS(, out);      /* [T][H], or NULL */
	float *x;		      /* [T][H], the residual stream */
	KERN_ACTIVATIONS(const, add); /* [T][H] or NULL */
	const float *weight;	      /* [H] */
	const float *bias;	      /* [H] or NULL */
	float eps;
	u32 tokens, hidden;
	enum kern_dtype dtype; /* of out and add */
};

/* Norms over all heads of q together, and of k together (Groeneveld et al. 2025), of a fused projection whose heads ranks share: the first op
 * sums the squares of this rank's values, the sums of all ranks are added, the second op divides by them. q are a row's first `q_width`
 * values, which may be none, k the `k_width` behind them.
 *
 * squares[t] = {sum of q[t]^2, sum of k[t]^2}; 0 for k unless `counts_k`: of several ranks that hold the same head one
 * counts it. */
struct kern_qk_squares_args {
	const float *qkv; /* [T][stride] */
	float *squares;	  /* out [T][2] */
	u32 tokens, stride, q_width, k_width;
	bool counts_k;
};

/* q[t] = q[t] / sqrt(squares[t][0] / q_total + eps) * q_weight, and the same for k; in place. */
struct kern_qk_norm_args {
	float *qkv;		/* [T][stride] */
	const float *squares;	/* [T][2], of all ranks */
	const float *q_weight;	/* [q_width], this rank's */
	const float *k_weight;	/* [k_width] */
	float eps;
	u32 tokens, stride, q_width, k_width;
	u32 q_total, k_total; /* widths of all ranks together */
};

/* Paged attention for decode, prefill chunks and mixtures in one op. Row r owns queries [query_start[r], query_start[r+1]); its context is
 * `context[r]` tokens, the last of which are those queries. Query i of n sees keys 0 .. context - n + i (causal), within `window` (0: none:
 * key > query - window). A head's sink is a score that no key has: it enters the sum that weights are divided by, and nothing else (Xiao et
 * al. 2024; gpt-oss learns it). It is neither scaled nor capped. With `chunked`, on CPUs, a window is no distance, but contexts are cut into chunks
 * of so many tokens, and a query sees those of its own (Llama 4). With `slopes`, on CPUs, a score behind scale and cap is less by its head's slope for
 * every key from its own to the query's (ALiBi: Press et al. 2022). With `slopes_rounded` what it is less by is how far the query's own position lies
 * above the key's, each as bfloat16 times the slope, as bfloat16, and then scaled (Falcon). */
struct kern_attention_args {
	KERN_ACTIVATIONS(, out);    /* [T][heads][head_dim] */
	KERN_ACTIVATIONS(const, q); /* [T][heads][head_dim] */
	struct kern_kv kv;
	const u32 *query_start;	 /* [R + 1] */
	const u32 *context;	 /* [R] */
	const u32 *block_tables; /* [R] rows of `block_stride` */
	u32 block_stride;
	u32 rows, tokens, heads, stride; /* the last: CPU, floats from a token of q, and of out, which may be q, to the next; 0: heads * head_dim */
	float scale;
	float soft_cap; /* 0: none; else cap * tanh(score / cap) */
	u32 window;
	bool chunked;
	const float *sinks; /* [heads], or NULL: none */
	const float *slopes; /* [heads], numbers, or NULL: none */
	bool slopes_rounded;
	enum kern_dtype dtype;
	/* Devices: the step cut into pieces of work, once for all its layers (kern_device_ops.plan); NULL elsewhere. */
	const struct kern_attention_plan *plan;
};

/* out[t][i] = act(gate_up[t][i]) * gate_up[t][size + i], i < size; `ungated`: act(gate_up[t][i]) of rows of `size`
 * With `factors`, which are for CPUs and go with none of the others here, gate and up of row t are multiplied by factors[t] first. With `cutoffs`,
 * likewise, act is of max(gate_up[t][i] - cutoffs[t], 0): of a gate whose small values count as none.
 * With `limit` above 0, instead: g / (1 + e^(-alpha g)) * (u + 1), where gate and up are neighbours and clamped, g = min(gate_up[t][2i], limit),
 * u = max(min(gate_up[t][2i + 1], limit), -limit) (gpt-oss). With `xielu`, which goes with `ungated`, act is xIELU (Huang, Schlag 2024) of the
 * numbers there: positive x^2 + beta x for x above 0, else negative (e^min(x, eps) - 1 - x) + beta x. */
enum kern_xielu { KERN_XIELU_POSITIVE, KERN_XIELU_NEGATIVE, KERN_XIELU_BETA, KERN_XIELU_EPS, KERN_XIELU_COUNT };
struct kern_act_mul_args {
	KERN_ACTIVATIONS(, out);	  /* [T][size] */
	KERN_ACTIVATIONS(const, gate_up); /* [T][2 * size]; `ungated`: [T][size] */
	u32 tokens, size;
	enum kern_activation act;
	bool ungated;
	float alpha, limit;
	const float *xielu; /* [KERN_XIELU_COUNT], or NULL */
	const float *factors; /* [T], or NULL: 1 */
	const float *cutoffs; /* [T], or NULL: the gate is as it is */
	enum kern_dtype dtype;
	struct kern_quantized *quantized; /* as of kern_rmsnorm_args */
};

/* x = cap * tanh(x / cap), in place: the last step of logits in some families (Gemma Team 2024). */
struct kern_soft_cap_args {
	float *x;  /* [rows][width] */
	float cap; /* above 0 */
	u32 rows, width;
};

/* Routing of a mixture of experts (Shazeer et al. 2017; Jiang et al. 2024). An expert's score is its share of
 * softmax(logits[t]), or with `sigmoid` 1 / (1 + e^-logit). A token's experts are the `top` of the largest score + bias, a
 * float, ties to the lowest, with `by_logits` of the largest logit + bias; of several `groups`, as many experts each, only those in the `groups_top` whose two largest sum
 * to most (DeepSeek-AI 2024), with `groups_best` whose largest is largest (V2). Their weights are their scores, where `normalize` divided by max(their sum + sum_plus,
 * sum_least), times `scale` and, on CPUs, expert_scales[e]; with `mixer` (SparseMixer, Liu et al. 2023, which has none of the others) each one's share of
 * softmax(x) over those experts not chosen before it whose logits are near m, its own: m - x <= mixer * max(|x|, m). The T * top
 * assignments of a token to an expert are numbered by expert and, of one expert, by token, so that what an expert has to do
 * lies together: expert e has those in [expert_start[e], expert_start[e + 1]). A token's result depends on its own logits
 * alone, only the numbers of its assignments on the others. */
enum { KERN_EXPERT_GROUPS_MAX = 64 };
struct kern_moe_route_args {
	const float *logits, *bias, *expert_scales; /* [T][experts]; [experts] or NULL; the same */
	float *weights;		    /* out [T][top] */
	u32 *assignments;	    /* out [T][top]: the number of each, beside its weight */
	u32 *tokens_of;		    /* out [T * top]: the token of each assignment */
	u32 *expert_start;	    /* out [experts + 1] */
	u32 tokens, experts, top;
	u32 groups, groups_top;		  /* 0: one group; else at most KERN_EXPERT_GROUPS_MAX, of two experts or more */
	float sum_plus, sum_least, scale, mixer; /* not negative; scale 0: 1 */
	bool sigmoid, normalize, groups_best, by_logits;
};

struct kern_ops;
/* Devices: from so many assignments an expert on, in the mean, moe_matmul computes tiles, which add up in another order
 * and round quantized weights to bf16. */
enum { KERN_EXPERT_TILED = 12 };

/* Grouped matrix products: out[i][n] = sum_k x[source[i]][k] * w[e][n][k] (+ bias[e][n]) for the assignments i of expert
 * e, as of moe_route. A row's bits depend on that row and expert alone, and on devices on whether there are tiles. */
struct kern_moe_matmul_args {
	KERN_ACTIVATIONS(, out);     /* [assignments][N] */
	KERN_ACTIVATIONS(const, x);  /* [T][K], or [assignments][K] without `source` */
	const u32 *source;	     /* [assignments] the row of x that an assignment reads; NULL: its own */
	const struct kern_weight *w; /* host [experts], all of one shape; their data on the device, equally far apart */
	const float *bias;	     /* [experts][N], or NULL */
	const u32 *expert_start;     /* [experts + 1] */
	u32 experts, assignments;
	u32 tokens; /* T: an expert has no more assignments */
	enum kern_dtype dtype;
	/* Host: the table whose matmul computes the groups. NULL on devices, which have one kernel for all.
	 */
	const struct kern_ops *ops;
};

/* A product of every head with a matrix of its own: out[t][h][beside + n] = sum_k x[t][h][k] * w[h][n][k]. In front of it stand the `beside`
 * values that follow those K in x, as they are. Heads begin `apart` elements behind each other. A row's bits depend on that row and head alone,
 * and on devices on the number of tokens. Devices: x and out are of either type each, x is rounded to bf16 for the product (not what stands beside
 * it); weights of bf16, at most 256 heads, x with its strides aligned to 16 bytes. */
struct kern_head_matmul_args {
	KERN_ACTIVATIONS(, out);     /* [T][out_stride] */
	KERN_ACTIVATIONS(const, x);  /* [T][x_stride] */
	const struct kern_weight *w; /* host [heads], all of one shape; their data on the device */
	u32 tokens, heads, beside, x_stride, x_apart, out_stride, out_apart;
	enum kern_dtype dtype, out_dtype; /* of x; of out: float for rope_kv, bf16 for a product */
	const struct kern_ops *ops; /* host: the table whose matmul computes them; NULL on devices, which have one kernel for all */
};

/* Latent attention (DeepSeek-AI 2024) with queries of the width rope + rank, as head_matmul makes them: a token's latent becomes the one KV head
 * that all of them share, in the qkv that rope_kv reads. K is the part of the key that rotates, which follows the latent, and then the latent; V
 * the same with zeros in front, where no query asks for anything. Floats on devices, too; there rank, rope and strides are multiples of 4. */
struct kern_latent_kv_args {
	float *qkv;	      /* out [T][qkv_stride]: behind `heads` queries K, then V */
	const float *latents; /* [T][latent_stride]: `rank` values, then `rope` */
	u32 tokens, heads, rank, rope, latent_stride, qkv_stride;
};

/* out[t] = sum_j weights[t][j] * x[assignments[t][j]], in the order of j, and then, where there is an expert of all tokens,
 * + sigmoid(shared_gate[t]) * shared[t] (Qwen 2 MoE), or without a gate + shared[t]. Devices: with `accumulate` +=; out is float (the residual stream) or
 * bf16, as out_dtype says. */
struct kern_moe_combine_args {
	KERN_ACTIVATIONS(, out);	 /* [T][H] */
	KERN_ACTIVATIONS(const, x);	 /* [T * top][H] */
	KERN_ACTIVATIONS(const, shared); /* [T][H], or NULL */
	const float *shared_gate;	 /* [T] or NULL */
	const float *weights;	    /* [T][top] */
	const u32 *assignments;	    /* [T][top] */
	u32 tokens, top, hidden;
	bool accumulate;
	enum kern_dtype dtype, out_dtype; /* of x and shared; of out */
};

/* A low-rank adapter (LoRA; Hu et al. 2021) of one product, which may be of several matrices one behind the other (fused q,
 * k and v). `a` has the rows of all A, [rank][k]. A part is what one matrix B adds to columns [first, first + n) of the
 * product, from rows [rank_first, rank_first + rank) of A; parts may share rows. B[n][rank] lies in panels of
 * KERN_LORA_COLUMNS columns of the product, [ceil(n / KERN_LORA_COLUMNS)][rank][KERN_LORA_COLUMNS], the last one filled up by
 * zeros. Made by kern_lora_set_a and _b; memory is the caller's. */
enum { KERN_LORA_PARTS_MAX = 3, KERN_LORA_COLUMNS = 64 };
struct kern_lora_part {
	const void *b;
	float scale;
	u32 first, n, rank_first, rank;
};
struct kern_lora {
	enum kern_dtype dtype; /* of A and B: KERN_F32 or KERN_BF16 */
	u32 k, rank, part_count;
	const void *a;
	struct kern_lora_part parts[KERN_LORA_PARTS_MAX];
};

/* The tokens of a step that go through one adapter, ascending. */
struct kern_lora_group {
	const struct kern_lora *lora;
	const u32 *tokens; /* [count] */
	u32 count;
};

/* out[t][first + j] += scale * sum_r B[j][r] * (sum_k A[rank_first + r][k] * x[t][k]), for the tokens of each group and the
 * parts of its adapter, in float. No token is in two groups, and what is added to one depends on its own x and adapter
 * alone, to the bit. Only the CPU has it. */
struct kern_lora_args {
	float *out;	/* [T][out_stride] */
	const float *x; /* [T][x_stride] */
	const struct kern_lora_group *groups;
	u32 group_count;
	u32 first; /* token number of row 0 of x and out */
	u32 x_stride, out_stride;
};

/* The real-gated linear recurrent unit (De et al. 2024): over a row's tokens, for every channel by itself on a number S, which begins as what the slot has at
 * [channels]. With i = sigmoid(input[t][c] + input_bias[c]), r = sigmoid(fade[t][c] + fade_bias[c]) and w = exp(-8 * rate[c] * r):
 *   S[c] = w S[c] + sqrt(1 - w^2) * i * x[t][c], of a sequence's first token S[c] = i * x[t][c];  out[t][c] = S[c] * act(gate[t][c]).
 * `out` may be x or gate. S is rounded to float with every token: a row's bits depend on that row alone, not on how its tokens are spread over calls. */
struct kern_lru_args {
	float *out;		      /* [T][stride], as x and gate: channels values of a token */
	const float *x, *gate;
	const float *input, *fade;    /* [T][gate_stride], likewise */
	const float *input_bias, *fade_bias; /* [channels] */
	const float *rate;	      /* [channels], 0 at least */
	struct kern_state state;
	enum kern_activation act;
	u32 channels, stride, gate_stride;
};

/* Copies KV blocks src[i] -> dst[i] in every given layer. A block is never source and destination at once. */
struct kern_block_copy_args {
	const struct kern_kv *layers;
	u32 layer_count;
	const u32 *src, *dst;
	u32 count;
};

/* X(slot, struct kern_<slot>_args) */
#define KERN_OPS(X) \
	X(embedding) X(rmsnorm) X(matmul) X(rope_kv) X(attention) X(act_mul) X(moe_route) X(moe_matmul) X(moe_combine) X(soft_cap) \
	X(logits) X(sample) X(logprobs) X(block_copy) X(layernorm) X(qk_squares) X(qk_norm) \
	X(conv) X(recurrent) X(gate) X(head_matmul) X(latent_kv)
/* Ops that devices have no kernels for; their slots are NULL there, and models that need them are refused. */
#define KERN_CPU_OPS(X) X(lora) X(selective_scan) X(lru) X(stream_mix) X(moments) X(index_keys) X(index_choose) X(index_gather)

struct kern_ops {
#define KERN_SLOT(op) enum err (*op)(struct kern_ctx *, const struct kern_##op##_args *);
	KERN_OPS(KERN_SLOT)
	KERN_CPU_OPS(KERN_SLOT)
#undef KERN_SLOT
#define KERN_VARIANT(op) const char *op##_variant;
	KERN_OPS(KERN_VARIANT)
	KERN_CPU_OPS(KERN_VARIANT)
#undef KERN_VARIANT
};

/* Fills every slot: reference first, then what `caps` allows. */
void kern_ops_init(struct kern_ops *ops, u32 caps);
/* "rmsnorm=avx512 matmul=avx512_bf16 ..." into `out`. */
void kern_ops_print(const struct kern_ops *ops, char *out, size_t bytes);

/* The arrays of struct kern_lora, of `dtype` (KERN_F32 or KERN_BF16), 64-byte aligned. */
size_t kern_lora_a_bytes(u32 rank, u32 k, enum kern_dtype dtype);
size_t kern_lora_b_bytes(u32 n, u32 rank, enum kern_dtype dtype);
/* Rows [first, first + rows) of A [..][k], and all of B [n][rank], from plain rows that are src_stride elements apart. */
void kern_lora_set_a(void *a, enum kern_dtype dtype, u32 first, u32 rows, u32 k, const void *src, enum kern_dtype src_dtype,
		     size_t src_stride);
void kern_lora_set_b(void *b, enum kern_dtype dtype, u32 n, u32 rank, const void *src, enum kern_dtype src_dtype, size_t src_stride);

/* Scratch that any op may need for steps of at most these sizes. */
struct kern_limits {
	u32 tokens, rows, heads, kv_heads, head_dim, hidden, intermediate, vocab, context, threads;
	u32 experts; /* 0: none */
	u32 attended; /* inputs of the product behind attention where there is head_matmul; 0: heads * head_dim, and there is none */
	u32 lora_rank; /* the largest struct kern_lora.rank; 0: no adapters */
	u32 caps; /* enum kern_cap, of the processor; 0: as much scratch as any needs */
};
size_t kern_scratch_bytes(const struct kern_limits *limits);

#ifdef __cplusplus
}
#endif
#endif
