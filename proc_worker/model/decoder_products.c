/* What the blocks of a layer are made of: norms of the stream, products, what adapters add to them, and what is left beside the stream. Runs in
 * the worker, in every step. */
#include "proc_worker/model/decoder_priv.h"

enum { NORM_TOKENS = 16 /* for a thread at least, where products norm by themselves: they share them out by tiles of rows */ };

enum err decoder_failed(enum err e, const char *op, struct err_msg *em)
{
	return e ? err_set(em, e, "%s: %s", op, err_text(e)) : ERR_OK;
}

enum err decoder_norm(struct decoder *d, float *out, float *x, const float *add, const float *weight,
		      const float *bias, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	struct kern_layernorm_args layer = {.out = out,
					    .x = x,
					    .add = add,
					    .weight = weight,
					    .bias = bias,
					    .eps = c->model->norm_eps,
					    .tokens = tokens,
					    .hidden = c->model->hidden};
	struct kern_rmsnorm_args a = {.out = out,
				      .x = x,
				      .add = add,
				      .weight = weight,
				      .scale = add ? d->scale : NULL,
				      .eps = out == d->picked_normed && c->model->final_norm_eps > 0 ? c->model->final_norm_eps : c->model->norm_eps,
				      .tokens = tokens,
				      .hidden = c->model->hidden};

	if (add && x == d->x)
		d->scale = NULL;
	return c->model->arch->layer_norm ? decoder_failed(c->ops->layernorm(c->ctx, &layer), "layernorm", em)
					  : decoder_failed(c->ops->rmsnorm(c->ctx, &a), "rmsnorm", em);
}

/* What blocks have left beside the stream, if anything; whoever asks adds it. */
const float *decoder_take_delta(struct decoder *d)
{
	const float *delta = d->pending ? d->delta : NULL;

	d->pending = false;
	return delta;
}

/* What a block reads, after adding `add` to the stream. */
enum err decoder_block_input(struct decoder *d, const float *add, const float *weight, const float *bias, u32 tokens,
			    struct err_msg *em)
{
	d->input = weight ? d->normed : d->x;
	d->unnormed = NULL;
	return weight || add ? decoder_norm(d, weight ? d->normed : NULL, d->x, add, weight, bias, tokens, em) : ERR_OK;
}

/* Whether a product may norm what it reads by itself: it is of so many tokens. */
bool decoder_product_norms(const struct decoder *d, const float *weight, const float *bias, u32 tokens)
{
	const u32 threads = kern_threads_count(d->config.ctx->threads);

	return weight && !bias && !d->config.model->arch->normed_residual && tokens > KERN_CPU_UNFUSED_TOKENS && tokens >= NORM_TOKENS * threads && !d->config.model->arch->layer_norm &&
	       !d->lora.active_count;
}

/* The same for a block whose first product may do so. */
enum err decoder_product_input(struct decoder *d, const float *weight, const float *bias, u32 tokens, struct err_msg *em)
{
	const float *add = decoder_take_delta(d);

	if (add || !decoder_product_norms(d, weight, bias, tokens))
		return decoder_block_input(d, add, weight, bias, tokens, em);
	d->input = d->normed;
	d->unnormed = weight;
	return ERR_OK;
}

/* What product_input has put off, of tokens from `first` on. */
enum err decoder_norm_input(struct decoder *d, u32 first, u32 tokens, struct err_msg *em)
{
	const size_t at = (size_t)first * d->config.model->hidden;
	const float *weight = d->unnormed;

	d->unnormed = NULL;
	return weight ? decoder_norm(d, d->normed + at, d->x + at, NULL, weight, NULL, tokens - first, em) : ERR_OK;
}

/* Where a block's last product goes: straight into the stream, unless ranks, a norm or another block come in between, the block reads
 * the stream itself, or a bias is added. Else beside it. */
float *decoder_block_output(struct decoder *d, const float *post_norm, const float *bias)
{
	d->pending = d->config.collectives || post_norm || bias || d->config.model->parallel || d->config.model->arch->normed_residual ||
		     d->config.model->arch->hyper || d->config.model->arch->shared_blocks || d->input == d->x;
	return d->pending ? d->delta : d->x;
}

void decoder_keep_input(struct decoder *d, enum residual_kind kind, u32 tokens)
{
	const size_t count = (size_t)tokens * d->config.model->hidden;
	const float kept = d->config.model->residuals[kind].kept;

	for (size_t i = 0; i < count; i++)
		d->x[i] = kept * d->normed[i];
}

/* Of a layer's MLP, or of its experts. */
static const struct kern_weight *first_of_mlp(const struct decoder *d, u32 index)
{
	const struct layer_weights *l = &d->config.weights->layers[index];

	return d->config.model->layer_flags[index] & LAYER_EXPERTS ? &l->router : l->gate_up.n ? &l->gate_up : &l->down;
}

/* The first matrix of layer `index`; behind the last one come the logits. */
static const struct kern_weight *first_of_layer(const struct decoder *d, u32 index)
{
	const struct model_weights *weights = d->config.weights;

	for (; index < weights->layer_count; index++) {
		const struct layer_weights *l = &weights->layers[index];
		const struct kern_weight *first = l->qkv.n ? &l->qkv : l->attn_out.n ? &l->attn_out : first_of_mlp(d, index);
		if (first->n)
			return first;
	}
	return &weights->lm_head;
}

/* The matrix that a step reads after `w` of layer `index`; NULL where it depends on more than the layer. After the logits comes the next step. */
static const struct kern_weight *matrix_after(const struct decoder *d, u32 index, const struct kern_weight *w)
{
	const struct model_weights *weights = d->config.weights;
	const struct layer_weights *l = &weights->layers[index];

	if (w == &l->qkv)
		return l->q_b.n ? &l->q_b : l->x_proj.n ? &l->x_proj : l->decay_b.n ? &l->decay_b : l->state_out.n ? &l->state_out : &l->attn_out;
	if (w == &l->state_out)
		return &l->attn_out;
	if (w == &l->attn_out && first_of_mlp(d, index)->n)
		return first_of_mlp(d, index);
	if (w == &l->gate_up)
		return &l->down;
	if (w == &weights->lm_head)
		return first_of_layer(d, 0);
	return first_of_layer(d, index + 1);
}

struct kern_matmul_args decoder_product_args(const struct decoder *d, float *out, bool accumulate, const float *x,
					    const struct kern_weight *w, const float *bias, u32 index, u32 tokens)
{
	return (struct kern_matmul_args){.out = out,
					 .x = x,
					 .w = w,
					 .bias = bias,
					 .tokens = tokens,
					 .x_stride = w->k,
					 .out_stride = w->n,
					 .accumulate = accumulate,
					 .next = matrix_after(d, index, w)};
}

/* The last product of attention, or of what a layer has instead. */
struct kern_matmul_args decoder_attention_args(const struct decoder *d, float *out, bool accumulate, u32 index, u32 tokens)
{
	const struct kern_weight *w = &d->config.weights->layers[index].attn_out;
	const bool latent = decoder_is_latent(d, index) || d->config.model->arch->differential;
	const float *x = latent ? d->values : d->qkv + decoder_mixed_at(d, index);
	struct kern_matmul_args a = decoder_product_args(d, out, accumulate, x, w, NULL, index, tokens);

	if (!latent)
		a.x_stride = decoder_qkv_stride(d, index);
	return a;
}

enum err decoder_product(struct decoder *d, float *out, const float *x, const struct kern_weight *w,
			 const float *bias, u32 index, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	struct kern_matmul_args a = decoder_product_args(d, out, false, x, w, bias, index, tokens);

	return decoder_failed(c->ops->matmul(c->ctx, &a), "matmul", em);
}

/* What adapters add to a product that was just computed, of tokens from `first` on. */
enum err decoder_adapt(struct decoder *d, const struct kern_matmul_args *a, enum lora_product product, u32 index, u32 first, struct err_msg *em)
{
	struct lora_call call = {index, product, a->out, a->x, first, a->tokens, d->narrowed};

	return d->lora.active_count ? lora_step_add(&d->lora, &call, a->x_stride, a->out_stride, em) : ERR_OK;
}
