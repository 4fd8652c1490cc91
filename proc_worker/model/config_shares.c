/* What one rank of a tensor-parallel group holds of a model, and whether it can be divided like that. Runs in the worker at start. */
#include <stdio.h>

#include "proc_worker/model/config_priv.h"

static bool has_dense_layers(const struct model_config *c)
{
	for (u32 i = 0; i < c->layers; i++)
		if (!(c->layer_flags[i] & (LAYER_EXPERTS | LAYER_NO_MLP)))
			return true;
	return !c->experts || c->arch->global_heads; /* there they are beside the MLP */
}

/* With fewer KV heads than ranks several ranks hold the same one. */
static enum err check_kv_heads(u32 kv_heads, u32 ranks, const char *whose, struct err_msg *em)
{
	if (kv_heads % ranks == 0 || ranks % kv_heads == 0)
		return ERR_OK;
	return err_set(em, ERR_INVALID, "--tensor-parallel-size %u: neither a divisor nor a multiple of the model's %u KV heads%s", ranks,
		       kv_heads, whose);
}

static u32 share_kv_heads(u32 kv_heads, u32 rank, u32 ranks, u32 *first)
{
	*first = (u32)((u64)rank * kv_heads / ranks);
	return kv_heads >= ranks ? kv_heads / ranks : 1;
}

u32 model_shard_heads(const struct model_shard *s, const struct model_config *c, u32 layer)
{
	return c->heads_differ ? model_heads(c, layer) / s->ranks : s->heads;
}

u32 model_shard_kv_heads(const struct model_shard *s, const struct model_config *c, u32 layer)
{
	u32 first;

	if (c->arch->by_layer)
		return share_kv_heads(model_kv_heads(c, layer), s->rank, s->ranks, &first);
	return c->layer_flags[layer] & LAYER_GLOBAL ? s->global_kv_heads : s->kv_heads;
}

u32 model_shard_kv_first(const struct model_shard *s, const struct model_config *c, u32 layer)
{
	u32 first;

	share_kv_heads(model_kv_heads(c, layer), s->rank, s->ranks, &first);
	return first;
}

/* Where each has its own. */
static enum err check_layers(const struct model_config *c, u32 ranks, struct err_msg *em)
{
	char whose[32];
	enum err e = ERR_OK;

	for (u32 i = 0; c->heads_differ && i < c->layers; i++)
		if (model_heads(c, i) % ranks)
			return err_set(em, ERR_INVALID, "--tensor-parallel-size %u: the %u attention heads of layer %u cannot be divided by it", ranks, model_heads(c, i), i);
	for (u32 i = 0; !e && c->arch->by_layer && i < c->layers; i++) {
		snprintf(whose, sizeof(whose), " (of layer %u)", i);
		e = model_attends(c, i) ? check_kv_heads(model_kv_heads(c, i), ranks, whose, em) : ERR_OK;
		if (!e && model_intermediate(c, i) % ranks)
			e = err_set(em, ERR_INVALID, "--tensor-parallel-size %u: the intermediate size %u%s cannot be divided by it", ranks, model_intermediate(c, i),
				    whose);
	}
	return e;
}

enum err model_shard_init(struct model_shard *s, const struct model_config *c, u32 rank, u32 ranks,
			  struct err_msg *em)
{
	const bool attends = !c->recurrent.kind || !c->arch->attention_free;
	u32 first;

	if (attends && c->heads % ranks)
		return err_set(
			em, ERR_INVALID,
			"--tensor-parallel-size %u: the model's %u attention heads cannot be divided by it",
			ranks, c->heads);
	if (c->expert_intermediate % ranks)
		return err_set(em, ERR_INVALID,
			       "--tensor-parallel-size %u: the experts' intermediate size %u cannot be "
			       "divided by it",
			       ranks, c->expert_intermediate);
	if (c->shared_intermediate % ranks)
		return err_set(em, ERR_INVALID,
			       "--tensor-parallel-size %u: the shared expert's intermediate size %u cannot be divided by it",
			       ranks, c->shared_intermediate);
	if (has_dense_layers(c) && c->intermediate % ranks)
		return err_set(
			em, ERR_INVALID,
			"--tensor-parallel-size %u: the model's %s %u cannot be divided by it", ranks, arch_field_in_file(c->arch, "intermediate_size"),
			c->intermediate);
	enum err e = check_kv_heads(c->kv_heads, ranks, "", em);
	if (!e && c->arch->differential && c->kv_heads / 4 % ranks)
		e = err_set(em, ERR_INVALID, "--tensor-parallel-size %u: the model's %u pairs of KV heads cannot be divided by it", ranks, c->kv_heads / 4);
	if (!e && c->arch->head_experts && c->kv_heads % ranks)
		e = err_set(em, ERR_INVALID, "--tensor-parallel-size %u: the model's %u KV heads cannot be divided by it", ranks, c->kv_heads);
	if (!e && c->global_kv_heads)
		e = check_kv_heads(c->global_kv_heads, ranks, " (of layers without a window)", em);
	if (!e)
		e = check_layers(c, ranks, em);
	if (e)
		return e;
	if (ranks > c->vocab_size)
		return err_set(em, ERR_INVALID,
			       "--tensor-parallel-size %u: the vocabulary has only %u tokens", ranks,
			       c->vocab_size);
	*s = (struct model_shard){.rank = rank, .ranks = ranks};
	if (c->recurrent.kind && (e = config_share_recurrent(s, c, em)))
		return e;
	s->heads = attends ? c->heads / ranks : c->heads;
	s->kv_heads = share_kv_heads(c->kv_heads, rank, ranks, &first);
	if (c->global_kv_heads)
		s->global_kv_heads = share_kv_heads(c->global_kv_heads, rank, ranks, &s->global_kv_first);
	s->intermediate = has_dense_layers(c) ? c->intermediate / ranks : 0;
	s->wide_intermediate = c->wide_intermediate / ranks; /* twice the other */
	s->expert_intermediate = c->expert_intermediate / ranks;
	s->shared_intermediate = c->shared_intermediate / ranks;
	s->vocab_first = (u32)((u64)rank * c->vocab_size / ranks);
	s->vocab_rows = (u32)((rank + 1ull) * c->vocab_size / ranks) - s->vocab_first;
	return ERR_OK;
}
