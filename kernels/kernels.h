/* The door of kernels/: the op table. One args struct and one slot per op; the readable reference fills the table, stronger variants
 * overwrite their slots. Compiles as C11 and as (CUDA) C++.
 *
 * Two groups of ops have headers of their own: recurrent.h and sampling.h.
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
#include "kernels/recurrent.h"
#include "kernels/sampling.h"
#include "kernels/streams.h"

#ifdef __cplusplus
extern "C" {
#endif

/* KERN_I8 and KERN_I4_* as types of a weight are quantized in groups; see struct kern_weight. KERN_I16 is a type of the KV cache alone. */
enum kern_dtype { KERN_F32, KERN_BF16, KERN_F16, KERN_I8, KERN_F8E4M3, KERN_I4_32, KERN_I4_64, KERN_I4_128, KERN_I4_STEPS, KERN_I16 };
/* Bytes of an element; 0 for KERN_I4_*, of which two share one. */
size_t kern_dtype_bytes(enum kern_dtype t);
const char *kern_dtype_name(enum kern_dtype t); /* "float32", "int4 (groups of 64)", ... */
/* Neighbouring values of a row of a quantized weight that share a scale; 0: the type is not quantized. */
u32 kern_dtype_group(enum kern_dtype t);
/* Of what is rounded to 4 bits here: KERN_I4_STEPS where there is AVX-512 with VNNI; else KERN_I4_64, for steps have no fast products there. */
enum kern_dtype kern_dtype_int4(u32 caps);
/* Of a KV cache of 16 bits on the CPU, with heads of `head_dim` values: KERN_I16 where products of whole numbers are faster than those of
 * bfloat16, else KERN_BF16. Tiles (AMX) multiply 32 values. */
enum kern_dtype kern_dtype_kv(u32 caps, u32 head_dim);

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

/* ---------------------------------------------------------------- weights of matrix products */

/* A matrix W[n][k] (torch's Linear: out x in) in the layout that the variant chosen by the same caps reads. Its memory is owned by whoever made it.
 *
 * Quantized types. Group g of row n is W[n][g * G .. (g + 1) * G), the last one of a row may be shorter. Its values are scale * (q - zero), with
 *   KERN_I8: G = 128, q in -128 .. 127, zero = 0, scale a float;
 *   KERN_I4_32, _64, _128: G = 32, 64, 128, q in 0 .. 15, scale and zero numbers of a half (so that a zero may be fractional or outside of
 * 0 .. 15). Every AWQ and GPTQ matrix of 4 bits is of this form;
 *   KERN_I4_STEPS, of what is rounded here alone: G = 128, four parts of 32; values are scale * (m * (q - 8) + c), q in 0 .. 15, scale a bfloat16 of
 * 2^-24 to 2^16 (of values as kern_all_finite has them), and of each part m in 0 .. 15 and c whole numbers with m * (q - 8) + c in -128 .. 127, so that a group's sum is one of whole numbers.
 * The product rounds its inputs to 8 bits, too, by token and group, for the processors' integer instructions: see docs/QUANTIZATION.md. */
struct kern_weight {
	u32 n, k;
	enum kern_dtype dtype;
	u32 packed; /* layout id; 0: plain row-major */
	u32 caps;   /* that it was made for */
	const void *data;
	/* NULL, or [k]: column i of this (quantized) matrix multiplies input order[i] (GPTQ's act-order, columns sorted by group). Borrowed; set after begin. */
	const u32 *order;
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
};
/* Bytes of the K, and as many of the V, of one block on the CPU. */
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
 * of so many tokens, and a query sees those of its own (Llama 4). */
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
 * float, ties to the lowest, with `by_logits` (CPUs alone) of the largest logit + bias; of several `groups`, as many experts each, only those in the `groups_top` whose two largest sum
 * to most (DeepSeek-AI 2024), with `groups_best` whose largest is largest (V2; CPUs alone). Their weights are their scores, where `normalize` divided by max(their sum + sum_plus,
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
	const struct kern_weight *w; /* host [experts], all of one shape; their data on the device */
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
#define KERN_CPU_OPS(X) X(lora) X(selective_scan) X(stream_mix) X(moments)

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

/* ---------------------------------------------------------------- devices: between steps and layers */

/* The largest step that a plan serves: `queries` of one row at most (1: steps of decoding, which then need fewer
 * kernels), `blocks` of threads to fill the device (two a multiprocessor). */
struct kern_attention_limits {
	u32 tokens, rows, queries, heads, kv_heads, head_dim, blocks;
	/* 0: keys are shared out evenly over the blocks, so where a row's keys are cut, and with it the last bits of
	 * its result, depends on the rest of the step. Else a decoding row is cut every `split` keys (a multiple of
	 * 64), whatever else runs, and rows with many queries not at all; with contexts of at most `context` tokens.
	 * It costs the plan memory for rows * kv_heads * context / split pieces, and balance where a step has few
	 * long rows. */
	u32 split, context;
};
/* How a step's attention is cut into pieces of work, and room for their results. One serves all layers of the same window, one after the
 * other. The memory is the caller's, on the device, 128-byte aligned. */
struct kern_attention_plan {
	void *memory; /* kern_attention_plan_bytes */
	struct kern_attention_limits limits;
	u32 window;
};
size_t kern_attention_plan_bytes(const struct kern_attention_limits *limits);
/* Queued after what writes query_start and context and before the first layer. */
struct kern_attention_plan_args {
	const struct kern_attention_plan *plan; /* host */
	const u32 *query_start;			/* [R + 1] */
	const u32 *context;			/* [R] */
	u32 rows;
};

/* What products of many tokens need of a device, in each process that uses it once. `workspace` is device memory for cuBLASLt (32 MiB do). Which of its
 * algorithms is fastest for a shape is measured by kern_cuda_tune and remembered in the file `cache_path` (NULL: not). One thread at a time. */
struct kern_cuda;
struct kern_cuda_config {
	void *workspace;
	size_t workspace_bytes;
	const char *cache_path;
};
/* ERR_NO_MEMORY, ERR_DEVICE. The caller owns `*out`. */
enum err kern_cuda_create(struct kern_cuda **out, const struct kern_cuda_config *config, struct err_msg *em);
void kern_cuda_destroy(struct kern_cuda **k);
/* Times cuBLASLt's proposals for the product `a` of a bf16 weight (and for as many tokens, rounded up to a power of
 * two), unless that is known, and remembers the best. Overwrites `out`, waits for the device, must not be captured.
 * ERR_UNSUPPORTED: there is none. ERR_IO: measured, but not written to the file. */
enum err kern_cuda_tune(struct kern_ctx *ctx, const struct kern_matmul_args *a);

/* The rows of the batch as a device keeps them between steps: a mirror of the worker's batch_state, but that sampled
 * tokens enter it here first. Arrays are per row and on the device; an absent row has known 0. Rows keep their place,
 * so the attention reads `blocks` as its block tables and every row is a row of the step, most of them with queries. */
struct kern_batch {
	u32 rows, token_stride, block_stride, block_size;
	u32 *known, *computed, *run, *prompt; /* [rows]; run: tokens of the step that apply_diff prepared */
	u32 *tokens;			      /* [rows][token_stride] */
	u32 *blocks;			      /* [rows][block_stride] */
	struct kern_sample_row *params;	      /* [rows]; logits and position are those of no step */
};

/* A step's diff in device memory, as words: a header of counts, then
 *	drop	KERN_DIFF_DROPS rows
 *	grow	KERN_DIFF_GROWS times {row, index in its table, block}
 *	run	KERN_DIFF_RUNS times {row, tokens}: exceptions of the rule that a row with one token to compute runs it
 *	add	KERN_DIFF_ADDS offsets of records, in words from the beginning
 * and anywhere behind that the records: KERN_ADD_* words, then its tokens, then its blocks. Floats lie as their bits.
 * Applied in the order drop, add, grow, run; what is in it was checked by who made it. */
enum kern_diff_word { KERN_DIFF_DROPS, KERN_DIFF_GROWS, KERN_DIFF_RUNS, KERN_DIFF_ADDS, KERN_DIFF_WORDS };
enum kern_add_word {
	KERN_ADD_ROW,
	KERN_ADD_TOKENS,
	KERN_ADD_COMPUTED,
	KERN_ADD_PROMPT,
	KERN_ADD_BLOCKS,
	KERN_ADD_TEMPERATURE,
	KERN_ADD_TOP_P,
	KERN_ADD_MIN_P,
	KERN_ADD_TOP_K,
	KERN_ADD_SEED_LOW,
	KERN_ADD_SEED_HIGH,
	KERN_ADD_WORDS,
};
struct kern_apply_diff_args {
	const struct kern_batch *batch; /* host */
	const u32 *diff;
};

/* The arrays that the ops of the step read. Tokens of a row are neighbours, rows ascend. Behind the step's tokens, up to `tokens`, stand
 * padding tokens with id 0, position 0 and slot -1; behind the rows that sample, up to `samples`, greedy ones of token 0. The numbers of both
 * are written to `counts` {tokens, samples}. */
struct kern_build_inputs_args {
	const struct kern_batch *batch; /* host */
	u32 *ids, *positions;		/* [tokens] */
	i64 *slots;			/* [tokens] */
	u32 *query_start;		/* [batch rows + 1] */
	u32 *context;			/* [batch rows] */
	u32 *sample_index;		/* [samples] the token whose logits it are */
	u32 *sample_rows;		/* [samples] its row of the batch */
	struct kern_sample_row *sample; /* [samples] for the op, with the logits at logits[sample][vocab] */
	float *logits;
	u32 *counts; /* [2] */
	u32 tokens, samples, vocab;
};

/* Ends the step: computed += run, and sampled[i] becomes known in sample_rows[i], for i < counts[1]. */
struct kern_commit_args {
	const struct kern_batch *batch; /* host */
	const u32 *sampled, *sample_rows, *counts;
};

/* Copies KV blocks src[i] of one pool to dst[i] of another in every layer: out to pinned host memory, or back in. Both pools have the same
 * blocks; the lists and `from`, `to` are device or pinned host memory. Queue it in a stream of its own beside the forward. */
struct kern_swap_args {
	const struct kern_kv *from, *to; /* [layer_count] */
	u32 layer_count;
	const u32 *src, *dst;
	u32 count;
};

/* Logits whose columns are divided among ranks: rank r computes [r * vocab / ranks, (r + 1) * vocab / ranks), each division rounded down.
 * logits[row][that column] = parts[r][row][column - r * vocab / ranks]. */
struct kern_join_logits_args {
	const float *parts; /* [ranks][rows][share_max]; share_max at least vocab / ranks rounded up */
	float *logits;	    /* [rows][vocab] */
	u32 ranks, rows, vocab, share_max;
};

/* What a device does besides the ops: X(slot), struct kern_<slot>_args. */
#define KERN_DEVICE_OPS(X) \
	X(attention_plan) X(apply_diff) X(build_inputs) X(commit) X(swap) X(join_logits)
struct kern_device_ops {
#define KERN_SLOT(op) enum err (*op)(struct kern_ctx *, const struct kern_##op##_args *);
	KERN_DEVICE_OPS(KERN_SLOT)
#undef KERN_SLOT
	/* The functions above, for those who open the shared object at run time. */
	size_t (*attention_plan_bytes)(const struct kern_attention_limits *limits);
	enum err (*create)(struct kern_cuda **out, const struct kern_cuda_config *config, struct err_msg *em);
	void (*destroy)(struct kern_cuda **k);
	enum err (*tune)(struct kern_ctx *ctx, const struct kern_matmul_args *a);
};
/* Fills every slot with its CUDA variant. In the shared object of the CUDA kernels, and only there. */
void kern_ops_init_cuda(struct kern_ops *ops, struct kern_device_ops *device);

/* Bytes of memory that W[n][k] takes, stored as `dtype` (float32, bfloat16 or a quantized type) for `caps`: with instruction sets a little more
 * than n * k elements, for whole panels. */
size_t kern_weight_bytes(u32 n, u32 k, enum kern_dtype dtype, u32 caps);
/* Makes `w` from plain rows: row i of W is at src + i * src_stride elements. src_dtype (bf16, f16, f32) may differ from `dtype`. `memory`
 * (kern_weight_bytes, 64-byte aligned) must outlive `w`; `src` is free afterwards. Parallel over `threads` (NULL: in the caller).
 * ERR_UNSUPPORTED: another type, named in `em`. */
enum err kern_weight_pack(struct kern_weight *w, const void *src, enum kern_dtype src_dtype,
			  size_t src_stride, u32 n, u32 k, enum kern_dtype dtype, void *memory,
			  struct kern_threads *threads, u32 caps, struct err_msg *em);
/* The same in pieces, for a matrix made of several tensors (fused qkv, gate_up): begin once, then the rows in any order, each
 * range by one caller at a time; rows never given are undefined. Quantized types: the values are rounded here. KERN_I8: to
 * amax / 127 of their group; KERN_I4_*: between the least and the greatest of their group (in steps, of its part), or a range near by where
 * that lessens the sum of squared errors. rows: whether all values are finite in w's type; they are written in any case. */
enum err kern_weight_begin(struct kern_weight *w, u32 n, u32 k, enum kern_dtype dtype, void *memory, u32 caps,
			   struct err_msg *em);
bool kern_weight_rows(struct kern_weight *w, u32 first, u32 rows, const void *src, enum kern_dtype src_dtype,
		      size_t src_stride, struct kern_threads *threads);
/* A weight whose `memory` holds it already, the same bytes as begin and rows made for the same arguments. */
void kern_weight_attach(struct kern_weight *w, u32 n, u32 k, enum kern_dtype dtype, const void *memory, u32 caps);
/* Rows that are quantized already (not in steps), stored as they are. All arrays belong to the caller, free afterwards; strides are in elements. */
struct kern_quantized_rows {
	const u8 *q; /* [rows][q_stride]: a value a byte, 0 .. 15 for KERN_I4_*, an i8 for KERN_I8 */
	const float *scale; /* [rows][group_stride]; KERN_I4_*: each exactly a half, or it is rounded to one */
	const float *zero;  /* as `scale`, in units of q; NULL: 8 for KERN_I4_*, none for KERN_I8 */
	size_t q_stride, group_stride;
};
/* Like kern_weight_rows, for a quantized `w`. Parallel over `threads`. */
void kern_weight_rows_quantized(struct kern_weight *w, u32 first, u32 rows,
				const struct kern_quantized_rows *src, struct kern_threads *threads);
void kern_weight_fini(struct kern_weight *w); /* `memory` stays the caller's */

/* A weight as device kernels read it, made in host memory of kern_weight_device_bytes (0: no such type on devices) and then uploaded; `data`
 * and `order` of the weight that an op is given point to the device's copies. bf16, int8, int4 and fp8 (e4m3, groups of 128 as int8), k a
 * multiple of 32, else ERR_UNSUPPORTED. */
size_t kern_weight_device_bytes(u32 n, u32 k, enum kern_dtype dtype);
/* From one that is packed for the CPU. Parallel over `threads` (NULL: in the caller). ERR_NO_MEMORY. */
enum err kern_weight_to_device(struct kern_weight *out, const struct kern_weight *w, void *memory,
			       struct kern_threads *threads, struct err_msg *em);
/* From quantized rows. begin, then the rows, each once. fp8: q has the bytes of e4m3, no zeros. */
enum err kern_weight_device_begin(struct kern_weight *w, u32 n, u32 k, enum kern_dtype dtype, void *memory,
				  struct err_msg *em);
void kern_weight_device_rows(struct kern_weight *w, u32 first, u32 rows, const struct kern_quantized_rows *src);

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

/* float <-> bf16 (round to nearest even), f16 -> float; `src` may begin at any byte, `dst` at a multiple of its type's */
void kern_convert(void *dst, enum kern_dtype dst_dtype, const void *src, enum kern_dtype src_dtype, size_t count);
/* Whether `count` values of `type` (bf16, f16, f32; beginning at any byte) are finite and stay so in `as`: in bfloat16 floats
 * next to 2^128 do not, and KERN_I4_*, with scales in float16 or no larger, takes values below 65520. As quick as reading them. */
bool kern_all_finite(const void *src, enum kern_dtype type, enum kern_dtype as, size_t count);

#ifdef __cplusplus
}
#endif
#endif
