/* Owns the tables of names that tensors have in GGUF files (gguf, constants.py and tensor_mapping.py). Runs in the worker while it
 * loads. Copies no matrix: what it makes are names for places in the mapped files. */
#include "proc_worker/model/gguf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

enum {
	NAME_BYTES = 256,
	EXPERTS_MAX = 1 << 16,
	TENSORS_MAX = 1024 * 1024,
	TABLES_MAX = 4,
};

/* Without ".weight" and ".bias" at the end, which are the same in both. "{}" is the expert; where it is not in the file's name, too, the
 * tensor has all of them. */
struct name {
	const char *file, *here;
	bool flat;     /* its one row is a vector in the file */
	bool heads;    /* of three dimensions, the first two of which are one here */
	bool vector;   /* a vector here, whatever dimensions it has in the file */
	bool channels; /* a convolution: each channel is of one input, which the file leaves out */
	bool turns;    /* rows take turns with those of the tensor of up, which has no row of its own in the table */
	bool bare;     /* without ".weight" or ".bias" here */
};

/* clang-format off */
static const struct name WHOLE[] = {
	{"token_embd", "model.embed_tokens"},
	{"output_norm", "model.norm"},
	{"output", "lm_head"},
	{NULL, NULL},
};

static const struct name WHOLE_LFM2[] = {
	{"token_embd_norm", "model.embedding_norm"},
	{NULL, NULL},
};

static const struct name WHOLE_NEMOTRON_H[] = {
	{"token_embd", "model.embeddings"},
	{"output_norm", "model.norm_f"},
	{NULL, NULL},
};

/* What follows is of layers. */
static const struct name USUAL[] = {
	{"attn_norm", "input_layernorm"},
	{"attn_q", "self_attn.q_proj"},
	{"attn_k", "self_attn.k_proj"},
	{"attn_v", "self_attn.v_proj"},
	{"attn_qkv", "self_attn.qkv_proj"},
	{"attn_output", "self_attn.o_proj"},
	{"attn_q_norm", "self_attn.q_norm"},
	{"attn_k_norm", "self_attn.k_norm"},
	{"ffn_norm", "post_attention_layernorm"},
	{"ffn_gate", "mlp.gate_proj"},
	{"ffn_up", "mlp.up_proj"},
	{"ffn_down", "mlp.down_proj"},
	{"ffn_gate_inp", "mlp.gate"},
	{"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
	{"ffn_up_exps", "mlp.experts.{}.up_proj"},
	{"ffn_down_exps", "mlp.experts.{}.down_proj"},
	{NULL, NULL},
};

static const struct name MIXTRAL[] = {
	{"ffn_gate_inp", "block_sparse_moe.gate"},
	{"ffn_gate_exps", "block_sparse_moe.experts.{}.w1"},
	{"ffn_up_exps", "block_sparse_moe.experts.{}.w3"},
	{"ffn_down_exps", "block_sparse_moe.experts.{}.w2"},
	/* in the first files, where each expert has tensors of its own */
	{"ffn_gate.{}", "block_sparse_moe.experts.{}.w1"},
	{"ffn_up.{}", "block_sparse_moe.experts.{}.w3"},
	{"ffn_down.{}", "block_sparse_moe.experts.{}.w2"},
	{NULL, NULL},
};

static const struct name GRANITE_MOE[] = {
	{"ffn_gate_inp", "block_sparse_moe.router.layer"},
	{"ffn_gate_exps", "block_sparse_moe.experts.{}.gate_proj"},
	{"ffn_up_exps", "block_sparse_moe.experts.{}.up_proj"},
	{"ffn_down_exps", "block_sparse_moe.experts.{}.down_proj"},
	{NULL, NULL},
};

static const struct name SHARED_EXPERT[] = {
	{"ffn_gate_inp_shexp", "mlp.shared_expert_gate", .flat = true},
	{"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
	{"ffn_up_shexp", "mlp.shared_expert.up_proj"},
	{"ffn_down_shexp", "mlp.shared_expert.down_proj"},
	{NULL, NULL},
};

static const struct name SHARED_EXPERTS[] = {
	{"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
	{"ffn_up_shexp", "mlp.shared_experts.up_proj"},
	{"ffn_down_shexp", "mlp.shared_experts.down_proj"},
	{"exp_probs_b", "mlp.gate.e_score_correction_bias", .bare = true},
	{NULL, NULL},
};

static const struct name LATENT[] = {
	{"attn_q_a", "self_attn.q_a_proj"},
	{"attn_q_a_norm", "self_attn.q_a_layernorm"},
	{"attn_q_b", "self_attn.q_b_proj"},
	{"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
	{"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
	{"attn_kv_b", "self_attn.kv_b_proj"},
	/* or in two, head by head: that of keys turned, [heads][latents][keys], and [heads][values][latents] */
	{"attn_k_b", "self_attn.k_b_proj", .heads = true},
	{"attn_v_b", "self_attn.v_b_proj", .heads = true},
	{NULL, NULL},
};

static const struct name GATE_UP[] = {
	{"ffn_up", "mlp.gate_up_proj"},
	{NULL, NULL},
};

/* Norms of what blocks read and of what they add. */
static const struct name GEMMA2[] = {
	{"post_attention_norm", "post_attention_layernorm"},
	{"ffn_norm", "pre_feedforward_layernorm"},
	{"post_ffw_norm", "post_feedforward_layernorm"},
	{NULL, NULL},
};

static const struct name GLM4[] = {
	{"post_attention_norm", "post_self_attn_layernorm"},
	{"post_ffw_norm", "post_mlp_layernorm"},
	{NULL, NULL},
};

/* Norms of what blocks add only, or the one of what the MLP reads by the place where it is. */
static const struct name NORMS_BEHIND[] = {
	{"post_attention_norm", "post_attention_layernorm"},
	{"post_ffw_norm", "post_feedforward_layernorm"},
	{NULL, NULL},
};

static const struct name STARCODER2[] = {
	{"ffn_up", "mlp.c_fc"},
	{"ffn_down", "mlp.c_proj"},
	{NULL, NULL},
};

static const struct name HUNYUAN[] = {
	{"attn_q_norm", "self_attn.query_layernorm"},
	{"attn_k_norm", "self_attn.key_layernorm"},
	{NULL, NULL},
};

/* Layers that keep a state, and those of attention with other names than usual. */
static const struct name LFM2[] = {
	{"attn_norm", "operator_norm"},
	{"attn_output", "self_attn.out_proj"},
	{"attn_q_norm", "self_attn.q_layernorm"},
	{"attn_k_norm", "self_attn.k_layernorm"},
	{"shortconv.in_proj", "conv.in_proj"},
	{"shortconv.conv", "conv.conv", .channels = true},
	{"shortconv.out_proj", "conv.out_proj"},
	{"ffn_norm", "ffn_norm"},
	{"ffn_gate", "feed_forward.w1"},
	{"ffn_up", "feed_forward.w3"},
	{"ffn_down", "feed_forward.w2"},
	{"ffn_gate_inp", "feed_forward.gate"},
	{"ffn_gate_exps", "feed_forward.experts.{}.w1"},
	{"ffn_up_exps", "feed_forward.experts.{}.w3"},
	{"ffn_down_exps", "feed_forward.experts.{}.w2"},
	{"exp_probs_b", "feed_forward.expert_bias", .bare = true},
	{NULL, NULL},
};

static const struct name DELTA_RULE[] = {
	{"attn_qkv", "linear_attn.in_proj_qkv"},
	{"attn_gate", "linear_attn.in_proj_z"},
	{"ssm_in", "linear_attn.in_proj_qkvz"}, /* in the first files, instead of these two */
	{"ssm_beta", "linear_attn.in_proj_b"},
	{"ssm_alpha", "linear_attn.in_proj_a"},
	{"ssm_ba", "linear_attn.in_proj_ba"},
	{"ssm_conv1d", "linear_attn.conv1d", .channels = true},
	{"ssm_a", "linear_attn.A_log", .vector = true},
	{"ssm_dt", "linear_attn.dt_bias", .bare = true},
	{"ssm_norm", "linear_attn.norm"},
	{"ssm_out", "linear_attn.out_proj"},
	{NULL, NULL},
};

#define MAMBA(at) \
	{"ssm_in", at "in_proj"}, {"ssm_conv1d", at "conv1d", .channels = true}, {"ssm_a", at "A_log", .vector = true}, \
	{"ssm_d", at "D", .vector = true}, {"ssm_dt", at "dt_bias", .bare = true}, {"ssm_norm", at "norm", .vector = true}, \
	{"ssm_out", at "out_proj"}

static const struct name GRANITE_SHARED[] = {
	{"ffn_gate_shexp", "shared_mlp.gate_proj"},
	{"ffn_up_shexp", "shared_mlp.up_proj"},
	{"ffn_down_shexp", "shared_mlp.output_linear"},
	{NULL, NULL},
};

static const struct name GRANITE_HYBRID[] = {
	MAMBA("mamba."),
	/* of models without experts */
	{"ffn_gate", "shared_mlp.gate_proj"},
	{"ffn_up", "shared_mlp.up_proj"},
	{"ffn_down", "shared_mlp.output_linear"},
	{NULL, NULL},
};

static const struct name NEMOTRON_H[] = {
	MAMBA("mixer."),
	{"attn_norm", "norm"},
	{"attn_q", "mixer.q_proj"},
	{"attn_k", "mixer.k_proj"},
	{"attn_v", "mixer.v_proj"},
	{"attn_output", "mixer.o_proj"},
	{"ffn_up", "mixer.up_proj"},
	{"ffn_down", "mixer.down_proj"},
	{"ffn_gate_inp", "mixer.gate"},
	{"exp_probs_b", "mixer.gate.e_score_correction_bias", .bare = true},
	{"ffn_up_exps", "mixer.experts.{}.up_proj"},
	{"ffn_down_exps", "mixer.experts.{}.down_proj"},
	{"ffn_up_shexp", "mixer.shared_experts.up_proj"},
	{"ffn_down_shexp", "mixer.shared_experts.down_proj"},
	{NULL, NULL},
};

static const struct name HUNYUAN_MOE[] = {
	{"ffn_gate_inp", "mlp.gate.wg"},
	{"ffn_gate_shexp", "mlp.shared_mlp.gate_proj"},
	{"ffn_up_shexp", "mlp.shared_mlp.up_proj"},
	{"ffn_down_shexp", "mlp.shared_mlp.down_proj"},
	{NULL, NULL},
};

static const struct name ERNIE_MOE[] = {
	{"exp_probs_b", "mlp.moe_statics.e_score_correction_bias", .flat = true, .bare = true},
	{NULL, NULL},
};

static const struct name GPT_OSS[] = {
	{"attn_sinks", "self_attn.sinks", .bare = true},
	{"ffn_gate_inp", "mlp.router"},
	{"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias", .bare = true, .turns = true},
	{"ffn_down_exps.bias", "mlp.experts.down_proj_bias", .bare = true},
	{"ffn_gate_exps", "mlp.experts.{}.gate_up", .turns = true},
	{"ffn_down_exps", "mlp.experts.{}.down"},
	{"ffn_up_exps", NULL},
	{NULL, NULL},
};

static const struct name CHOICE_BIAS[] = {
	{"exp_probs_b", "block_sparse_moe.e_score_correction_bias", .bare = true},
	{NULL, NULL},
};

/* "general.architecture", and what it has beside the usual names, or for some of them. */
static const struct {
	const char *name;
	const struct name *tables[TABLES_MAX]; /* of layers */
	const struct name *whole;
} ARCHITECTURES[] = {
	{"llama", {MIXTRAL}},
	{"mistral3", {MIXTRAL}},
	{"qwen2", {0}},
	{"qwen3", {0}},
	{"qwen2vl", {0}},
	{"qwen3vl", {0}},
	{"qwen2moe", {SHARED_EXPERT}},
	{"qwen3moe", {0}},
	{"phi3", {GATE_UP}},
	{"gemma", {0}},
	{"gemma2", {GEMMA2}},
	{"gemma3", {GEMMA2}},
	{"granite", {0}},
	{"granitemoe", {GRANITE_MOE, GRANITE_SHARED}},
	{"smollm3", {0}},
	{"starcoder2", {STARCODER2}},
	{"stablelm", {0}},
	{"nemotron", {0}},
	{"arcee", {0}},
	{"olmo", {0}},
	{"olmo2", {NORMS_BEHIND}},
	{"olmoe", {0}},
	{"exaone4", {NORMS_BEHIND}},
	{"seed_oss", {NORMS_BEHIND}},
	{"command-r", {0}},
	{"cohere2", {0}},
	{"glm4", {GATE_UP, GLM4}},
	{"glm4moe", {SHARED_EXPERTS, NORMS_BEHIND}},
	{"hunyuan-dense", {HUNYUAN}},
	{"internlm2", {0}},
	{"ernie4_5", {0}},
	{"deepseek2", {LATENT, SHARED_EXPERTS}},
	{"minicpm3", {LATENT}},
	{"ernie4_5-moe", {ERNIE_MOE, SHARED_EXPERTS}},
	{"hunyuan-moe", {HUNYUAN, HUNYUAN_MOE}},
	{"gpt-oss", {GPT_OSS, NORMS_BEHIND}},
	{"qwen3vlmoe", {0}},
	{"minimax-m2", {CHOICE_BIAS, MIXTRAL}},
	{"dots1", {SHARED_EXPERTS}},
	{"minicpm", {0}},
	{"lfm2", {LFM2}, WHOLE_LFM2},
	{"lfm2moe", {LFM2}, WHOLE_LFM2},
	{"qwen3next", {DELTA_RULE, SHARED_EXPERT, NORMS_BEHIND}},
	{"qwen35", {DELTA_RULE, NORMS_BEHIND}},
	{"qwen35moe", {DELTA_RULE, SHARED_EXPERT, NORMS_BEHIND}},
	{"granitehybrid", {GRANITE_HYBRID, GRANITE_MOE, GRANITE_SHARED}},
	{"nemotron_h", {NEMOTRON_H}, WHOLE_NEMOTRON_H},
	{"nemotron_h_moe", {NEMOTRON_H}, WHOLE_NEMOTRON_H},
};
/* clang-format on */

/* ---------------------------------------------------------------- one tensor */

/* A name in pieces: "blk.7.attn_q.weight". */
struct parts {
	bool of_layer;
	u32 layer;
	char stem[NAME_BYTES]; /* "attn_q", or "ffn_up.{}" of "ffn_up.3", whose expert is 3 */
	u32 expert;
	const char *end; /* ".weight", ".bias" or "" */
};

/* A number at the end of a stem. */
static void take_expert(struct parts *p)
{
	char *dot = strrchr(p->stem, '.');
	int behind = 0;

	if (dot && dot[1] >= '0' && dot[1] <= '9' && sscanf(dot, ".%9u%n", &p->expert, &behind) == 1 && !dot[behind])
		snprintf(dot, (size_t)(p->stem + sizeof(p->stem) - dot), ".{}");
}

static void take_apart(struct parts *p, const char *name)
{
	static const char *const ends[] = {".weight", ".bias"};
	int behind = 0;

	p->of_layer = sscanf(name, "blk.%9u.%n", &p->layer, &behind) == 1 && behind > 0;
	snprintf(p->stem, sizeof(p->stem), "%s", name + (p->of_layer ? behind : 0));
	p->end = "";
	for (size_t i = 0; i < COUNT_OF(ends); i++) {
		size_t bytes = strlen(p->stem), end = strlen(ends[i]);
		if (bytes > end && strcmp(p->stem + bytes - end, ends[i]) == 0) {
			p->stem[bytes - end] = 0;
			p->end = ends[i];
			break;
		}
	}
	take_expert(p);
}

static const struct name *find_in(const struct name *table, const char *stem)
{
	for (; table && table->file; table++)
		if (!strcmp(table->file, stem))
			return table;
	return NULL;
}

/* NULL: in no table. */
static const struct name *find_name(size_t architecture, const struct parts *p)
{
	const struct name *found = NULL;
	char whole[NAME_BYTES + 8];

	if (!p->of_layer) {
		found = find_in(ARCHITECTURES[architecture].whole, p->stem);
		return found ? found : find_in(WHOLE, p->stem);
	}
	snprintf(whole, sizeof(whole), "%s%s", p->stem, p->end);
	for (size_t i = 0; i < TABLES_MAX && !found; i++) {
		found = find_in(ARCHITECTURES[architecture].tables[i], whole);
		found = found ? found : find_in(ARCHITECTURES[architecture].tables[i], p->stem);
	}
	return found ? found : find_in(USUAL, p->stem);
}

static void fill(struct st_tensor *t, const struct gguf_tensor *from)
{
	*t = (struct st_tensor){.file = from->file,
				.dtype_name = gguf_type_name(from->type),
				.block_type = from->type,
				.dims = from->dims,
				.data = from->data,
				.bytes = from->bytes,
				.usable = from->type == GGUF_F32 || from->type == GGUF_F16 || from->type == GGUF_BF16,
				/* what blocks become where nothing else is asked for */
				.dtype = from->type == GGUF_F32 ? KERN_F32 : from->type == GGUF_F16 ? KERN_F16 : KERN_BF16};
	memcpy(t->shape, from->shape, from->dims * sizeof(*t->shape));
}

/* ---------------------------------------------------------------- all of them */

struct list {
	struct st_tensor *tensors;
	u32 count, capacity;
	struct arena *arena;
};

static enum err add(struct list *l, const struct st_tensor *t, const char *name, struct err_msg *em)
{
	if (l->count == TENSORS_MAX)
		return err_set(em, ERR_TOO_LONG, "%s: more than %d tensors, experts counted one by one", t->file, TENSORS_MAX);
	if (l->count == l->capacity) {
		u32 capacity = l->capacity ? 2 * l->capacity : 256;
		struct st_tensor *grown = realloc(l->tensors, capacity * sizeof(*grown));
		if (!grown)
			return err_set(em, ERR_NO_MEMORY, "out of memory");
		l->tensors = grown;
		l->capacity = capacity;
	}
	struct st_tensor *added = &l->tensors[l->count];
	*added = *t;
	added->name = arena_strdup(l->arena, name);
	added->dtype_name = arena_strdup(l->arena, t->dtype_name); /* of types that are not known it is a buffer's */
	if (!added->name || !added->dtype_name)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	l->count++;
	return ERR_OK;
}

/* [experts][rows][columns], or vectors. */
static enum err add_experts(struct list *l, const struct parts *p, const struct name *n, const struct st_tensor *all, struct err_msg *em)
{
	const char *hole = strstr(n->here, "{}");
	struct st_tensor one = *all;
	char name[NAME_BYTES];
	enum err e = ERR_OK;
	u64 experts = all->shape[0];

	if (all->dims < 2 || experts > EXPERTS_MAX)
		return err_set(em, ERR_FORMAT, "%s: tensor blk.%u.%s%s must have a dimension of experts, at most %d, and one or two more", all->file,
			       p->layer, p->stem, p->end, EXPERTS_MAX);
	one.dims--;
	memmove(one.shape, one.shape + 1, one.dims * sizeof(*one.shape));
	const u64 bytes = all->bytes / experts;
	one.bytes = all->turns ? 2 * bytes : bytes;
	one.shape[0] *= all->turns ? 2 : 1;
	for (u64 x = 0; !e && x < experts; x++) {
		one.data = all->data ? (const char *)all->data + x * bytes : NULL;
		one.turns = all->turns ? (const char *)all->turns + x * bytes : NULL;
		snprintf(name, sizeof(name), "model.layers.%u.%.*s%llu%s%s", p->layer, (int)(hole - n->here), n->here, (unsigned long long)x,
			 hole + 2, p->end);
		e = add(l, &one, name, em);
	}
	return e;
}

/* The same elements in the dimensions that they have here. A file has no more elements than can be counted. */
static void reshape(struct st_tensor *t, const struct name *n)
{
	if (n->flat && t->dims == 1) {
		t->dims = 2;
		t->shape[1] = t->shape[0];
		t->shape[0] = 1;
	}
	if (n->channels && t->dims == 2) {
		t->dims = 3;
		t->shape[2] = t->shape[1];
		t->shape[1] = 1;
	}
	if (n->heads && t->dims == 3) {
		t->dims = 2;
		t->shape[0] *= t->shape[1];
		t->shape[1] = t->shape[2];
	}
	while (n->vector && t->dims > 1)
		t->shape[0] *= t->shape[--t->dims];
}

/* Biases of all experts [experts][values], two of them, whose values take turns. */
static enum err add_turns(struct list *l, struct st_tensor *t, const void *up, const char *name, struct err_msg *em)
{
	const u64 count = t->bytes / sizeof(float);
	float *both = arena_alloc(l->arena, 2 * count * sizeof(float));

	if (!both)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	for (u64 i = 0; i < count; i++) {
		memcpy(&both[2 * i], (const char *)t->data + i * sizeof(float), sizeof(float));
		memcpy(&both[2 * i + 1], (const char *)up + i * sizeof(float), sizeof(float));
	}
	t->data = both;
	t->bytes *= 2;
	t->shape[1] *= 2;
	return add(l, t, name, em);
}

/* Of a tensor of gate that of up, which must be like it. */
static enum err find_up(const struct gguf_tensor **out, const struct gguf *g, const struct parts *p, const struct gguf_tensor *gate,
			struct err_msg *em)
{
	const bool bias = strcmp(p->end, ".bias") == 0;
	char name[64];

	snprintf(name, sizeof(name), "blk.%u.ffn_up_exps%s", p->layer, p->end);
	const struct gguf_tensor *up = *out = gguf_tensor_find(g, name);
	if (!up || up->type != gate->type || up->dims != gate->dims || memcmp(up->shape, gate->shape, up->dims * sizeof(*up->shape)) != 0)
		return err_set(em, ERR_FORMAT, "%s: tensor %s must be there, of the type and shape that %s has", gate->file, name, gate->name);
	if (bias && (gate->type != GGUF_F32 || gate->dims != 2))
		return err_set(em, ERR_UNSUPPORTED, "%s: tensor %s is %s of %u dimensions; it must be F32 of two", gate->file, gate->name,
			       gguf_type_name(gate->type), gate->dims);
	return ERR_OK;
}

static enum err add_tensor(struct list *l, size_t architecture, const struct gguf *g, const struct gguf_tensor *from, struct err_msg *em)
{
	const struct gguf_tensor *up = NULL;
	struct parts p = {0};
	struct st_tensor t;
	char name[2 * NAME_BYTES];

	take_apart(&p, from->name);
	const struct name *n = find_name(architecture, &p);
	if (n && !n->here)
		return ERR_OK;
	enum err e = n && n->turns ? find_up(&up, g, &p, from, em) : ERR_OK;
	if (e)
		return e;
	fill(&t, from);
	const char *hole = n ? strstr(n->here, "{}") : NULL;
	if (hole && !strstr(p.stem, "{}")) {
		t.turns = up ? up->data : NULL;
		return add_experts(l, &p, n, &t, em);
	}
	if (hole) {
		snprintf(name, sizeof(name), "model.layers.%u.%.*s%u%s%s", p.layer, (int)(hole - n->here), n->here, p.expert, hole + 2, p.end);
		return add(l, &t, name, em);
	}
	if (n)
		reshape(&t, n);
	const char *end = n && n->bare ? "" : p.end, *here = n ? n->here : p.stem;
	if (p.of_layer)
		snprintf(name, sizeof(name), "model.layers.%u.%s%s", p.layer, here, end);
	else
		snprintf(name, sizeof(name), "%s%s", here, end);
	return up ? add_turns(l, &t, up->data, name, em) : add(l, &t, name, em);
}

static enum err find_architecture(size_t *out, const struct gguf *g, struct err_msg *em)
{
	char known[512] = "";
	const char *name;
	size_t bytes, used = 0;

	if (!gguf_string(g, "general.architecture", &name, &bytes))
		return err_set(em, ERR_FORMAT, "model.gguf: there is no general.architecture in it");
	for (*out = 0; *out < COUNT_OF(ARCHITECTURES); ++*out)
		if (strlen(ARCHITECTURES[*out].name) == bytes && !memcmp(ARCHITECTURES[*out].name, name, bytes))
			return ERR_OK;
	for (size_t i = 0; i < COUNT_OF(ARCHITECTURES) && used < sizeof(known); i++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", ARCHITECTURES[i].name);
	return err_set(em, ERR_UNSUPPORTED, "model.gguf: general.architecture is '%.*s'; supported: %s",
		       bytes < 64 && utf8_valid(name, bytes) ? (int)bytes : 0, name, known);
}

enum err gguf_names_read(struct st_tensor **out, u32 *count, const struct gguf *g, struct arena *arena, struct err_msg *em)
{
	struct list l = {.arena = arena};
	size_t architecture;

	enum err e = find_architecture(&architecture, g, em);
	for (u32 i = 0; !e && i < gguf_tensor_count(g); i++)
		e = add_tensor(&l, architecture, g, gguf_tensor_at(g, i), em);
	*out = l.tensors;
	*count = l.count;
	return e;
}
