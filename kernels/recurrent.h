/* Ops of layers that keep a state of each sequence, of one size however long it is, instead of keys and values. A part of the op table
 * (kernels.h), whose rules hold here, too. */
#ifndef TERCET_KERNELS_RECURRENT_H
#define TERCET_KERNELS_RECURRENT_H

#include "common/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What one layer keeps of every sequence, and whose turn it is in a step: row r has the tokens [query_start[r], query_start[r + 1]) and the state at
 * data + slots[r] * stride, which is what its last call has left. With as many tokens as `context` says it begins here: its state is taken as
 * zeros, whatever is there. Rows without tokens leave theirs alone; no two rows have one slot. */
struct kern_state {
	float *data;
	size_t stride;		/* of slots, in floats */
	const u32 *query_start; /* [rows + 1] */
	const u32 *context;	/* [rows] tokens of the sequence after the step */
	const u32 *slots;	/* [rows]; devices, NULL: row r has slot r */
	u32 rows;
	/* Devices, or NULL: when save_at[r] of row r's tokens are through, its state then goes to slot save_slots[r] as well; save_at[r] 0: it does not. */
	const u32 *save_at, *save_slots;
};

enum { KERN_CONV_TAPS_MAX = 8 };

/* A causal convolution of every channel by itself over a row's tokens: out[t][c] = f(sum_j weight[j][c] * u[t - (taps - 1) + j][c] + bias[c]) *
 * behind[t][c], where u is x, or with `before` x * before, and f is SiLU or nothing; j ascends. What lies in front of the row's first token is
 * the state, [taps - 1][channels], the oldest first, which becomes the last that many u. `out` may be x, before or behind: a token's are read
 * before it is written. A row's bits depend on that row alone, not on how its tokens are spread over calls. */
struct kern_conv_args {
	float *out;			  /* [T][stride], as all of them */
	u16 *out_bf16;			  /* devices: [T][out_stride], instead of `out`; or NULL */
	const float *x, *before, *behind; /* the last two may be NULL */
	const float *weight;		  /* [taps][channels] */
	const float *bias;		  /* [channels] or NULL */
	struct kern_state state;
	u32 channels, stride, out_stride;
	u32 taps; /* 2 to KERN_CONV_TAPS_MAX */
	bool silu;
};

/* A linear recurrence over a row's tokens, for every head on a state S [key_dim][value_dim] of its own; key head h * key_heads / heads gives its k and
 * q. S begins as what the slot has at h * key_dim * value_dim. With d = softplus(decay[t][h] + decay_bias[h]) and w = exp(-exp(rate_log[h]) * d):
 *   KERN_DELTA, the gated delta rule (Yang, Kautz, Hatamizadeh 2024): k and q are divided by sqrt(their sum of squares + 1e-6), q by sqrt(key_dim),
 * too, b = beta_scale * sigmoid(beta[t][h]); S = w S, then S[i][j] += k[i] * b * (v[j] - sum_i S[i][j] k[i]), out[t][h][j] = sum_i S[i][j] q[i].
 *   KERN_KDA, Kimi delta attention (Kimi Team 2025): the same, but every value of a key fades by itself: w[i] is made of decay[t][h * key_dim + i] and
 * decay_bias[h * key_dim + i], and S[i][j] = w[i] S[i][j].
 *   KERN_SCAN, the one of Mamba 2 (Dao, Gu 2024): d is kept within [step_min, step_max] first; S[i][j] = w S[i][j] + k[i] * d * v[j], out[t][h][j] =
 * sum_i S[i][j] q[i] + skip[h] * v[j].
 * `out` may be v. Sums over i are in float (the reference's in double), in an order of the variant's own, but a row's bits depend on that row alone, not
 * on how its tokens are spread over calls. S is rounded to float with every token. */
enum { KERN_RECURRENT_DIM_MAX = 512 }; /* of key_dim */
#define KERN_RATE_LOG_MAX 88.0f	       /* of rate_log: its exponential is a float */
enum kern_recurrence { KERN_DELTA, KERN_SCAN, KERN_KDA }; /* devices: not the last */
struct kern_recurrent_args {
	float *out;			  /* [T][stride], as all of them: heads * value_dim values of a token */
	const float *q, *k;		  /* key_heads * key_dim */
	const float *v;			  /* heads * value_dim */
	const float *decay, *beta;	  /* heads; decay of KERN_KDA heads * key_dim; no beta of KERN_SCAN */
	const float *decay_bias, *rate_log; /* [heads]; the former of KERN_KDA [heads * key_dim] */
	const float *skip;		  /* [heads], of KERN_SCAN */
	struct kern_state state;
	enum kern_recurrence kind;
	u32 heads, key_heads, key_dim, value_dim, stride;
	float beta_scale;	  /* 0: 1 */
	float step_min, step_max; /* step_max 0: no limits */
};

/* The recurrence of Mamba's first generation (Gu, Dao 2023): over a row's tokens, for every channel by itself on S [state_dim], which begins as what the
 * slot has at [state_dim][channels]. With d = softplus(step[t][c] + step_bias[c]):
 *   S[i][c] = exp(-rate[i][c] * d) * S[i][c] + k[t][i] * d * x[t][c],  out[t][c] = sum_i S[i][c] * q[t][i] + skip[c] * x[t][c].
 * `out` may be x. Sums over i are in float (the reference's in double), i rising, and S is rounded to float with every token: a row's bits depend on that
 * row alone, not on how its tokens are spread over calls. */
enum { KERN_SELECTIVE_DIM_MAX = 256 }; /* of state_dim */
struct kern_selective_scan_args {
	float *out;	   /* [T][stride], as x: channels values of a token */
	const float *x;
	const float *step; /* [T][step_stride], of channels values */
	const float *k, *q; /* [T][key_stride], of state_dim values */
	const float *rate; /* [state_dim][channels], 0 at least */
	const float *step_bias, *skip; /* [channels] */
	struct kern_state state;
	u32 channels, state_dim, stride, step_stride, key_stride;
};

/* What a block weighs its values by before its last product, in place, in groups of `width` that each have a norm of their own where there is one:
 * x = norm(x) * f(gate), or with `gate_first` x = norm(x * f(gate)), f SiLU or, with `sigmoid`, that; norm(x) = x / sqrt(mean of the group's x^2 +
 * eps) * weight, or x, where `weight` is NULL; then `gate` may be x. */
struct kern_gate_args {
	float *x;	     /* [T][stride], as `gate`: groups * width values of a token */
	/* Devices: what is made of x goes there, [T][out_stride]; without x it is read there, too. NULL: in place. */
	u16 *out_bf16;
	const float *gate;
	const float *weight; /* [width], with `weights_apart` [groups * width], or NULL */
	float eps;
	u32 tokens, groups, width, stride, out_stride;
	bool sigmoid, gate_first, weights_apart;
};

#ifdef __cplusplus
}
#endif
#endif
