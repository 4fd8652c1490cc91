/* Finds the tensors of a checkpoint that were saved under other names or in one piece. Runs in the worker while it loads,
 * before anything looks for a tensor, and where it has failed. Copies nothing: what it adds are names for places in the mapped files. */
#include "proc_worker/model/tensor_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "proc_worker/model/mistral_names.h"

enum { NAME_BYTES = 256, IMAGE_ROWS = 8 /* of the embedding of models that leave layers out */ };

/* Names that are to be added. */
struct additions {
	struct safetensors *st;
	struct st_tensor *tensors;
	char (*names)[NAME_BYTES];
	u32 count, capacity;
};

static enum err grow(struct additions *a, struct err_msg *em)
{
	u32 capacity = a->capacity ? 2 * a->capacity : 256;
	struct st_tensor *tensors = realloc(a->tensors, capacity * sizeof(*tensors));

	if (!tensors)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	a->tensors = tensors;
	char(*names)[NAME_BYTES] = realloc(a->names, capacity * sizeof(*names));
	if (!names)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	a->names = names;
	a->capacity = capacity;
	return ERR_OK;
}

static enum err add(struct additions *a, const char *name, const struct st_tensor *t, struct err_msg *em)
{
	enum err e = a->count == a->capacity ? grow(a, em) : ERR_OK;

	if (e)
		return e;
	a->tensors[a->count] = *t;
	snprintf(a->names[a->count++], NAME_BYTES, "%s", name);
	return ERR_OK;
}

/* Hands all of them over, unless there was an error before. */
static enum err finish(struct additions *a, enum err e, struct err_msg *em)
{
	for (u32 i = 0; i < a->count; i++)
		a->tensors[i].name = a->names[i];
	if (!e && a->count)
		e = safetensors_add(a->st, a->tensors, a->count, em);
	free(a->tensors);
	free(a->names);
	return e;
}

/* ---------------------------------------------------------------- other prefixes */

/* How all checkpoints of some families begin their names. */
#define BACKBONE "backbone."

/* How checkpoints of models of several parts, and those of the part without lm_head, begin their names; longer ones
 * first. */
static const struct {
	const char *file, *wanted;
} PREFIXES[] = {
	{"thinker.model.", "model."},
	{"thinker.lm_head.", "lm_head."},
	{"model.language_model.model.", "model."},
	{"model.language_model.lm_head.", "lm_head."},
	{"model.language_model.", "model."},
	{"model.text_model.", "model."},
	{"language_model.model.", "model."},
	{"language_model.lm_head.", "lm_head."},
	{BACKBONE, "model."},
};

static const char *embed_name(const struct arch *a)
{
	u32 i = 0;

	while (a->tensors[i].slot != SLOT_EMBED)
		i++;
	return a->tensors[i].name;
}

/* Gives the tensor of a layer the number that the layer has here; false: it is of one that is left out. */
static bool number_layer(char name[static NAME_BYTES], const struct model_config *c)
{
	static const char layers[] = "model.layers.";
	char rest[NAME_BYTES];
	int behind = 0;
	u32 layer, before = 0;

	if (strncmp(name, layers, sizeof(layers) - 1) != 0 || sscanf(name + sizeof(layers) - 1, "%9u%n", &layer, &behind) != 1 ||
	    layer >= c->layers + c->left_out_count)
		return true;
	if (c->left_out[layer])
		return false;
	for (u32 i = 0; i < layer; i++)
		before += c->left_out[i];
	snprintf(rest, sizeof(rest), "%s", name + sizeof(layers) - 1 + behind);
	snprintf(name, NAME_BYTES, "%s%u%.*s", layers, layer - before, NAME_BYTES - 32, rest);
	return true;
}

/* The embedding has rows behind the vocabulary's, which stand for images. */
static struct st_tensor without_images(const struct st_tensor *t, const char *name, const struct model_config *c)
{
	struct st_tensor part = *t;

	if (strcmp(name, embed_name(c->arch)) == 0 && t->dims == 2 && t->shape[0] == c->vocab_size + (u64)IMAGE_ROWS) {
		part.bytes = t->bytes / t->shape[0] * c->vocab_size;
		part.shape[0] = c->vocab_size;
	}
	return part;
}

static enum err add_renamed(struct additions *a, const struct model_config *c, const char *file, const char *wanted, struct err_msg *em)
{
	size_t begins = strlen(file);
	char name[NAME_BYTES];
	const bool leaves_out = arch_has_own(c->arch, "cross_attention_layers");
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < safetensors_count(a->st); i++) {
		const struct st_tensor *t = safetensors_at(a->st, i);
		if (strncmp(t->name, file, begins) != 0 || strlen(t->name) + strlen(wanted) >= NAME_BYTES)
			continue;
		if (begins == 0 && (!strncmp(t->name, wanted, strlen(wanted)) || !strncmp(t->name, "lm_head.", 8)))
			continue;
		snprintf(name, sizeof(name), "%s%s", wanted, t->name + begins);
		if (leaves_out && !number_layer(name, c))
			continue;
		const struct st_tensor part = leaves_out ? without_images(t, name, c) : *t;
		e = add(a, name, &part, em);
	}
	return e;
}

static enum err add_prefixes(struct safetensors *st, const struct model_config *c, struct err_msg *em)
{
	const char *full = embed_name(c->arch), *embed = strchr(full, '.') + 1;
	struct additions a = {.st = st};
	char name[NAME_BYTES];
	enum err e = ERR_OK;

	if (safetensors_find(st, full))
		return ERR_OK;
	if (safetensors_find(st, embed)) {
		snprintf(name, sizeof(name), "%.*s", (int)(embed - full), full);
		e = add_renamed(&a, c, "", name, em);
	}
	for (size_t i = 0; !e && i < COUNT_OF(PREFIXES); i++) {
		snprintf(name, sizeof(name), "%s%s", PREFIXES[i].file, embed);
		if (safetensors_find(st, name) || strcmp(PREFIXES[i].wanted, "model.") != 0)
			e = add_renamed(&a, c, PREFIXES[i].file, PREFIXES[i].wanted, em);
	}
	return finish(&a, e, em);
}

const char *tensor_names_of_whole(const struct safetensors *st, const char *before)
{
	const size_t bytes = strlen(before);

	for (u32 i = 0; i < safetensors_count(st); i++) {
		const char *name = safetensors_at(st, i)->name;
		for (size_t k = 0; k < COUNT_OF(PREFIXES) && strncmp(name, before, bytes) == 0; k++)
			if (strcmp(PREFIXES[k].wanted, "model.") == 0 && strncmp(name + bytes, PREFIXES[k].file, strlen(PREFIXES[k].file)) == 0)
				return PREFIXES[k].file;
	}
	return NULL;
}

/* Whether the files have BACKBONE where the table has "model.". */
static bool has_backbone(const struct safetensors *st, const struct model_config *c)
{
	const char *full = embed_name(c->arch), *embed = strchr(full, '.') + 1;
	const struct st_tensor *ours = safetensors_find(st, full);
	char name[NAME_BYTES];
	u32 i = 0;

	snprintf(name, sizeof(name), "%s%s", BACKBONE, embed);
	const struct st_tensor *theirs = safetensors_find(st, name);
	if (ours) /* is the other one by another name, or they are not those that are read */
		return theirs && theirs->data == ours->data;
	while (i < safetensors_count(st) && strncmp(safetensors_at(st, i)->name, BACKBONE, sizeof(BACKBONE) - 1) != 0)
		i++;
	return i < safetensors_count(st);
}

/* Whether a tensor's name begins at `at`, which is neither amid a longer word nor the name of a file. */
static bool begins_name(const char *text, const char *at, const char *with)
{
	static const char *const files[] = {"safetensors", "gguf"};
	const char *rest = at + strlen(with);

	if (strncmp(at, with, strlen(with)) != 0 || (at > text && !strchr(" (\"", at[-1])))
		return false;
	for (size_t i = 0; i < COUNT_OF(files); i++)
		if (!strncmp(rest, files[i], strlen(files[i])))
			return false;
	return true;
}

void tensor_names_in_file(char *text, size_t bytes, const struct safetensors *st, const struct model_config *c)
{
	static const char ours[] = "model.";
	struct buf said = {0};

	if (c->from_params) {
		mistral_names_in_file(text, bytes, c);
		return;
	}
	if (!has_backbone(st, c))
		return;
	for (const char *at = text; *at;) {
		const bool name = begins_name(text, at, ours);
		buf_append(&said, name ? BACKBONE : at, name ? strlen(BACKBONE) : 1);
		at += name ? strlen(ours) : 1;
	}
	if (buf_ok(&said) && said.data)
		snprintf(text, bytes, "%.*s", (int)said.bytes, said.data);
	buf_fini(&said);
}

/* ---------------------------------------------------------------- experts in one tensor */

/* Behind "model.layers.{}.", what all experts of a layer may lie in, and what routes to them where families have named it
 * otherwise before, or do so when they are not saved but dumped. */
static const struct {
	const char *file;
	enum weight_slot slot;
} FUSED[] = {
	{"mlp.experts.gate_up_proj", SLOT_EXPERT_GATE_UP},
	{"mlp.experts.down_proj", SLOT_EXPERT_DOWN},
	{"feed_forward.experts.gate_up_proj", SLOT_EXPERT_GATE_UP},
	{"feed_forward.experts.down_proj", SLOT_EXPERT_DOWN},
	{"mixer.experts.up_proj", SLOT_EXPERT_GATE_UP},
	{"mixer.experts.down_proj", SLOT_EXPERT_DOWN},
	{"experts.gate_up_proj", SLOT_EXPERT_GATE_UP},
	{"experts.down_proj", SLOT_EXPERT_DOWN},
	{"block_sparse_moe.input_linear.weight", SLOT_EXPERT_GATE_UP},
	{"block_sparse_moe.output_linear.weight", SLOT_EXPERT_DOWN},
	{"mlp.input_linear.weight", SLOT_EXPERT_GATE_UP},
	{"mlp.output_linear.weight", SLOT_EXPERT_DOWN},
	{"self_attention.experts.input_linear.weight", SLOT_HEADS_IN},
	{"self_attention.experts.output_linear.weight", SLOT_HEADS_OUT},
	{"block_sparse_moe.experts.gate_up_proj", SLOT_EXPERT_GATE_UP},
	{"block_sparse_moe.experts.down_proj", SLOT_EXPERT_DOWN},
};
static const struct {
	const char *file;
	enum weight_slot slot;
} ROUTERS[] = {
	{"mlp.gate.weight", SLOT_ROUTER},
	{"block_sparse_moe.router.weight", SLOT_ROUTER},
	{"mlp.router.weight", SLOT_ROUTER},
	{"mlp.gate.moe_statics.e_score_correction_bias", SLOT_CHOICE_BIAS},
	{"mlp.e_score_correction_bias", SLOT_CHOICE_BIAS},
};

/* Expert `x`'s rows [first, first + rows) of one that has `whole`. */
static struct st_tensor expert_part(const struct st_tensor *t, u64 x, u64 whole, u64 first, u64 rows)
{
	struct st_tensor part = *t;
	u64 row_bytes = t->bytes / (t->shape[0] * whole);

	part.dims = 2;
	part.shape[0] = rows;
	part.shape[1] = t->shape[2];
	part.data = (const char *)t->data + (x * whole + first) * row_bytes;
	part.bytes = rows * row_bytes;
	return part;
}

static enum err check_shape(const struct st_tensor *t, u32 experts, u32 rows, u32 columns, struct err_msg *em)
{
	const u64 shape[3] = {experts, rows, columns};
	char found[128], wanted[128];

	if (t->dims == 3 && !memcmp(t->shape, shape, sizeof(shape)))
		return ERR_OK;
	safetensors_print_shape(found, sizeof(found), t->shape, t->dims);
	safetensors_print_shape(wanted, sizeof(wanted), shape, 3);
	return err_set(em, ERR_FORMAT, "%s: tensor %s has the shape %s; by config.json it must be %s", t->file, t->name,
		       found, wanted);
}

/* The parts of the fused tensor `file` of `layer`, which are those of `slot`. */
static enum err add_experts(struct additions *a, const struct model_config *c, u32 layer, const char *file,
			    enum weight_slot slot, struct err_msg *em)
{
	char name[NAME_BYTES];
	const bool heads = slot == SLOT_HEADS_IN || slot == SLOT_HEADS_OUT, down = slot == SLOT_EXPERT_DOWN || slot == SLOT_HEADS_OUT;
	const u32 parts = down || heads || c->arch->ungated ? 1 : 2, width = c->experts_narrow > 0 ? c->experts_narrow : c->hidden;
	const u32 inner = heads ? c->kv_heads * c->head_dim : c->expert_intermediate, rows = down ? width : inner, columns = down ? inner : width;
	u32 first = 0;

	snprintf(name, sizeof(name), "model.layers.%u.%s", layer, file);
	const struct st_tensor *t = safetensors_find(a->st, name);
	if (!t)
		return ERR_OK;
	enum err e = check_shape(t, c->experts, parts * rows, columns, em);
	for (u32 i = 0; i < c->arch->tensor_count; i++) {
		const struct arch_tensor *part = &c->arch->tensors[i];
		if (part->slot != slot)
			continue;
		for (u32 x = 0; !e && x < c->experts; x++) {
			struct st_tensor view = expert_part(t, x, parts * rows, first, rows);
			arch_tensor_name(name, sizeof(name), part, layer, x);
			e = add(a, name, &view, em);
		}
		first += rows;
	}
	return e;
}

/* Experts one by one of a layer's stacks, of which gate and up have one each. */
static enum err add_stacked(struct additions *a, const struct model_config *c, u32 layer, struct err_msg *em)
{
	static const struct {
		const char *file, *end;
		bool down;
	} known[] = {{"gate_proj", ".gate_proj.weight", false}, {"up_proj", ".up_proj.weight", false}, {"down_proj", ".down_proj.weight", true}};
	char name[NAME_BYTES];
	enum err e = ERR_OK;

	for (size_t k = 0; !e && k < COUNT_OF(known); k++) {
		const u32 rows = known[k].down ? c->hidden : c->expert_intermediate, columns = known[k].down ? c->expert_intermediate : c->hidden;
		snprintf(name, sizeof(name), "model.layers.%u.moe.%s.weight", layer, known[k].file);
		const struct st_tensor *t = safetensors_find(a->st, name);
		e = t ? check_shape(t, c->experts, rows, columns, em) : ERR_OK;
		for (u32 x = 0; !e && t && x < c->experts; x++) {
			const struct st_tensor view = expert_part(t, x, rows, 0, rows);
			snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%u%s", layer, x, known[k].end);
			e = add(a, name, &view, em);
		}
	}
	return e;
}

/* What the names of all tensors of a layer's experts begin with, by that of one of them. */
static void experts_prefix(char *out, size_t bytes, const struct arch_tensor *part, u32 layer)
{
	static const char word[] = ".experts.";

	arch_tensor_name(out, bytes, part, layer, 0);
	strstr(out, word)[sizeof(word) - 1] = 0;
}

/* Experts one by one of a tensor [experts][ .. ][ .. ], under the names that `part` has for them and then `suffix`. What
 * shape they must have is checked where they are looked for. */
static enum err add_slices(struct additions *a, const struct model_config *c, u32 layer, const char *file,
			   const struct arch_tensor *part, const char *suffix, struct err_msg *em)
{
	char name[NAME_BYTES];
	enum err e = ERR_OK;

	experts_prefix(name, sizeof(name), part, layer);
	snprintf(name + strlen(name), sizeof(name) - strlen(name), "%s", file);
	const struct st_tensor *t = safetensors_find(a->st, name);
	if (!t)
		return ERR_OK;
	if (t->dims < 2 || t->shape[0] != c->experts) {
		char found[128];
		safetensors_print_shape(found, sizeof(found), t->shape, t->dims);
		return err_set(em, ERR_FORMAT, "%s: tensor %s has the shape %s; by config.json its first dimension must be %u",
			       t->file, t->name, found, c->experts);
	}
	struct st_tensor one = *t;
	one.dims--;
	memmove(one.shape, one.shape + 1, one.dims * sizeof(*one.shape));
	one.bytes = t->bytes / c->experts;
	for (u32 x = 0; !e && x < c->experts; x++) {
		one.data = (const char *)t->data + x * one.bytes;
		arch_tensor_name(name, sizeof(name), part, layer, x);
		snprintf(name + strlen(name), sizeof(name) - strlen(name), "%s", suffix);
		e = add(a, name, &one, em);
	}
	return e;
}

/* One matrix that is there plain and in MXFP4: nobody knows which it is. */
static enum err check_once(const struct safetensors *st, u32 layer, const char *file, struct err_msg *em)
{
	char name[NAME_BYTES], blocks[NAME_BYTES];

	snprintf(name, sizeof(name), "model.layers.%u.mlp.experts.%s", layer, file);
	snprintf(blocks, sizeof(blocks), "%.200s_blocks", name);
	const struct st_tensor *t = safetensors_find(st, name), *b = safetensors_find(st, blocks);
	if (!t || !b)
		return ERR_OK;
	return err_set(em, ERR_FORMAT, "the checkpoint has tensors %s (%s) and %s (%s), which are the same matrix; one of them must go", name,
		       t->file, blocks, b->file);
}

/* What families whose experts are always in one tensor call it: plain, or in MXFP4 its two parts. */
static enum err add_sliced(struct additions *a, const struct model_config *c, u32 layer, struct err_msg *em)
{
	static const struct {
		enum weight_slot slot;
		const char *file, *suffix;
	} known[] = {
		{SLOT_EXPERT_GATE_UP, "gate_up_proj", ""},
		{SLOT_EXPERT_GATE_UP, "gate_up_proj_blocks", "_blocks"},
		{SLOT_EXPERT_GATE_UP, "gate_up_proj_scales", "_scales"},
		{SLOT_EXPERT_DOWN, "down_proj", ""},
		{SLOT_EXPERT_DOWN, "down_proj_blocks", "_blocks"},
		{SLOT_EXPERT_DOWN, "down_proj_scales", "_scales"},
	};
	enum err e = check_once(a->st, layer, "gate_up_proj", em);

	if (!e)
		e = check_once(a->st, layer, "down_proj", em);
	for (size_t k = 0; !e && k < COUNT_OF(known); k++)
		for (u32 i = 0; !e && i < c->arch->tensor_count; i++)
			if (c->arch->tensors[i].slot == known[k].slot && c->arch->tensors[i].before == DIM_NONE && !c->arch->tensors[i].apart) /* one for all parts */
				e = add_slices(a, c, layer, known[k].file, &c->arch->tensors[i], known[k].suffix, em);
	return e;
}

static enum err add_router(struct additions *a, const struct model_config *c, u32 layer, const char *file,
			   enum weight_slot slot, struct err_msg *em)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), "model.layers.%u.%s", layer, file);
	const struct st_tensor *t = safetensors_find(a->st, name);
	for (u32 i = 0; t && i < c->arch->tensor_count; i++)
		if (c->arch->tensors[i].slot == slot) {
			arch_tensor_name(name, sizeof(name), &c->arch->tensors[i], layer, 0);
			if (!safetensors_find(a->st, name))
				return add(a, name, t, em);
		}
	return ERR_OK;
}

static enum err add_fused(struct safetensors *st, const struct model_config *c, struct err_msg *em)
{
	struct additions a = {.st = st};
	enum err e = ERR_OK;

	for (u32 layer = 0; !e && layer < c->layers; layer++) {
		if (!(c->layer_flags[layer] & LAYER_EXPERTS))
			continue;
		if (c->arch->whole_experts) {
			e = add_sliced(&a, c, layer, em);
			continue;
		}
		if (arch_has_own(c->arch, "moe_layers_enum"))
			e = add_stacked(&a, c, layer, em);
		for (size_t i = 0; !e && i < COUNT_OF(FUSED); i++)
			e = add_experts(&a, c, layer, FUSED[i].file, FUSED[i].slot, em);
		for (size_t i = 0; !e && i < COUNT_OF(ROUTERS); i++)
			e = add_router(&a, c, layer, ROUTERS[i].file, ROUTERS[i].slot, em);
	}
	return finish(&a, e, em);
}

/* ---------------------------------------------------------------- other names */

/* What some files call what others, and the table, do. */
static const struct {
	const char *file, *wanted;
} OTHERS[] = {
	{"mlp.shared_experts.", "mlp.shared_mlp."},
	{".mamba_decoder.", "."}, /* of Zamba 2, of layers with a shared block */
	{"self_attn.g_proj.", "self_attn.gate_proj."},
	{".feedforward_layer_norm.", ".post_attention_layernorm."}, /* of OLMo Hybrid, where transformers names norms of all layers as those of recurrent ones */
	{".mlp.post_mlp_layernorm.", ".post_mlp_layernorm."},
	{".mlp.shared_expert.", ".mlp.shared_experts."},
	{".mlp.experts.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
	{".hc_pre.hc_attn_layer.hc_", ".attn_hc."}, /* of Hy4; what transformers saves has other gates under its name of those of heads as well */
	{".hc_pre.hc_mlp_layer.hc_", ".ffn_hc."},
	{".hc_pre.hc_head.hc_head_", ".hc_head.hc_"},
	{".hc_head.hc_pre.hc_head_", ".hc_head.hc_"},
	{".hc_attn_layer.hc_pre.hc_", ".attn_hc."},
	{".hc_mlp_layer.hc_pre.hc_", ".ffn_hc."},
	{".learnable_sink_param", ".sinks"},
	{".linear_gate.", ".gate_proj."},
	{".moe.gate.", ".mlp.gate."}, /* of Step 3.5 */
	{".moe.router_bias", ".mlp.gate.e_score_correction_bias"},
	{".share_expert.", ".mlp.shared_experts."},
	{".moe.router.expert_bias", ".mlp.gate.e_score_correction_bias"},
	{".mlp.fc1.", ".W_down."}, /* of A.X K2, by transformers */
	{".mlp.fc2.", ".W_up."},
	{".q_gate_proj.", ".q_b_proj."},
	{".post_attn_norm.", ".post_self_attn_layernorm."},
	{".post_ffn_norm.", ".post_mlp_layernorm."},
};

static bool names_any(const struct arch *a, const char *part)
{
	for (u32 i = 0; i < a->tensor_count; i++)
		if (strstr(a->tensors[i].name, part))
			return true;
	return false;
}

/* Of matrices in fewer bits, whose parts have names of their own behind that of the module, too. */
static enum err add_other(struct additions *a, const char *file, const char *wanted, struct err_msg *em)
{
	char name[NAME_BYTES];
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < safetensors_count(a->st); i++) {
		const struct st_tensor *t = safetensors_at(a->st, i);
		const char *at = strstr(t->name, file);
		if (!at || strlen(t->name) + strlen(wanted) >= NAME_BYTES)
			continue;
		snprintf(name, sizeof(name), "%.*s%s%s", (int)(at - t->name), t->name, wanted, at + strlen(file));
		if (!safetensors_find(a->st, name))
			e = add(a, name, t, em);
	}
	return e;
}

static enum err add_others(struct safetensors *st, const struct model_config *c, struct err_msg *em)
{
	struct additions a = {.st = st};
	enum err e = ERR_OK;

	for (size_t k = 0; !e && k < COUNT_OF(OTHERS); k++)
		if (names_any(c->arch, OTHERS[k].wanted))
			e = add_other(&a, OTHERS[k].file, OTHERS[k].wanted, em);
	return finish(&a, e, em);
}

/* Matrices to which adapters for images and sound are added have names of such: of text they are all. */
static enum err add_bases(struct safetensors *st, const struct model_config *c, struct err_msg *em)
{
	static const char base[] = ".base_layer.";
	struct additions a = {.st = st};
	char name[NAME_BYTES];
	enum err e = ERR_OK;

	for (u32 i = 0; !e && arch_has_own(c->arch, "vision_lora") && i < safetensors_count(st); i++) {
		const struct st_tensor *t = safetensors_at(st, i);
		const char *at = strstr(t->name, base);
		if (!at || strlen(t->name) >= NAME_BYTES)
			continue;
		snprintf(name, sizeof(name), "%.*s.%s", (int)(at - t->name), t->name, at + sizeof(base) - 1);
		e = add(&a, name, t, em);
	}
	return finish(&a, e, em);
}

enum err tensor_names_add(struct safetensors *st, const struct model_config *c, struct err_msg *em)
{
	if (c->from_params)
		return mistral_names_add(st, c, em);
	enum err e = add_prefixes(st, c, em);
	if (!e)
		e = add_bases(st, c, em);
	if (!e)
		e = add_others(st, c, em);
	if (!e && c->arch->shared_blocks)
		e = tensor_names_add_shared(st, c, em);
	return e ? e : add_fused(st, c, em);
}

static void find_head(const struct safetensors *st, struct model_config *c)
{
	static const char head[] = "lm_head.";

	for (u32 i = 0; c->tied_headless && i < safetensors_count(st); i++)
		if (!strncmp(safetensors_at(st, i)->name, head, sizeof(head) - 1))
			c->tied_embeddings = c->tied_headless = c->headless = false;
}

static void find_bias(const struct safetensors *st, struct model_config *c)
{
	char name[NAME_BYTES];

	for (u32 i = 0; i < c->arch->tensor_count && !arch_has_own(c->arch, "use_expert_bias"); i++)
		for (u32 layer = 0; layer < c->layers && c->arch->tensors[i].when == WHEN_CHOICE_BIAS; layer++) {
			arch_tensor_name(name, sizeof(name), &c->arch->tensors[i], layer, 0);
			c->choice_bias |= c->layer_flags[layer] & LAYER_EXPERTS && safetensors_find(st, name);
		}
}

void tensor_names_find_unsaid(const struct safetensors *st, struct model_config *c)
{
	find_head(st, c);
	find_bias(st, c);
	tensor_names_find_blocks(st, c);
}
