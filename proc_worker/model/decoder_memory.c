/* The memory of a forward pass: one mapping, as large as the largest step needs, laid out anew for the tokens of each: arrays of
 * few tokens then lie in a page or two of 2 MiB, where those of the largest step would be in one of their own each. */
#include <sys/mman.h>

#include "common/assert.h"
#include "common/region.h"
#include "proc_worker/model/alibi.h"
#include "proc_worker/model/altup.h"
#include "proc_worker/model/decoder_priv.h"
#include "proc_worker/model/head_experts.h"
#include "proc_worker/model/hyper.h"
#include "proc_worker/model/indexer.h"
#include "proc_worker/model/latent.h"
#include "proc_worker/model/lru.h"
#include "proc_worker/model/selective.h"
#include "proc_worker/model/shared_block.h"

enum { TOLD = 2 /* floats that ranks tell each other of a token, whatever it is wide: squares of q and k, moments of a gate */ };

static float *carve(char *base, size_t *offset, size_t count)
{
	return region_carve(base, offset, count * sizeof(float));
}

static size_t most(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Of a token's queries, keys and values, in the layer that has most. */
static size_t widest_qkv(const struct model_config *m, const struct model_shard *s)
{
	const size_t heads = m->output_gate && !m->arch->latent ? 2 * s->heads : s->heads;
	const size_t attended = most((heads + 2 * s->kv_heads) * m->head_dim, (heads + 2 * s->global_kv_heads) * m->global_head_dim);

	return most(attended, recurrent_layout(m, s).stride);
}

static size_t lay_out(struct decoder *d, char *base, size_t tokens)
{
	const struct decoder_config *c = &d->config;
	const struct model_shard *s = c->shard;
	size_t rows = least(c->logit_rows_max, tokens), hidden = c->model->hidden; /* each row is behind a token that runs */
	const bool latent = c->model->arch->latent, beside = c->model->arch->global_heads && c->model->experts > 0;
	const size_t selected = selective_low_width(c->model), gates = lru_width(c->model, s);
	size_t head_width = latent ? latent_head_width(c->model) : 0;
	const size_t inputs = (size_t)c->model->layers * c->model->input_width, widest = most(s->intermediate, s->wide_intermediate);
	size_t offset = 0, mlp, experts, projected, gate;

	d->single_start = (u32 *)(void *)carve(base, &offset, c->tokens_max + 1); /* the same in all steps, */
	d->slopes = c->model->alibi.kind ? carve(base, &offset, s->heads) : NULL; /* and these */
	d->zeros = carve(base, &offset, c->model->recurrent.decay_bound > 0 ? (size_t)s->recurrent_heads * c->model->recurrent.key_dim : 0); /* likewise */
	d->x = carve(base, &offset, tokens * hidden);
	d->delta = carve(base, &offset, tokens * hidden);
	d->normed = carve(base, &offset, tokens * hidden);
	d->squares = carve(base, &offset, latent || selected || c->model->arch->sub_norms || c->model->recurrent.kind == RECURRENT_LIGHTNING || (c->model->arch->traits & ARCH_QK_NORMS) ? 2 * tokens : 0);
	d->routed = carve(base, &offset, beside ? tokens * hidden : 0);
	d->beside = carve(base, &offset, beside ? tokens * hidden : 0);
	d->norm_low = carve(base, &offset, tokens * c->model->norm_gate_rank);
	d->norm_low_activated = carve(base, &offset, tokens * c->model->norm_gate_rank);
	d->norm_gates = carve(base, &offset, c->model->norm_gate_rank ? tokens * hidden : 0);
	d->shortcut = c->model->arch->shortcut ? carve(base, &offset, tokens * hidden) : NULL;
	d->inputs = inputs ? carve(base, &offset, tokens * inputs) : NULL;
	d->input_ids = c->model->input_vocab < c->model->vocab_size && inputs ? (u32 *)(void *)carve(base, &offset, tokens) : NULL;
	altup_lay_out(d, base, &offset, tokens, rows);
	hyper_lay_out(d, base, &offset, tokens, rows);
	shared_block_lay_out(d, base, &offset, tokens);
	indexer_lay_out_kept(d, base, &offset, tokens);
	mlp = experts = projected = gate = offset;
	d->qkv = carve(base, &offset, tokens * widest_qkv(c->model, s));
	d->queries = carve(base, &offset, tokens * s->heads * head_width);
	d->values = carve(base, &offset, tokens * s->heads * (c->model->arch->differential ? c->model->head_dim : head_width));
	d->low = carve(base, &offset, latent ? tokens * latent_low_width(c->model, s) : tokens * (selected + gates));
	d->steps = carve(base, &offset, tokens * (selected ? s->recurrent_heads : gates));
	head_experts_lay_out(d, base, &offset, tokens);
	indexer_lay_out(d, base, &offset, tokens);
	d->gate_up = carve(base, &mlp, least(tokens, MLP_TOKENS) * 2 * widest);
	d->activated = carve(base, &mlp, least(tokens, MLP_TOKENS) * widest);
	d->inputs_projected = carve(base, &projected, tokens * inputs);
	d->input_gate = carve(base, &gate, tokens * 2 * c->model->input_width);
	d->input_activated = carve(base, &gate, tokens * c->model->input_width);
	experts += moe_lay_out(&d->moe, c->model, s, (u32)tokens, base ? base + experts : NULL);
	offset = most(most(offset, mlp), most(experts, most(projected, gate)));
	d->picked = carve(base, &offset, rows * hidden);
	d->picked_delta = carve(base, &offset, rows * hidden);
	d->picked_normed = carve(base, &offset, rows * hidden);
	d->logits = carve(base, &offset, s->rank == 0 ? rows * c->model->vocab_size : 0);
	d->last = (u32 *)(void *)carve(base, &offset, tokens);
	d->last_positions = (u32 *)(void *)carve(base, &offset, tokens);
	d->last_rope_rows = (u32 *)(void *)carve(base, &offset, tokens);
	return offset;
}

size_t decoder_bytes(const struct decoder_config *config)
{
	struct decoder d = {.config = *config};

	return lay_out(&d, NULL, config->tokens_max);
}

void decoder_lay_out(struct decoder *d, u32 tokens)
{
	const size_t bytes = lay_out(d, d->memory, tokens);

	ASSERT(tokens <= d->config.tokens_max && bytes <= d->memory_bytes);
}

enum err decoder_init(struct decoder *d, const struct decoder_config *config, struct err_msg *em)
{
	*d = (struct decoder){.config = *config};
	d->memory_bytes = lay_out(d, NULL, config->tokens_max);
	void *memory =
		mmap(NULL, d->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return region_refuse(em,
			       "cannot allocate %zu bytes for activations; lower --max-num-batched-tokens "
			       "or --max-num-seqs",
			       d->memory_bytes);
	madvise(memory, d->memory_bytes, MADV_HUGEPAGE);
	d->memory = memory;
	decoder_lay_out(d, config->tokens_max);
	for (u32 i = 0; i <= config->tokens_max; i++)
		d->single_start[i] = i;
	if (d->slopes)
		alibi_slopes(config->model, config->shard->rank * config->shard->heads, config->shard->heads, d->slopes);
	d->moe.ops = config->ops;
	d->moe.ctx = config->ctx;
	return lora_step_init(&d->lora, config->loras, config->ops, config->ctx, config->tokens_max, em);
}

void decoder_fini(struct decoder *d)
{
	lora_step_fini(&d->lora);
	if (d->memory)
		munmap(d->memory, d->memory_bytes);
	*d = (struct decoder){0};
}

size_t decoder_exchange_bytes(const struct model_config *model, u32 ranks, u32 tokens_max)
{
	size_t sums = tokens_max * most(most(model->hidden, TOLD), selective_low_width(model));
	size_t logits = model->vocab_size / ranks + 1; /* at least one row of the largest share */

	return (sums > logits ? sums : logits) * sizeof(float);
}
