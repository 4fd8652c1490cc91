/* Which of cuBLASLt's algorithms is fastest for the products of this model: measured at start where there is
 * a place to remember it. Else the library's own guess stands: timings differ from start to start, and a process that
 * took another's place would compute with other algorithms, and other last bits, than the one before. Runs in the
 * worker at start, waits for the device. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/log.h"
#include "proc_worker/gpu/gpu_priv.h"

static const char FILE_NAME[] = "products.cublaslt";

const char *gpu_tune_path(struct gpu *g)
{
	const char *dir = g->config.weights->cache_dir;

	if (!dir || !*dir ||
	    (size_t)snprintf(g->tune_path, sizeof(g->tune_path), "%s/%s", dir, FILE_NAME) >=
		    sizeof(g->tune_path))
		return NULL;
	if (mkdir(dir, 0777) == 0 || errno == EEXIST)
		return g->tune_path;
	LOG_WARN("PRODUCTS_NOT_KEPT", "dir=\"%s\" error=\"%s\"", dir, strerror(errno));
	return NULL;
}

/* One matrix, for numbers of tokens from the power of two `tokens_least` on. ERR_IO ends it: nothing is kept. */
static enum err tune_sizes(struct gpu *g, const struct kern_weight *w, const u16 *x, void *out, u32 out_stride,
			   enum kern_dtype out_dtype, u32 tokens_least, u32 tokens_max)
{
	enum err e = ERR_OK;

	if (w->n == 0 || w->dtype != KERN_BF16)
		return ERR_OK;
	for (u32 tokens = tokens_least; !e && tokens / 2 < tokens_max; tokens *= 2) {
		struct kern_matmul_args a = {.out = out,
					     .x_bf16 = x,
					     .w = w,
					     .tokens = tokens < tokens_max ? tokens : tokens_max,
					     .x_stride = w->k,
					     .out_stride = out_stride,
					     .dtype = KERN_BF16,
					     .out_dtype = out_dtype};
		e = g->device_ops.tune(&g->ctx, &a);
		e = e == ERR_UNSUPPORTED ? ERR_OK : e; /* the product will do without, too */
	}
	return e;
}

static enum err tune(struct gpu *g, const struct kern_weight *w, const u16 *x, void *out, enum kern_dtype out_dtype,
		     u32 tokens_max)
{
	return tune_sizes(g, w, x, out, w->n, out_dtype, 1, tokens_max);
}

/* A product that ends a block: where it goes depends on the number of tokens. */
static enum err tune_end(struct gpu *g, const struct kern_weight *w, const u16 *x, const float *post_norm,
			 u32 tokens_max)
{
	u32 few = tokens_max < KERN_FUSED_TOKENS ? tokens_max : (u32)KERN_FUSED_TOKENS;
	enum kern_dtype short_type = gpu_ends_in_stream(g, true, post_norm) ? KERN_F32 : KERN_BF16,
			long_type = gpu_ends_in_stream(g, false, post_norm) ? KERN_F32 : KERN_BF16;

	enum err e = tune_sizes(g, w, x, g->arena.x, w->n, short_type, 1, few);
	return e ? e : tune_sizes(g, w, x, g->arena.x, w->n, long_type, 2 * KERN_FUSED_TOKENS, tokens_max);
}

static enum err tune_layer(struct gpu *g, u32 layer)
{
	const struct layer_weights *w = &g->weights.layers[layer];
	const struct gpu_arena *a = &g->arena;
	u32 tokens = g->config.limits.tokens_max,
	    mlp = tokens < GPU_MLP_TOKENS ? tokens : (u32)GPU_MLP_TOKENS;
	const bool latent = gpu_is_latent(g);
	enum err e = tune_sizes(g, &w->qkv, a->normed, latent ? a->low : a->qkv, latent ? w->qkv.n : gpu_qkv_stride(g, layer), KERN_F32, 1, tokens);

	if (!e)
		e = tune_sizes(g, &w->q_b, a->low_rounded, a->queries, w->q_b.n, KERN_F32, 1, tokens);
	if (!e)
		e = tune_end(g, &w->attn_out, latent ? a->values : a->attended, w->attn_post_norm, tokens);
	if (!e && w->router.n && a->shared) { /* of the expert of all tokens */
		e = tune(g, &w->gate_up, a->normed, a->shared_gate_up, KERN_BF16, g->moe_tokens);
		if (!e)
			e = tune(g, &w->down, a->shared_activated, a->shared, KERN_BF16, g->moe_tokens);
	} else {
		if (!e)
			e = tune(g, &w->gate_up, a->normed, a->gate_up, KERN_BF16, mlp);
		if (!e)
			e = tune_end(g, &w->down, a->activated, w->mlp_post_norm, mlp);
	}
	if (!e)
		e = tune_sizes(g, &w->input_gate, a->normed, a->input_gate, 2 * w->input_gate.n, KERN_BF16, 1, tokens);
	if (!e)
		e = tune(g, &w->input_out, a->input_activated, a->delta, KERN_BF16, tokens);
	return e ? e : tune(g, &w->router, a->normed, a->router_logits, KERN_F32, g->moe_tokens);
}

enum err gpu_tune(struct gpu *g, struct err_msg *em)
{
	void *logits = g->config.comm ? g->arena.logit_part : g->arena.logits;
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < g->weights.layer_count; i++)
		e = tune_layer(g, i);
	if (!e)
		e = tune(g, &g->weights.inputs_projection, g->arena.normed, g->arena.inputs_projected, KERN_BF16, g->config.limits.tokens_max);
	if (!e)
		e = tune(g, &g->weights.lm_head, g->arena.picked_normed, logits, KERN_F32, g->samples_max);
	if (e != ERR_IO)
		return gpu_op(e, "choosing matrix products", em);
	LOG_WARN("PRODUCTS_NOT_KEPT", "path=\"%s\"", g->tune_path);
	return ERR_OK;
}
