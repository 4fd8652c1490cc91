/* That a checkpoint has the tensors that its config.json makes one expect, in their shapes, and no more layers. Runs in the worker at start, before
 * anything is read. Never trusts a shape. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/model/weights_priv.h"

enum { NAME_MAX_BYTES = 256 };

/* Rates of heads may have more dimensions, of one value each. */
static bool is_rate_of(const struct arch_tensor *t, const struct st_tensor *st, u64 heads)
{
	u64 count = 1;
	u32 wide = 0;

	for (u32 i = 0; i < st->dims; i++)
		if (st->shape[i] != 1) {
			count = st->shape[i];
			wide++;
		}
	return t->slot == SLOT_RATE_LOG && st->dims > 1 && wide <= 1 && count == heads;
}

/* Gates of each head's channels, or their biases: heads, which other tensors have one behind the other, are a dimension of their own. Returns how many
 * dimensions there are. */
static u32 divide_heads(const struct weights_plan *p, const struct arch_tensor *t, u64 shape[3], u32 dims)
{
	const bool matrix = t->slot == SLOT_LRU_INPUT || t->slot == SLOT_LRU_FADE;

	if (!matrix && t->slot != SLOT_LRU_INPUT_BIAS && t->slot != SLOT_LRU_FADE_BIAS)
		return dims;
	shape[2] = shape[1];
	shape[1] = p->config->recurrent.value_dim;
	shape[0] = p->config->recurrent.heads;
	return matrix ? 3 : 2;
}

static enum err check_tensor(const struct weights_plan *p, const struct arch_tensor *t, u32 layer, u32 expert,
			     struct err_msg *em)
{
	char name[NAME_MAX_BYTES], found[128], wanted[128];
	u64 shape[3] = {t->by_head ? p->config->head_dim : weights_rows_of_file(p, t, layer), weights_dim(p->config, t->columns, layer)};
	u32 dims = t->columns == DIM_NONE ? 1 : 2;

	arch_tensor_name(name, sizeof(name), t, layer, expert);
	weights_split_heads(p, t, layer, name, sizeof(name), shape);
	if (t->transposed && weights_may_be_quantized(p, t->slot) && p->config->quant.count > 0 && !quant_config_has(&p->config->quant, QUANT_MXFP4))
		return err_set(em, ERR_UNSUPPORTED,
			       "%s: quantized checkpoints of a %s are not read: its files have their matrices transposed; use "
			       "the checkpoint that it was made from with --quantization",
			       name, p->config->arch->name);
	if (weights_may_be_quantized(p, t->slot)) {
		struct quant_tensor q;
		enum err e = quant_tensor_find(&q, p->checkpoint, &p->config->quant, name, (u32)shape[0],
					       (u32)shape[1], em);
		if (e || q.format != QUANT_NONE)
			return e;
	}
	if (t->transposed) {
		u64 rows = shape[0];
		shape[0] = shape[1];
		shape[1] = rows;
	}
	if (t->slot == SLOT_CONV) { /* each channel by itself: of one input */
		shape[dims++] = shape[1];
		shape[1] = 1;
	}
	dims = divide_heads(p, t, shape, dims);
	const struct st_tensor *st = safetensors_find(p->checkpoint, name);
	safetensors_print_shape(wanted, sizeof(wanted), shape, dims);
	if (!st)
		return err_set(em, ERR_NOT_FOUND, "the checkpoint has no tensor %s (%s expected)", name,
			       wanted);
	const bool scalar = dims == 1 && shape[0] == 1 && st->dims == 0;
	if (!scalar && !is_rate_of(t, st, shape[0]) && (st->dims != dims || memcmp(st->shape, shape, dims * sizeof(u64)) != 0)) {
		safetensors_print_shape(found, sizeof(found), st->shape, st->dims);
		return err_set(em, ERR_FORMAT, "%s: tensor %s has the shape %s; by config.json it must be %s",
			       st->file, name, found, wanted);
	}
	if (!st->usable)
		return err_set(em, ERR_UNSUPPORTED, "%s: tensor %s is of type %s; supported: BF16, F16, F32",
			       st->file, name, st->dtype_name);
	return ERR_OK;
}

/* One tensor of the table, in all layers and for all experts. */
static enum err check_tensors(const struct weights_plan *p, const struct arch_tensor *t, struct err_msg *em)
{
	enum err e = ERR_OK;

	for (u32 layer = 0; layer < weights_layers(p, t->slot); layer++)
		for (u32 x = 0; !e && weights_tensor_applies(p, t, layer) && x < weights_tensors(p, t, layer); x++)
			e = check_tensor(p, t, layer, x, em);
	return e;
}

/* Whether a layer has it, or of two that are one of the file, and have one name for it, the other. */
static bool is_read(const struct weights_plan *p, const struct arch_tensor *t, u32 layer)
{
	const bool other = t->pairs == PAIRS_FIRST && (layer ^ 1) < p->config->layers && weights_tensor_applies(p, t, layer ^ 1);

	return other || weights_tensor_applies(p, t, layer);
}

const struct st_tensor *model_weights_unread(const struct weights_plan *p, u32 *from)
{
	const struct arch *a = p->config->arch;
	char name[NAME_MAX_BYTES];

	for (u32 i = (*from)++; i < a->tensor_count; i = (*from)++) {
		const struct arch_tensor *t = &a->tensors[i];
		bool by_config = t->when == WHEN_ATTENTION_BIAS || t->when == WHEN_MLP_BIAS || t->when == WHEN_HEAD_NORMS ||
				 t->when == WHEN_LM_HEAD_BIAS || t->when == WHEN_STATE_BIAS || t->when == WHEN_CONV_BIAS || t->when == WHEN_STATE_NORM ||
				 t->when == WHEN_CHOICE_BIAS || t->when == WHEN_POST_NORM || t->when == WHEN_SHARED_BIAS || t->when == WHEN_SEQUENTIAL ||
				 t->when == WHEN_OUTPUT_GATE || t->when == WHEN_SHARED_BLOCK_BIAS || t->when == WHEN_EXPERTS_IN || t->when == WHEN_EXPERTS_IN_BIAS ||
				 (t->when == WHEN_SHARED && p->config->experts && !p->config->shared_intermediate);
		bool again = i > 0 && strcmp(a->tensors[i - 1].name, t->name) == 0; /* parts of one tensor */
		for (u32 layer = 0; by_config && !again && layer < p->config->layers; layer++) { /* layers of a kind: the first may have none */
			arch_tensor_name(name, sizeof(name), t, layer, 0);
			const struct st_tensor *st = is_read(p, t, layer) ? NULL : safetensors_find(p->checkpoint, name);
			if (st)
				return st;
		}
	}
	return NULL;
}

/* ---------------------------------------------------------------- how many layers */

/* A tensor's layer, and what follows its number in the name; false: it is of none. */
static bool layer_of(const char *name, const char *prefix, u32 *layer, const char **rest)
{
	size_t begins = strlen(prefix);
	char *end;

	if (strncmp(name, prefix, begins) != 0 || name[begins] < '0' || name[begins] > '9')
		return false;
	unsigned long n = strtoul(name + begins, &end, 10);
	*layer = n < UINT32_MAX ? (u32)n : UINT32_MAX;
	*rest = end;
	return *end == '.';
}

/* Whether some layer of the model has such a tensor, too. */
static bool is_of_a_layer(const struct weights_plan *p, const char *prefix, const char *rest)
{
	char name[NAME_MAX_BYTES];

	for (u32 layer = p->config->layers; layer-- > 0;) {
		snprintf(name, sizeof(name), "%s%u%s", prefix, layer, rest);
		if (safetensors_find(p->checkpoint, name))
			return true;
	}
	return false;
}

/* Layers behind those of config.json are none of the model's if they have something that its layers have not: they predict tokens
 * further ahead. Returns whether `layer` is one of them. */
static bool is_special(const struct weights_plan *p, const char *prefix, u32 layer)
{
	const char *rest;
	u32 own;

	for (u32 i = 0; i < safetensors_count(p->checkpoint); i++)
		if (layer_of(safetensors_at(p->checkpoint, i)->name, prefix, &own, &rest) && own == layer &&
		    !is_of_a_layer(p, prefix, rest))
			return true;
	return false;
}

/* Fewer layers than were trained compute something, and nothing that makes sense. */
static enum err check_layers(const struct weights_plan *p, struct err_msg *em)
{
	const struct arch *a = p->config->arch;
	u32 first = a->shortcut || a->shared_blocks ? p->config->layers / 2 : p->config->layers, last = first, layer, i = 0;
	const struct st_tensor *of_last = NULL;
	char prefix[NAME_MAX_BYTES];
	const char *rest;

	while (a->tensors[i].slot < SLOT_LAYER_FIRST)
		i++;
	snprintf(prefix, sizeof(prefix), "%.*s", (int)strcspn(a->tensors[i].name, "{"), a->tensors[i].name);
	for (i = 0; i < safetensors_count(p->checkpoint); i++) {
		const struct st_tensor *t = safetensors_at(p->checkpoint, i);
		if (layer_of(t->name, prefix, &layer, &rest) && layer >= last) {
			last = layer;
			of_last = t;
		}
	}
	if (!of_last || is_special(p, prefix, first))
		return ERR_OK;
	return err_set(em, ERR_FORMAT,
		       "config.json says that the model has %u layers (%s), and the checkpoint has %u (%s: tensor %s): they are not of the same model",
		       first, arch_field_in_file(a, "num_hidden_layers"), last + 1, of_last->file, of_last->name);
}

/* Embeddings that are not what the lm_head is cannot stand for it: config_read_tied has left to the files whether they do. */
static enum err check_head(const struct model_config *c, struct err_msg *em)
{
	if (!c->tied_embeddings || (!c->arch->embed_norm && c->embed_vocab == c->vocab_size))
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "the checkpoint has no lm_head.weight, and the embeddings of a %s cannot be its lm_head: %s", c->arch->name,
		       c->arch->embed_norm ? "they are normed" : "\"output_vocab_size\" is less than vocab_size");
}

enum err model_weights_check(const struct weights_plan *p, struct err_msg *em)
{
	const struct arch *a = p->config->arch;
	enum err e = check_head(p->config, em);

	for (u32 i = 0; !e && i < a->tensor_count; i++)
		if (weights_source_slot(p, a->tensors[i].slot) == a->tensors[i].slot)
			e = check_tensors(p, &a->tensors[i], em);
	return e ? e : check_layers(p, em);
}
