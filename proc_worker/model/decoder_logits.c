/* The logits of some tokens of a forward pass: the final norm, the product with the vocabulary, and their cap. Runs in the worker, in
 * every step whose tokens are to be sampled. */
#include <string.h>

#include "common/assert.h"
#include "proc_worker/model/altup.h"
#include "proc_worker/model/decoder_priv.h"
#include "proc_worker/model/hyper.h"

/* Vocabulary shares lie side by side in a row: rank 0 puts them together. */
static enum err gather_logits(struct decoder *d, u32 first, u32 count, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	size_t vocab = c->model->vocab_size, ranks = c->shard->ranks;
	const void *parts[COLLECTIVES_RANKS_MAX];

	size_t own = (c->shard->rank + 1) * vocab / ranks - c->shard->rank * vocab / ranks;
	enum err e = collectives_gather(c->collectives, count * own * sizeof(float), parts, em);
	if (e || c->shard->rank != 0)
		return e;
	for (u32 r = 0; r < ranks; r++) {
		size_t begin = r * vocab / ranks, width = (r + 1) * vocab / ranks - begin;
		for (u32 i = 0; i < count; i++)
			memcpy(d->logits + (first + i) * vocab + begin, (const float *)parts[r] + i * width,
			       width * sizeof(float));
	}
	return ERR_OK;
}

static enum err shared_logits(struct decoder *d, u32 count, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	u32 ranks = c->shard->ranks;
	size_t row_bytes = (c->model->vocab_size / ranks + 1) * sizeof(float);
	u32 step = (u32)(decoder_exchange_bytes(c->model, ranks, c->tokens_max) / row_bytes);
	enum err e = ERR_OK;

	for (u32 first = 0; !e && first < count; first += step) {
		u32 n = count - first < step ? count - first : step;
		e = decoder_product(d, collectives_buffer(c->collectives),
				    d->picked_normed + (size_t)first * c->model->hidden, &c->weights->lm_head,
				    c->weights->lm_head_bias, 0, n, em);
		if (!e)
			e = gather_logits(d, first, n, em);
	}
	return e;
}

/* Logits are whole on rank 0, and only there. */
static enum err cap_logits(struct decoder *d, u32 count, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	struct kern_soft_cap_args a = {.x = d->logits,
				       .cap = c->model->logits_soft_cap,
				       .rows = count,
				       .width = c->model->vocab_size};

	if (c->shard->rank != 0 || a.cap == 0)
		return ERR_OK;
	return decoder_failed(c->ops->soft_cap(c->ctx, &a), "soft_cap", em);
}

/* Where what the last layer left of a token is. */
static u32 place_of(const struct decoder *d, u32 token)
{
	u32 low = 0, high = d->rows;

	if (!d->narrowed)
		return token;
	while (high - low > 1) {
		u32 middle = low + (high - low) / 2;
		if (d->last[middle] <= token)
			low = middle;
		else
			high = middle;
	}
	ASSERT(d->last[low] == token);
	return low;
}

enum err decoder_logits(struct decoder *d, const u32 *tokens, u32 count, float **out, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	size_t hidden = c->model->hidden;

	*out = c->shard->rank == 0 ? d->logits : NULL;
	ASSERT(count <= c->logit_rows_max && count <= d->tokens);
	if (count == 0)
		return ERR_OK;
	for (u32 i = 0; i < count; i++) {
		u32 at = place_of(d, tokens[i]);
		hyper_pick(d, i, at);
		if (d->altup.streams)
			altup_pick(d, i, at);
		else
			memcpy(d->picked + i * hidden, d->x + at * hidden, hidden * sizeof(float));
		if (d->pending)
			memcpy(d->picked_delta + i * hidden, d->delta + at * hidden, hidden * sizeof(float));
	}
	enum err e = d->altup.streams ? altup_collapse(d, count, em) : hyper_collapse(d, count, em);
	if (!e)
		e = decoder_norm(d, d->picked_normed, d->picked, d->pending ? d->picked_delta : NULL, c->weights->final_norm,
				 c->weights->final_norm_bias, count, em);
	if (!e)
		e = c->collectives
			    ? shared_logits(d, count, em)
			    : decoder_product(d, d->logits, d->picked_normed, &c->weights->lm_head, c->weights->lm_head_bias, 0,
					      count, em);
	if (!e)
		e = cap_logits(d, count, em);
	if (e)
		err_prefix(em, "logits");
	return e;
}
