/* Which tensors of a checkpoint become which weight, in numbers: shapes, shares of a rank, types. Runs in the worker at start. Owns nothing,
 * never trusts a shape. */
#include <string.h>

#include "common/assert.h"
#include "proc_worker/model/lightning.h"
#include "proc_worker/model/weights_priv.h"

enum { NAME_MAX_BYTES = 256 };

/* ---------------------------------------------------------------- shapes and shares */

struct weights_range weights_rows(const struct weights_plan *p, const struct arch_tensor *t, u32 layer)
{
	return t->split == SPLIT_ROWS ? weights_dim_share(p, t->rows, layer)
				      : (struct weights_range){0, weights_dim(p->config, t->rows, layer)};
}

static u32 group_count(const struct model_config *c, enum arch_groups groups)
{
	switch (groups) {
	case GROUPS_KV_HEADS:
		return c->kv_heads;
	case GROUPS_HEADS:
		return c->heads;
	case GROUPS_KEY_HEADS:
		return c->recurrent.key_heads;
	case GROUPS_FOUR:
		return 4;
	case GROUPS_NONE:
		break;
	}
	return 1;
}

/* Of a dimension of heads that keep a state. */
static struct tiles tiles_of(const struct model_config *c, enum arch_dim d)
{
	const struct recurrent_config *r = &c->recurrent;
	const u32 width = d == DIM_STATE_VALUES ? r->value_dim : d == DIM_STATE_HEADS ? 1 : 0;

	return (struct tiles){r->tiled ? width : 0, r->heads, r->key_heads};
}

struct weights_range weights_file_rows(const struct weights_plan *p, const struct arch_tensor *t, u32 layer, struct weights_range rows)
{
	u32 groups = group_count(p->config, t->grouped);
	u32 before = t->before == DIM_NONE ? 0 : weights_dim(p->config, t->before, layer) / groups;
	u32 whole = weights_rows_of_file(p, t, layer) / groups, part = weights_dim(p->config, t->rows, layer) / groups;
	const struct tiles tiles = tiles_of(p->config, t->rows);

	ASSERT(rows.count > 0);
	if (t->a_head)
		return (struct weights_range){rows.first / p->config->head_dim, 1};
	rows.count = tiles_run(&tiles, rows.first, rows.count, &rows.first);
	u32 within = rows.first % part, left = part - within;
	return (struct weights_range){rows.first / part * whole + before + within, rows.count < left ? rows.count : left};
}

u32 weights_rows_of_file(const struct weights_plan *p, const struct arch_tensor *t, u32 layer)
{
	if (t->a_head)
		return p->config->heads;
	return weights_dim(p->config, t->whole == DIM_NONE ? t->rows : t->whole, layer);
}

struct weights_range weights_columns(const struct weights_plan *p, const struct arch_tensor *t, u32 layer)
{
	return t->split == SPLIT_COLUMNS ? weights_dim_share(p, t->columns, layer)
					 : (struct weights_range){0, weights_dim(p->config, t->columns, layer)};
}

struct tiles weights_column_tiles(const struct weights_plan *p, const struct arch_tensor *t)
{
	return tiles_of(p->config, t->columns);
}

const struct weights_slot WEIGHTS_SLOTS[SLOT_COUNT] = {
#define IN_MODEL(slot, kind, member) [slot] = {kind, offsetof(struct model_weights, member)}
#define IN_LAYER(slot, kind, member) [slot] = {kind, offsetof(struct layer_weights, member)}
	IN_MODEL(SLOT_EMBED, SLOT_IS_EMBED, embed),
	IN_MODEL(SLOT_POSITIONS, SLOT_IS_TABLE, positions),
	IN_MODEL(SLOT_EMBED_NORM, SLOT_IS_NORM, embed_norm),
	IN_MODEL(SLOT_EMBED_NORM_BIAS, SLOT_IS_BIAS, embed_norm_bias),
	IN_MODEL(SLOT_FINAL_NORM, SLOT_IS_NORM, final_norm),
	IN_MODEL(SLOT_FINAL_NORM_BIAS, SLOT_IS_BIAS, final_norm_bias),
	IN_MODEL(SLOT_LM_HEAD, SLOT_IS_MATRIX, lm_head),
	IN_MODEL(SLOT_LM_HEAD_BIAS, SLOT_IS_BIAS, lm_head_bias),
	IN_MODEL(SLOT_INPUTS_EMBED, SLOT_IS_TABLE, inputs_embed),
	IN_MODEL(SLOT_INPUTS_PROJECTION, SLOT_IS_MATRIX, inputs_projection),
	IN_MODEL(SLOT_INPUTS_NORM, SLOT_IS_NORM, inputs_norm),
	IN_MODEL(SLOT_ALTUP_IN, SLOT_IS_MATRIX, altup_in),
	IN_MODEL(SLOT_ALTUP_OUT, SLOT_IS_MATRIX, altup_out[0]),
	IN_MODEL(SLOT_ALTUP_OUT + 1, SLOT_IS_MATRIX, altup_out[1]),
	IN_MODEL(SLOT_ALTUP_OUT + 2, SLOT_IS_MATRIX, altup_out[2]),
	IN_MODEL(SLOT_ALTUP_OUT + 3, SLOT_IS_MATRIX, altup_out[3]),
	IN_MODEL(SLOT_ALTUP_OUT + 4, SLOT_IS_MATRIX, altup_out[4]),
	IN_MODEL(SLOT_ALTUP_OUT + 5, SLOT_IS_MATRIX, altup_out[5]),
	IN_MODEL(SLOT_ALTUP_OUT_LAST, SLOT_IS_MATRIX, altup_out[6]),
	IN_MODEL(SLOT_HYPER_HEAD, SLOT_IS_MATRIX, hyper.fn),
	IN_MODEL(SLOT_HYPER_HEAD_BASE, SLOT_IS_BIAS, hyper.base),
	IN_MODEL(SLOT_HYPER_HEAD_SCALE, SLOT_IS_BIAS, hyper.scale),
	IN_LAYER(SLOT_ATTN_NORM, SLOT_IS_NORM, attn_norm),
	IN_LAYER(SLOT_ATTN_NORM_BIAS, SLOT_IS_BIAS, attn_norm_bias),
	IN_LAYER(SLOT_ATTN_NORM_DOWN, SLOT_IS_MATRIX, attn_norm_down),
	IN_LAYER(SLOT_ATTN_NORM_UP, SLOT_IS_MATRIX, attn_norm_up),
	IN_LAYER(SLOT_MLP_NORM_DOWN, SLOT_IS_MATRIX, mlp_norm_down),
	IN_LAYER(SLOT_MLP_NORM_UP, SLOT_IS_MATRIX, mlp_norm_up),
	IN_LAYER(SLOT_QKV, SLOT_IS_MATRIX, qkv),
	IN_LAYER(SLOT_QKV_BIAS, SLOT_IS_BIAS, qkv_bias),
	IN_LAYER(SLOT_Q_NORM, SLOT_IS_NORM, q_norm),
	IN_LAYER(SLOT_K_NORM, SLOT_IS_NORM, k_norm),
	IN_LAYER(SLOT_Q_NORM_BIAS, SLOT_IS_BIAS, q_norm_bias),
	IN_LAYER(SLOT_K_NORM_BIAS, SLOT_IS_BIAS, k_norm_bias),
	IN_LAYER(SLOT_Q_B, SLOT_IS_MATRIX, q_b),
	IN_LAYER(SLOT_HEAD_K, SLOT_IS_HEADS, head_k),
	IN_LAYER(SLOT_HEAD_V, SLOT_IS_HEADS, head_v),
	IN_LAYER(SLOT_INDEX_K, SLOT_IS_MATRIX, index_k),
	IN_LAYER(SLOT_INDEX_K_NORM, SLOT_IS_BIAS, index_k_norm),
	IN_LAYER(SLOT_INDEX_K_NORM_BIAS, SLOT_IS_BIAS, index_k_norm_bias),
	IN_LAYER(SLOT_INDEX_Q, SLOT_IS_MATRIX, index_q),
	IN_LAYER(SLOT_INDEX_WEIGHTS, SLOT_IS_MATRIX, index_weights),
	IN_LAYER(SLOT_CONV, SLOT_IS_BIAS, conv),
	IN_LAYER(SLOT_CONV_BIAS, SLOT_IS_BIAS, conv_bias),
	IN_LAYER(SLOT_RATE_LOG, SLOT_IS_BIAS, rate_log),
	IN_LAYER(SLOT_DECAY_BIAS, SLOT_IS_BIAS, decay_bias),
	IN_LAYER(SLOT_SKIP, SLOT_IS_BIAS, skip),
	IN_LAYER(SLOT_GATE_NORM, SLOT_IS_BIAS, gate_norm), /* without the offset that a family's other norms may have */
	IN_LAYER(SLOT_X_PROJ, SLOT_IS_MATRIX, x_proj),
	IN_LAYER(SLOT_DT_NORM, SLOT_IS_BIAS, dt_norm),
	IN_LAYER(SLOT_B_NORM, SLOT_IS_BIAS, b_norm),
	IN_LAYER(SLOT_C_NORM, SLOT_IS_BIAS, c_norm),
	IN_LAYER(SLOT_DT_PROJ, SLOT_IS_MATRIX, dt_proj),
	IN_LAYER(SLOT_RATES, SLOT_IS_BIAS, rates),
	IN_LAYER(SLOT_LRU_INPUT, SLOT_IS_HEADS, lru_input),
	IN_LAYER(SLOT_LRU_INPUT_BIAS, SLOT_IS_BIAS, lru_input_bias),
	IN_LAYER(SLOT_LRU_FADE, SLOT_IS_HEADS, lru_fade),
	IN_LAYER(SLOT_LRU_FADE_BIAS, SLOT_IS_BIAS, lru_fade_bias),
	IN_LAYER(SLOT_LRU_RATE, SLOT_IS_BIAS, lru_rate),
	IN_LAYER(SLOT_DECAY_B, SLOT_IS_MATRIX, decay_b),
	IN_LAYER(SLOT_GATE_B, SLOT_IS_MATRIX, gate_b),
	IN_LAYER(SLOT_HEADS_ROUTER, SLOT_IS_MATRIX, heads_router),
	IN_LAYER(SLOT_HEADS_IN, SLOT_IS_EXPERTS, heads_in),
	IN_LAYER(SLOT_HEADS_OUT, SLOT_IS_EXPERTS, heads_out),
	IN_LAYER(SLOT_ADAPTER_IN, SLOT_IS_MATRIX, adapter_in),
	IN_LAYER(SLOT_ADAPTER_Q, SLOT_IS_MATRIX, adapter_q),
	IN_LAYER(SLOT_ADAPTER_K, SLOT_IS_MATRIX, adapter_k),
	IN_LAYER(SLOT_ADAPTER_V, SLOT_IS_MATRIX, adapter_v),
	IN_LAYER(SLOT_MLP_ADAPTER_IN, SLOT_IS_MATRIX, mlp_adapter_in),
	IN_LAYER(SLOT_MLP_ADAPTER_OUT, SLOT_IS_MATRIX, mlp_adapter_out),
	IN_LAYER(SLOT_BLOCK_OUT, SLOT_IS_MATRIX, block_out),
	IN_LAYER(SLOT_STATE_OUT, SLOT_IS_MATRIX, state_out),
	IN_LAYER(SLOT_LAMBDA, SLOT_IS_BIAS, lambda),
	IN_LAYER(SLOT_ATTN_SUB_NORM, SLOT_IS_NORM, attn_sub_norm),
	IN_LAYER(SLOT_ATTN_OUT, SLOT_IS_MATRIX, attn_out),
	IN_LAYER(SLOT_ATTN_OUT_BIAS, SLOT_IS_BIAS, attn_out_bias),
	IN_LAYER(SLOT_SINKS, SLOT_IS_BIAS, sinks),
	IN_LAYER(SLOT_ATTN_POST_NORM, SLOT_IS_NORM, attn_post_norm),
	IN_LAYER(SLOT_MLP_NORM, SLOT_IS_NORM, mlp_norm),
	IN_LAYER(SLOT_MLP_NORM_BIAS, SLOT_IS_BIAS, mlp_norm_bias),
	IN_LAYER(SLOT_GATE_UP, SLOT_IS_MATRIX, gate_up),
	IN_LAYER(SLOT_GATE_UP_BIAS, SLOT_IS_BIAS, gate_up_bias),
	IN_LAYER(SLOT_MLP_SUB_NORM, SLOT_IS_NORM, mlp_sub_norm),
	IN_LAYER(SLOT_DOWN, SLOT_IS_MATRIX, down),
	IN_LAYER(SLOT_DOWN_BIAS, SLOT_IS_BIAS, down_bias),
	IN_LAYER(SLOT_XIELU, SLOT_IS_BIAS, xielu),
	IN_LAYER(SLOT_MLP_POST_NORM, SLOT_IS_NORM, mlp_post_norm),
	IN_LAYER(SLOT_ROUTER, SLOT_IS_MATRIX, router),
	IN_LAYER(SLOT_ROUTER_BIAS, SLOT_IS_BIAS, router_bias),
	IN_LAYER(SLOT_CHOICE_BIAS, SLOT_IS_BIAS, choice_bias),
	IN_LAYER(SLOT_SHARED_GATE, SLOT_IS_MATRIX, shared_gate),
	IN_LAYER(SLOT_EXPERT_GATE_UP, SLOT_IS_EXPERTS, expert_gate_up),
	IN_LAYER(SLOT_EXPERT_GATE_UP_BIAS, SLOT_IS_BIAS, expert_gate_up_bias),
	IN_LAYER(SLOT_EXPERT_DOWN, SLOT_IS_EXPERTS, expert_down),
	IN_LAYER(SLOT_EXPERT_DOWN_BIAS, SLOT_IS_BIAS, expert_down_bias),
	IN_LAYER(SLOT_EXPERTS_IN, SLOT_IS_MATRIX, experts_in),
	IN_LAYER(SLOT_EXPERTS_IN_BIAS, SLOT_IS_BIAS, experts_in_bias),
	IN_LAYER(SLOT_EXPERTS_OUT, SLOT_IS_MATRIX, experts_out),
	IN_LAYER(SLOT_EXPERTS_OUT_BIAS, SLOT_IS_BIAS, experts_out_bias),
	IN_LAYER(SLOT_ROUTER_NORM, SLOT_IS_NORM, router_norm),
	IN_LAYER(SLOT_EXPERT_SCALES, SLOT_IS_BIAS, expert_scales),
	IN_LAYER(SLOT_EXPERTS_NORM, SLOT_IS_NORM, experts_norm),
	IN_LAYER(SLOT_EXPERTS_POST_NORM, SLOT_IS_NORM, experts_post_norm),
	IN_LAYER(SLOT_BESIDE_POST_NORM, SLOT_IS_NORM, beside_post_norm),
	IN_LAYER(SLOT_INPUT_GATE, SLOT_IS_MATRIX, input_gate),
	IN_LAYER(SLOT_INPUT_OUT, SLOT_IS_MATRIX, input_out),
	IN_LAYER(SLOT_INPUT_POST_NORM, SLOT_IS_NORM, input_post_norm),
	IN_LAYER(SLOT_LAYER_SCALE, SLOT_IS_BIAS, scale),
	IN_LAYER(SLOT_ALTUP_NORM, SLOT_IS_NORM, altup_norm),
	IN_LAYER(SLOT_ALTUP_ROUTER, SLOT_IS_MATRIX, altup_router),
	IN_LAYER(SLOT_ALTUP_PREDICT, SLOT_IS_BIAS, altup_predict),
	IN_LAYER(SLOT_ALTUP_CORRECT, SLOT_IS_BIAS, altup_correct),
	IN_LAYER(SLOT_ALTUP_SCALE, SLOT_IS_BIAS, altup_scale),
	IN_LAYER(SLOT_LAUREL_LEFT, SLOT_IS_MATRIX, laurel_left),
	IN_LAYER(SLOT_LAUREL_RIGHT, SLOT_IS_MATRIX, laurel_right),
	IN_LAYER(SLOT_LAUREL_NORM, SLOT_IS_NORM, laurel_norm),
	IN_LAYER(SLOT_HYPER_ATTN, SLOT_IS_MATRIX, attn_hyper.fn),
	IN_LAYER(SLOT_HYPER_ATTN_BASE, SLOT_IS_BIAS, attn_hyper.base),
	IN_LAYER(SLOT_HYPER_ATTN_SCALE, SLOT_IS_BIAS, attn_hyper.scale),
	IN_LAYER(SLOT_HYPER_MLP, SLOT_IS_MATRIX, mlp_hyper.fn),
	IN_LAYER(SLOT_HYPER_MLP_BASE, SLOT_IS_BIAS, mlp_hyper.base),
	IN_LAYER(SLOT_HYPER_MLP_SCALE, SLOT_IS_BIAS, mlp_hyper.scale),
#undef IN_MODEL
#undef IN_LAYER
};

bool weights_is_vector(enum weight_slot slot)
{
	return WEIGHTS_SLOTS[slot].kind == SLOT_IS_NORM || WEIGHTS_SLOTS[slot].kind == SLOT_IS_BIAS;
}

bool weights_is_matrix(enum weight_slot slot)
{
	return WEIGHTS_SLOTS[slot].kind == SLOT_IS_MATRIX || WEIGHTS_SLOTS[slot].kind == SLOT_IS_EXPERTS ||
	       WEIGHTS_SLOTS[slot].kind == SLOT_IS_HEADS;
}

bool weights_may_be_quantized(const struct weights_plan *p, enum weight_slot slot)
{
	const bool looked_up = slot == SLOT_EMBED || slot == SLOT_INPUTS_EMBED;

	return weights_is_matrix(slot) || (looked_up && quant_config_has(&p->config->quant, QUANT_GGUF));
}

u32 weights_copies(const struct weights_plan *p, enum weight_slot slot)
{
	switch (WEIGHTS_SLOTS[slot].kind) {
	case SLOT_IS_EXPERTS:
		return p->config->experts;
	case SLOT_IS_HEADS:
		return p->shard->heads;
	default:
		return 1;
	}
}

u32 weights_tensors(const struct weights_plan *p, const struct arch_tensor *t, u32 layer)
{
	return t->by_head ? weights_dim(p->config, t->rows, layer) / p->config->head_dim : weights_copies(p, t->slot);
}

u32 weights_layers(const struct weights_plan *p, enum weight_slot slot)
{
	return slot >= SLOT_LAYER_FIRST ? p->config->layers : 1;
}

/* Whether the file has parts of `t` in that tensor, fused or apart. */
static bool is_so_divided(const struct weights_plan *p, const struct arch_tensor *t, u32 layer)
{
	const struct arch_tensor apart = {.name = t->apart_as};
	char name[NAME_MAX_BYTES];

	if (!t->apart_as)
		return true;
	if (!p->checkpoint) /* what one would be made of */
		return !t->apart;
	arch_tensor_name(name, sizeof(name), &apart, layer, 0);
	return (safetensors_find(p->checkpoint, name) != NULL) == t->apart;
}

/* Of norms of all layers, which a field says something about. */
static bool has_norm(const struct model_config *c, enum arch_when when)
{
	if (when == WHEN_HEAD_NORMS)
		return c->head_norms;
	if (when == WHEN_SEQUENTIAL)
		return !c->parallel;
	if (when == WHEN_POST_NORM)
		return c->post_norms;
	return c->norm_each == (when == WHEN_NORM_EACH);
}

/* Of layers with experts. */
static bool has_with_experts(const struct model_config *c, enum arch_when when)
{
	if (when == WHEN_CHOICE_BIAS)
		return c->choice_bias;
	if (when == WHEN_SHARED || when == WHEN_SHARED_BIAS)
		return c->shared_intermediate > 0 && (when == WHEN_SHARED || c->mlp_bias);
	return c->experts_narrow > 0 && (when == WHEN_EXPERTS_IN || c->mlp_bias);
}

/* Of layers of a kind that one flag tells. */
static bool has_flag(u32 flags, enum arch_when when)
{
	if (when == WHEN_MIXER || when == WHEN_NO_MIXER)
		return !(flags & LAYER_NO_MIXER) == (when == WHEN_MIXER);
	if (when == WHEN_SHORTCUT)
		return flags & LAYER_SHORTCUT;
	if (when == WHEN_LINEAR_MIXER)
		return flags & LAYER_LINEAR_MIXER;
	if (when == WHEN_LINEAR_MLP)
		return flags & LAYER_LINEAR_MLP;
	return !(flags & LAYER_WIDE) == (when == WHEN_NARROW);
}

/* Of layers without a window and of those with one. */
static bool has_of_kind(const struct model_config *c, u32 flags, enum arch_when when)
{
	const bool global = flags & LAYER_GLOBAL, own_kv = !(flags & LAYER_SHARED_KV);

	if (when == WHEN_LOCAL || when == WHEN_GLOBAL)
		return global == (when == WHEN_GLOBAL);
	if (when == WHEN_LOCAL_KV)
		return !global && own_kv;
	return global && own_kv && (when == WHEN_GLOBAL_KV || !c->value_is_key);
}

/* Of layers with blocks that others have, too. */
static bool has_block(const struct model_config *c, u32 layer, enum arch_when when)
{
	if (!(c->layer_flags[layer] & LAYER_SHARED_BLOCK))
		return false;
	if (when == WHEN_ADAPTERS)
		return c->blocks.adapts_attention;
	return c->blocks.first[layer] == layer && (when == WHEN_SHARED_BLOCK || c->mlp_bias);
}

/* Of no layer, or of all of them. */
static bool has_whole(const struct model_config *c, enum arch_when when)
{
	if (when == WHEN_POSITIONS)
		return c->learned_positions;
	return when == WHEN_INPUTS ? c->input_width > 0 : c->altup.scaled;
}

static bool has_tensor(const struct weights_plan *p, const struct arch_tensor *t, u32 layer)
{
	const u32 flags = p->config->layer_flags[layer];
	const bool recurrent = flags & LAYER_RECURRENT, dense = !(flags & (LAYER_EXPERTS | LAYER_NO_MLP));
	const bool attends = model_attends(p->config, layer), experts = flags & LAYER_EXPERTS;

	switch (t->when) {
	case WHEN_ALWAYS:
		return true;
	case WHEN_ATTENTION_BIAS:
		return p->config->attention_bias && attends;
	case WHEN_MLP_BIAS:
		return p->config->mlp_bias && dense;
	case WHEN_DENSE:
		return dense;
	case WHEN_EXPERTS:
		return experts;
	case WHEN_SHARED:
	case WHEN_SHARED_BIAS:
	case WHEN_CHOICE_BIAS:
	case WHEN_EXPERTS_IN:
	case WHEN_EXPERTS_IN_BIAS:
		return experts && has_with_experts(p->config, t->when);
	case WHEN_HEAD_NORMS:
	case WHEN_SEQUENTIAL:
	case WHEN_NORM_SHARED:
	case WHEN_NORM_EACH:
	case WHEN_POST_NORM:
		return has_norm(p->config, t->when);
	case WHEN_LM_HEAD_BIAS:
		return p->config->lm_head_bias;
	case WHEN_Q_RANK:
	case WHEN_NO_Q_RANK:
		return attends && (p->config->latent.q_rank > 0) == (t->when == WHEN_Q_RANK);
	case WHEN_INDEX:
		return model_chooses(p->config, layer);
	case WHEN_OUTPUT_GATE:
		return attends && p->config->output_gate;
	case WHEN_ATTENTION:
		return attends;
	case WHEN_RECURRENT:
		return recurrent;
	case WHEN_STATE_BIAS:
		return recurrent && p->config->recurrent.bias;
	case WHEN_CONV_BIAS:
		return recurrent && p->config->recurrent.conv_bias;
	case WHEN_STATE_NORM:
		return recurrent && p->config->recurrent.normed;
	case WHEN_LOCAL:
	case WHEN_LOCAL_KV:
	case WHEN_GLOBAL:
	case WHEN_GLOBAL_KV:
	case WHEN_GLOBAL_V:
		return has_of_kind(p->config, flags, t->when);
	case WHEN_MIXER:
	case WHEN_NO_MIXER:
	case WHEN_NARROW:
	case WHEN_WIDE:
	case WHEN_SHORTCUT:
	case WHEN_LINEAR_MIXER:
	case WHEN_LINEAR_MLP:
		return has_flag(flags, t->when);
	case WHEN_SHARED_BLOCK:
	case WHEN_SHARED_BLOCK_BIAS:
	case WHEN_ADAPTERS:
		return has_block(p->config, layer, t->when);
	case WHEN_INPUTS:
	case WHEN_POSITIONS:
	case WHEN_ALTUP_SCALE:
		return has_whole(p->config, t->when);
	}
	return false;
}

bool weights_tensor_applies(const struct weights_plan *p, const struct arch_tensor *t, u32 layer)
{
	if (t->slot == SLOT_LM_HEAD_BIAS && p->config->headless)
		return false;
	return (!t->stream || t->stream < p->config->altup.streams) && has_tensor(p, t, layer) && is_so_divided(p, t, layer);
}

enum weight_slot weights_source_slot(const struct weights_plan *p, enum weight_slot slot)
{
	return slot == SLOT_LM_HEAD && p->config->tied_embeddings ? SLOT_EMBED : slot;
}

u32 weights_plain_width(const struct weights_plan *p, enum weight_slot slot, u32 layer)
{
	const struct model_config *c = p->config;
	const bool block = slot == SLOT_ATTN_NORM || slot == SLOT_MLP_NORM || slot == SLOT_FINAL_NORM;

	if (block)
		return c->arch->plain_norms ? c->hidden : 0;
	if (slot == SLOT_DT_NORM)
		return c->arch->plain_select_norms ? c->recurrent.step_rank : 0;
	if (slot == SLOT_B_NORM || slot == SLOT_C_NORM)
		return c->arch->plain_select_norms ? c->recurrent.key_dim : 0;
	if (slot != SLOT_Q_NORM && slot != SLOT_K_NORM)
		return lightning_plain_width(p, slot, layer);
	return c->arch->plain_head_norms && c->head_norms && !(c->arch->chunked && c->layer_flags[layer] & LAYER_NO_ROPE) ? c->head_dim : 0;
}

void weights_slot_shape(const struct weights_plan *p, enum weight_slot slot, u32 layer, u32 *rows,
		       u32 *columns)
{
	const struct arch *a = p->config->arch;

	*rows = weights_plain_width(p, slot, layer);
	*columns = *rows > 0;
	if (slot == SLOT_POSITIONS && a->sinusoids) {
		*rows = p->config->context_max;
		*columns = p->config->hidden;
	}
	slot = weights_source_slot(p, slot);
	for (u32 i = 0; i < a->tensor_count; i++)
		if (a->tensors[i].slot == slot && weights_tensor_applies(p, &a->tensors[i], layer)) {
			*rows += weights_rows(p, &a->tensors[i], layer).count;
			*columns = weights_columns(p, &a->tensors[i], layer).count;
		}
	if (slot == SLOT_HEAD_K) { /* read the other way round than the file has it: from keys to latents */
		u32 turned = *rows;
		*rows = *columns;
		*columns = turned;
	}
}

/* ---------------------------------------------------------------- types */

const struct st_tensor *weights_embed_tensor(const struct weights_plan *p)
{
	const struct arch *a = p->config->arch;

	for (u32 i = 0; i < a->tensor_count; i++)
		if (a->tensors[i].slot == SLOT_EMBED)
			return safetensors_find(p->checkpoint, a->tensors[i].name);
	return NULL;
}
struct quant_tensor weights_quant_part(const struct weights_plan *p, const struct arch_tensor *t, u32 layer,
				      u32 expert)
{
	char name[NAME_MAX_BYTES];
	struct quant_tensor q;
	struct err_msg em;

	u64 shape[2] = {weights_rows_of_file(p, t, layer), weights_dim(p->config, t->columns, layer)};

	arch_tensor_name(name, sizeof(name), t, layer, expert);
	weights_split_heads(p, t, layer, name, sizeof(name), shape);
	enum err e = quant_tensor_find(&q, p->checkpoint, &p->config->quant, name, (u32)shape[0], (u32)shape[1], &em);
	ASSERT(!e);
	q.tiles = weights_column_tiles(p, t);
	return q;
}

static bool same_order(const struct quant_tensor *a, const struct quant_tensor *b)
{
	if (!a->groups || !b->groups)
		return a->groups == b->groups;
	return a->groups->bytes == b->groups->bytes &&
	       memcmp(a->groups->data, b->groups->data, a->groups->bytes) == 0;
}

/* The quantized type in which a weight can be held as the checkpoint has it, if all its parts, those of every expert, agree on one
 * and on the order of inputs (`*ordered`: another than theirs); else KERN_F32. Types of a GGUF file that differ agree on KERN_I8. */
static enum kern_dtype stored_type(const struct weights_plan *p, enum weight_slot slot, u32 layer,
				   bool *ordered)
{
	const struct arch *a = p->config->arch;
	const bool experts = WEIGHTS_SLOTS[slot].kind == SLOT_IS_EXPERTS;
	enum kern_dtype type = KERN_F32;
	struct quant_tensor first;
	u32 parts = 0;

	*ordered = false;
	slot = weights_source_slot(p, slot);
	for (u32 i = 0; i < a->tensor_count && p->config->quant.count > 0; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		if (t->slot != slot || !weights_may_be_quantized(p, slot) || !weights_tensor_applies(p, t, layer))
			continue;
		struct weights_range columns = weights_columns(p, t, layer);
		for (u32 expert = 0; expert < weights_copies(p, slot); expert++) {
			struct quant_tensor q = weights_quant_part(p, t, layer, expert);
			enum kern_dtype mine = quant_tensor_kept(&q, columns.first, columns.count);
			if (parts++ == 0) {
				first = q;
				type = mine;
			}
			if (mine != type && q.format == QUANT_GGUF && first.format == QUANT_GGUF)
				type = mine = KERN_I8;
			if (mine == KERN_F32 || mine != type || !same_order(&q, &first) || (q.groups && experts))
				return KERN_F32;
			*ordered = q.groups != NULL;
		}
	}
	return type;
}

/* What --quantization asks for. Of three values in the middle of 16 steps none would be 0: 4 bits hold them as they are. */
static enum kern_dtype asked_type(const struct weights_plan *p, enum weight_slot slot, u32 layer, bool *ordered)
{
	const struct quant_config *q = &p->config->quant;

	if (p->matrix_dtype == KERN_I8 || !quant_config_has(q, QUANT_TERNARY))
		return p->matrix_dtype;
	if (q->schemes[0].at_load)
		return slot == SLOT_LM_HEAD ? p->matrix_dtype : KERN_I4_128;
	const enum kern_dtype stored = stored_type(p, slot, layer, ordered);
	return kern_dtype_group(stored) > 0 ? stored : p->matrix_dtype;
}

bool weights_is_router(enum weight_slot slot)
{
	return slot == SLOT_ROUTER || slot == SLOT_HEADS_ROUTER || slot == SLOT_SHARED_GATE || slot == SLOT_ALTUP_ROUTER || slot == SLOT_INDEX_WEIGHTS ||
	       slot == SLOT_HYPER_HEAD || slot == SLOT_HYPER_ATTN || slot == SLOT_HYPER_MLP;
}

/* Of low rank, in the checkpoint itself. */
static bool is_adapter(enum weight_slot slot)
{
	return slot >= SLOT_ADAPTER_IN && slot <= SLOT_MLP_ADAPTER_OUT;
}

/* A router is small, and what it chooses matters more than any digit. What a GGUF file has no weight holds as it is, and with
 * float32 exact values are what is asked for. */
enum kern_dtype weights_matrix_dtype(const struct weights_plan *p, enum weight_slot slot, u32 layer,
				    bool *ordered)
{
	*ordered = false;
	/* What heads have is little, too, and so is what steps, keys and queries are made by, of which states keep every error. */
	if (weights_is_router(slot) || WEIGHTS_SLOTS[slot].kind == SLOT_IS_HEADS || slot == SLOT_X_PROJ || slot == SLOT_DT_PROJ || is_adapter(slot))
		return p->dtype;
	if (kern_dtype_group(p->matrix_dtype) > 0)
		return asked_type(p, slot, layer, ordered);
	if (p->dtype == KERN_F32 && quant_config_has(&p->config->quant, QUANT_GGUF))
		return p->dtype;
	enum kern_dtype stored = stored_type(p, slot, layer, ordered);
	if (kern_dtype_group(stored) > 0)
		return stored;
	*ordered = false;
	return p->dtype;
}
