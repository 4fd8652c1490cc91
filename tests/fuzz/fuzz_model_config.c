/* config.json of a model. What is accepted must be divisible among one rank, and make sense as a whole. */
#include <stdlib.h>

#include "fuzz.h"
#include "kernels/recurrent.h"
#include "proc_worker/model/config.h"

static void check(const struct model_config *c)
{
	u32 flags = 0;

	for (u32 i = 0; i < c->layers; i++)
		flags |= c->layer_flags[i];
	if (flags & LAYER_WINDOW && !c->window)
		abort();
	if (flags & LAYER_EXPERTS &&
	    (!c->experts || c->experts_per_token > c->experts || !c->expert_intermediate))
		abort();
	if (c->arch->altup && (c->altup.streams < 2 || c->altup.streams > KERN_STREAMS_MAX || c->altup.active >= c->altup.streams || !c->altup.laurel_rank ||
			       !c->input_width))
		abort();
	if (c->arch->hyper && (c->hyper.streams < 1 || c->hyper.streams > KERN_STREAMS_MAX || !(c->hyper.magnitude > 0) || !(c->hyper.eps > 0)))
		abort();
	for (u32 i = 0; i < c->layers; i++)
		if ((c->mlp_limits[i].up > 0 || c->expert_limits[i].up > 0) && !c->limited)
			abort();
	const struct recurrent_config *r = &c->recurrent;
	if (!(flags & LAYER_RECURRENT) != (r->kind == RECURRENT_NONE))
		abort();
	if (r->kind && (r->taps < 2 || r->taps > KERN_CONV_TAPS_MAX || !(r->gate_eps > 0)))
		abort();
	if (r->kind > RECURRENT_CONV && (!r->key_heads || r->heads % r->key_heads || !r->key_dim || r->key_dim > KERN_RECURRENT_DIM_MAX || !r->value_dim))
		abort();
	for (u32 i = 0; i < c->layers; i++)
		if (!(c->layer_flags[i] & LAYER_NO_MIXER) && model_kv_layer(c, i) >= c->own_kv_layers)
			abort();
	if (c->rope.dim < 2 || c->rope.dim % 2 || c->rope.dim > (flags & LAYER_GLOBAL ? c->global_head_dim : c->head_dim) ||
	    c->rope.dim / 2 > ROPE_HALF_MAX)
		abort();
	if ((c->rope.kind == ROPE_DYNAMIC || c->rope.kind == ROPE_LONGROPE || c->rope.kind == ROPE_YARN) &&
	    !c->rope.original_context)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct model_config c;
	struct model_shard s;
	struct err_msg em;

	if (model_config_parse(&c, (const char *)data, bytes, &em) != ERR_OK)
		return 0;
	check(&c);
	if (model_shard_init(&s, &c, 0, 1, &em) != ERR_OK || s.vocab_rows != c.vocab_size)
		abort();
	return 0;
}
