/* Reads what describes a model. Runs in the worker at start. Never guesses: a field that changes what the
 * model computes and that is not understood is an error. */
#include "proc_worker/model/config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "common/mistral_folder.h"
#include "proc_worker/model/config_priv.h"
#include "proc_worker/model/mistral_params.h"

enum {
	HEADS_MAX = 1 << 16,
	VOCAB_MAX = 1 << 24,
};

/* `*text`: the whole file, or what it becomes. */
static enum err read_arch(struct model_config *c, json_val *text, struct err_msg *em)
{
	json_val names = json_get(*text, "architectures");
	char known[1024];

	const char *name = json_cstr(json_at(names, 0), "");
	arch_names(known, sizeof(known), name);
	if (json_type(names) != JSON_ARRAY || json_count(names) == 0)
		return err_set(em, ERR_FORMAT, "config.json: \"architectures\" is missing; %s",
			       known);
	c->arch = arch_find(name);
	if (!c->arch)
		c->arch = arch_find_backbone(name);
	if (c->arch && c->arch->with_rms_norm && json_present(json_get(*text, "rms_norm_eps")))
		c->arch = arch_find(c->arch->with_rms_norm);
	return c->arch ? ERR_OK : config_read_text_part(c, text, name, known, em);
}

/* Of arch.differential: each key is there with either half of the values. */
static enum err double_heads(struct model_config *c, struct err_msg *em)
{
	if (c->kv_heads % 2)
		return err_set(em, ERR_INVALID, "config.json: \"num_key_value_heads\" is %u; of a %s it must be even", c->kv_heads, c->arch->name);
	c->heads *= 2;
	c->kv_heads *= 2;
	return ERR_OK;
}

static enum err read_heads(struct model_config *c, json_val v, struct err_msg *em)
{
	const bool own = c->arch->head_dim > 0 && json_type(json_get(v, "head_dim")) == JSON_MISSING; /* null is not that */
	const u32 usual = own ? c->arch->head_dim : c->hidden / c->heads;

	if (c->arch->latent)
		return config_read_latent(c, v, em);
	if (!json_present(json_get(v, "head_dim")) && !own && !c->arch->shared_blocks && c->hidden % c->heads)
		return err_set(em, ERR_INVALID,
			       "config.json: hidden_size %u is not a multiple of num_attention_heads %u, "
			       "and there is no \"head_dim\"",
			       c->hidden, c->heads);
	enum err e = c->arch->shared_blocks ? config_read_shared_heads(c, v, em) : config_may_u32(v, "head_dim", CONFIG_HEAD_DIM_MAX, usual, &c->head_dim, em);
	if (e)
		return e;
	if (c->head_dim % 2 || c->head_dim == 0 || c->head_dim > CONFIG_HEAD_DIM_MAX)
		return err_set(em, ERR_UNSUPPORTED,
			       "config.json: heads of %u dimensions; they must be even, 2 to %d", c->head_dim,
			       CONFIG_HEAD_DIM_MAX);
	if (c->heads % c->kv_heads)
		return err_set(
			em, ERR_INVALID,
			"config.json: num_attention_heads %u is not a multiple of num_key_value_heads %u",
			c->heads, c->kv_heads);
	if (c->arch->differential)
		return double_heads(c, em);
	if (c->arch->quarters && (e = config_check_quarters(c, v, em)))
		return e;
	if (c->arch->altup)
		return config_read_altup(c, v, em);
	return c->arch->global_heads ? config_read_global(c, v, em) : ERR_OK;
}

/* What the file says, or what the family has, if it has anything. */
static enum err size_or(json_val v, const char *name, u32 max, u32 usual, u32 *out, struct err_msg *em)
{
	return usual ? config_may_u32(v, name, max, usual, out, em) : config_need_u32(v, name, max, out, em);
}

/* Whether all layers of a family have experts unless its files say how many first ones have none, and this file says none. */
static bool has_no_dense_layers(const struct arch *a, json_val v)
{
	json_val first = json_get(v, "first_k_dense_replace");
	i64 count = 0;

	return a->dense_layers == 0 && arch_has_own(a, "first_k_dense_replace") && !arch_has_own(a, "mlp_layer_types") && !arch_has_own(a, "moe_layer_freq") &&
	       (json_type(first) == JSON_MISSING || (json_int(first, &count) && count == 0));
}

/* What a family makes of the hidden size has the same limit as what a file says. */
static enum err read_intermediate(struct model_config *c, json_val v, struct err_msg *em)
{
	u32 inner = c->arch->inner; /* small, and hidden sizes are at most CONFIG_DIM_MAX: the product fits */

	if (c->arch->experts_only || c->arch->attention_free || c->arch->by_layer) /* config_by_layer.c */
		return ERR_OK;
	if (c->arch->altup)
		return config_read_altup_width(c, v, em);
	if (arch_has_own(c->arch, "expansion_ratio"))
		return config_read_mpt_width(c, v, em);
	if (c->arch->experts_optional) /* config_experts.c */
		return config_may_u32(v, "intermediate_size", CONFIG_DIM_MAX, 0, &c->intermediate, em);
	if (has_no_dense_layers(c->arch, v) && json_type(json_get(v, "intermediate_size")) == JSON_MISSING)
		return ERR_OK;
	enum err e = size_or(v, "intermediate_size", CONFIG_DIM_MAX, inner * c->hidden, &c->intermediate, em);
	if (!e && c->intermediate > CONFIG_DIM_MAX)
		e = err_set(em, ERR_INVALID,
			    "config.json: \"intermediate_size\" is missing, and %u times hidden_size, which is %u, is more than %d", inner,
			    c->hidden, CONFIG_DIM_MAX);
	if (!e && c->arch->halved && (c->intermediate /= 2) == 0)
		e = err_set(em, ERR_INVALID, "config.json: \"intermediate_size\" is 1; of a %s the MLP is half as wide", c->arch->name);
	return e;
}

/* Of some families the files have embeddings of more tokens than there are logits. */
static enum err read_vocab(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = size_or(v, "vocab_size", VOCAB_MAX, c->arch->vocab_size, &c->embed_vocab, em);

	c->vocab_size = c->embed_vocab;
	if (e || !arch_has_own(c->arch, "output_vocab_size"))
		return e;
	e = config_may_u32(v, "output_vocab_size", VOCAB_MAX, c->embed_vocab, &c->vocab_size, em);
	if (!e && c->vocab_size > c->embed_vocab)
		e = err_set(em, ERR_INVALID, "config.json: \"output_vocab_size\" is %u; it must be vocab_size, which is %u, at most", c->vocab_size, c->embed_vocab);
	return e;
}

/* How many there are, and in some families which is which. */
static enum err read_layers(struct model_config *c, json_val v, struct err_msg *em)
{
	if (c->arch->single_blocks)
		return config_read_blocks(c, v, em);
	if (c->arch->shared_blocks)
		return config_read_shared_layers(c, v, em);
	return c->arch->shortcut ? config_read_pairs(c, v, em) : config_need_u32(v, "num_hidden_layers", MODEL_LAYERS_MAX, &c->layers, em);
}

static enum err read_sizes(struct model_config *c, json_val v, struct err_msg *em)
{
	enum err e = read_vocab(c, v, em);

	if (!e)
		e = config_need_u32(v, "hidden_size", CONFIG_DIM_MAX, &c->hidden, em);
	if (!e && arch_has_own(c->arch, "model_max_length"))
		e = config_read_baichuan(c, v, em);
	if (!e)
		e = read_intermediate(c, v, em);
	if (!e)
		e = read_layers(c, v, em);
	if (!e && arch_has_own(c->arch, "cross_attention_layers"))
		e = config_leave_out(c, v, em);
	if (!c->arch->single_blocks)
		c->own_kv_layers = c->layers;
	if (e || c->arch->attention_free)
		return e ? e : config_read_attention_free(c, v, em);
	if (!e && c->arch->head_experts)
		e = config_read_head_experts(c, v, em);
	else if (!e)
		e = size_or(v, "num_attention_heads", HEADS_MAX, c->arch->heads, &c->heads, em);
	if (!e && c->arch->by_layer)
		e = config_read_by_layer(c, v, em);
	else if (!e)
		e = config_may_u32(v, "num_key_value_heads", HEADS_MAX,
				   c->arch->kv_heads && json_type(json_get(v, "num_key_value_heads")) ==
								JSON_MISSING
					   ? c->arch->kv_heads
					   : c->heads,
				   &c->kv_heads, em);
	if (!e && arch_has_own(c->arch, "num_attention_heads_per_layer"))
		e = config_read_heads(c, v, em);
	if (!e && arch_has_own(c->arch, "multi_query"))
		e = config_read_multi_query(c, v, em);
	if (!e)
		e = size_or(v, "max_position_embeddings", CONFIG_CONTEXT_MAX, c->context_max ? c->context_max : c->arch->context, &c->context_max, em);
	if (!e && arch_has_own(c->arch, "seq_length"))
		e = config_read_seq_length(c, v, em);
	u32 embedded = c->hidden;
	if (!e)
		e = config_may_u32(v, "word_embed_proj_dim", CONFIG_DIM_MAX, c->hidden, &embedded, em);
	if (!e && embedded != c->hidden)
		e = err_set(em, ERR_UNSUPPORTED,
			    "config.json: \"word_embed_proj_dim\" is %u; only embeddings of hidden_size, which is %u, are supported",
			    embedded, c->hidden);
	return e ? e : read_heads(c, v, em);
}

static enum err read_dtype(struct model_config *c, json_val v, struct err_msg *em)
{
	static const struct {
		const char *name;
		enum kern_dtype dtype;
	} names[] = {{"float32", KERN_F32}, {"bfloat16", KERN_BF16}, {"float16", KERN_F16}};
	json_val field = json_get(v, "torch_dtype");

	enum err e = config_check_pair(v, "torch_dtype", "dtype", em);
	if (!json_present(field))
		field = json_get(v, "dtype");
	if (e || !json_present(field))
		return e;
	for (size_t i = 0; i < COUNT_OF(names); i++)
		if (json_string_equals(field, names[i].name)) {
			c->has_dtype = true;
			c->dtype = names[i].dtype;
			return ERR_OK;
		}
	return err_set(em, ERR_UNSUPPORTED,
		       "config.json: \"torch_dtype\" is '%.64s'; supported: bfloat16, float16, float32",
		       json_cstr(field, json_type_name(field)));
}

static enum err add_eos(struct model_config *c, const char *file, json_val v, struct err_msg *em)
{
	u64 id;
	i64 none;

	if (json_int(v, &none) && none == -1) /* how some files say that there is none */
		return ERR_OK;
	if (json_int(v, &none) && none < 0)
		return err_set(em, ERR_FORMAT, "%s: \"eos_token_id\" is %lld; it must be a token id, or an array of them", file,
			       (long long)none);
	if (!json_uint(v, &id))
		return err_set(em, ERR_FORMAT,
			       "%s: \"eos_token_id\" must be an integer or an array of them, found %s", file,
			       json_type_name(v));
	if (id >= c->vocab_size)
		return err_set(em, ERR_INVALID, "%s: \"eos_token_id\" %llu is not below %s %u", file, (unsigned long long)id,
			       c->embed_vocab != c->vocab_size ? "output_vocab_size" : "vocab_size", c->vocab_size);
	for (u32 i = 0; i < c->eos_count; i++)
		if (c->eos_ids[i] == id)
			return ERR_OK;
	if (c->eos_count == EOS_IDS_MAX)
		return err_set(em, ERR_TOO_LONG, "%s: more than %d end-of-sequence ids", file, EOS_IDS_MAX);
	c->eos_ids[c->eos_count++] = (u32)id;
	return ERR_OK;
}

static enum err read_eos(struct model_config *c, const char *file, json_val v, struct err_msg *em)
{
	json_val field = json_get(v, "eos_token_id");
	enum err e = ERR_OK;

	if (!json_present(field))
		return ERR_OK;
	if (json_type(field) != JSON_ARRAY)
		return add_eos(c, file, field, em);
	for (struct json_iter it = json_iterate(field); !e && json_next(&it);)
		e = add_eos(c, file, it.value, em);
	return e;
}

/* Which matrices of other families would be rounded as they load, and which not, is not known. */
static enum err check_ternary(const struct model_config *c, struct err_msg *em)
{
	if (c->arch->sub_norms || c->quant.count == 0 || !c->quant.schemes[0].at_load)
		return ERR_OK;
	return err_set(em, ERR_UNSUPPORTED, "config.json: \"quantization_config\": \"quantization_mode\" is 'online', which is read of a BitNetForCausalLM only, not of a %s",
		       c->arch->name);
}

/* `v`: of `whole` what describes the language. */
static enum err read_fields(struct model_config *c, json_val whole, json_val v, struct err_msg *em)
{
	enum err e = quant_config_read(&c->quant, config_whose(whole, v, "quantization_config"), em);
	if (!e)
		e = check_ternary(c, em);
	if (!e)
		e = read_sizes(c, v, em);
	if (!e)
		e = config_read_experts(c, v, em);
	if (!e)
		e = config_read_arithmetic(c, v, em);
	if (!e && c->post_norm_eps == 0)
		c->post_norm_eps = c->norm_eps;
	if (!e && arch_has_own(c->arch, "new_decoder_architecture"))
		e = config_read_falcon(c, v, em);
	if (!e && (c->arch->alibi || c->arch->sinusoids))
		e = config_read_alibi(c, v, em);
	if (!e)
		e = config_read_rope(c, v, em);
	if (!e)
		e = config_end_alibi(c, em);
	if (!e)
		e = config_read_index(c, v, em);
	if (!e && c->arch->normed_residual)
		e = config_read_residuals(c, v, em);
	if (!e && c->arch->recurrent)
		e = config_read_recurrent(c, v, em);
	if (!e && c->arch->shared_blocks)
		e = config_end_shared(c, v, em);
	if (!e)
		e = config_read_windows(c, v, em);
	if (!e && arch_has_own(c->arch, "attention_types"))
		e = config_read_attention_types(c, v, em);
	if (!e && c->arch->global_heads)
		e = config_mark_global(c, v, em);
	if (!e && c->arch->altup)
		e = config_mark_shared(c, em);
	if (!e)
		e = config_read_tied(c, whole, v, em);
	if (!e)
		e = read_dtype(c, whole, em);
	if (!e && !c->has_dtype)
		e = read_dtype(c, v, em);
	if (!e)
		e = read_eos(c, "config.json", whole, em);
	if (!e && config_thinker(whole).node != whole.node)
		e = read_eos(c, "config.json", config_thinker(whole), em);
	if (!e)
		e = read_eos(c, "config.json", v, em);
	return e ? e
		 : config_check_fields(c->arch, v, em); /* a wrong field is worth more than an unknown one */
}

static enum err read_config(struct model_config *c, json_val whole, struct err_msg *em)
{
	struct json_doc *renamed = NULL, *filled = NULL, *again = NULL;
	json_val v = whole;

	if (json_type(v) != JSON_OBJECT)
		return err_set(em, ERR_FORMAT, "config.json: must be an object, found %s", json_type_name(v));
	const char *nul = json_text_with_nul(v); /* what it begins with may be the name of something */
	if (nul)
		return err_set(em, ERR_FORMAT, "config.json: there is a NUL in \"%.64s\\u0000...\"; no name or text may have one", nul);
	enum err e = read_arch(c, &v, em);
	const json_val file = v;
	const bool part = v.node != whole.node;
	if (!e)
		e = config_rename(&renamed, c->arch, v, em);
	if (renamed)
		v = json_root(renamed);
	if (!e && part)
		e = config_fill_part(&filled, v, em);
	if (filled)
		v = json_root(filled);
	if (!e && arch_has_own(c->arch, "moe_layers_enum"))
		e = config_say_step(&again, v, em);
	if (again)
		v = json_root(again);
	if (!e)
		e = read_fields(c, part ? whole : v, v, em);
	if (e && renamed)
		config_name_in_file(c->arch, file, em);
	json_free(&again);
	json_free(&filled);
	json_free(&renamed);
	return e;
}

enum err model_config_parse(struct model_config *c, const char *text, size_t bytes, struct err_msg *em)
{
	struct json_doc *doc = NULL;

	*c = (struct model_config){0};
	enum err e = json_parse(&doc, text, bytes, em);
	if (!e)
		e = read_config(c, json_root(doc), em);
	json_free(&doc);
	return e;
}

/* What a params.json became. Errors are in the words of that. */
static enum err read_params(struct model_config *c, json_val v, struct err_msg *em)
{
	u64 stated;

	enum err e = read_config(c, v, em);
	if (e && em)
		mistral_params_in_file(em->text, sizeof(em->text));
	if (!e && json_uint(json_get(v, MISTRAL_CONTEXT), &stated) && stated < c->context_max)
		c->context_max = (u32)stated;
	return e;
}

enum err model_config_parse_params(struct model_config *c, const char *text, size_t bytes, struct err_msg *em)
{
	struct json_doc *doc = NULL;

	*c = (struct model_config){.from_params = true};
	enum err e = mistral_params_parse(&doc, text, bytes, em);
	if (!e)
		e = read_params(c, json_root(doc), em);
	json_free(&doc);
	return e;
}

/* ---------------------------------------------------------------- the files */

static enum err path_in(char *out, size_t bytes, const char *dir, const char *file, struct err_msg *em)
{
	if ((size_t)snprintf(out, bytes, "%s/%s", dir, file) >= bytes)
		return err_set(em, ERR_TOO_LONG, "the model's path is longer than %zu bytes", bytes - 1);
	return ERR_OK;
}

/* Where older files of Model Optimizer say how matrices are stored. */
static enum err read_quant_file(struct quant_config *q, const char *dir, struct err_msg *em)
{
	static const char FILE_NAME[] = "hf_quant_config.json";
	char path[4096];
	struct json_doc *doc = NULL;

	enum err e = path_in(path, sizeof(path), dir, FILE_NAME, em);
	if (e || access(path, F_OK) < 0)
		return e;
	e = json_parse_file(&doc, path, em);
	if (!e && (e = quant_config_read_file(q, json_root(doc), em)))
		err_prefix(em, "%s, read as config.json's \"quantization_config\"", FILE_NAME);
	json_free(&doc);
	return e;
}

/* What describes the model; the caller owns it. */
static enum err open_description(struct json_doc **out, const char *dir, bool params, struct err_msg *em)
{
	char path[4096];

	if (params)
		return mistral_params_read(out, dir, em);
	enum err e = path_in(path, sizeof(path), dir, "config.json", em);
	return e ? e : json_parse_python_file(out, path, em);
}

enum err model_config_read(struct model_config *c, const char *dir, struct err_msg *em)
{
	char path[4096];
	struct json_doc *doc = NULL;

	*c = (struct model_config){.from_params = mistral_folder_is(dir)};
	enum err e = open_description(&doc, dir, c->from_params, em);
	if (!e)
		e = c->from_params ? read_params(c, json_root(doc), em) : read_config(c, json_root(doc), em);
	if (!e)
		e = config_read_pooling(c, json_root(doc), dir, em);
	json_free(&doc);
	if (!e && c->quant.count == 0)
		e = read_quant_file(&c->quant, dir, em);
	if (!e)
		e = path_in(path, sizeof(path), dir, "generation_config.json", em);
	if (e || access(path, F_OK) < 0)
		return e;
	e = json_parse_file(&doc, path, em);
	if (!e)
		e = read_eos(c, "generation_config.json", json_root(doc), em);
	json_free(&doc);
	return e;
}

void model_drop_index(struct model_config *c)
{
	c->index.top = 0;
}

bool model_chooses(const struct model_config *c, u32 layer)
{
	return c->index.top > 0 && c->index.full[layer];
}

u32 model_head_dim(const struct model_config *c, u32 layer)
{
	return c->layer_flags[layer] & LAYER_GLOBAL ? c->global_head_dim : c->head_dim;
}

u32 model_heads(const struct model_config *c, u32 layer)
{
	return c->heads_differ ? c->heads_by_layer[layer] : c->heads;
}

u32 model_kv_heads(const struct model_config *c, u32 layer)
{
	return c->arch->by_layer ? c->kv_heads_by_layer[layer] : c->kv_heads;
}

u32 model_intermediate(const struct model_config *c, u32 layer)
{
	return c->arch->by_layer ? c->intermediate_by_layer[layer] : c->intermediate;
}

bool model_attends(const struct model_config *c, u32 layer)
{
	const u32 flags = c->layer_flags[layer];

	return flags & LAYER_BESIDE || !(flags & (LAYER_RECURRENT | LAYER_NO_MIXER));
}

u32 model_kv_layer(const struct model_config *c, u32 layer)
{
	u32 from = layer;

	while (c->layer_flags[from] & LAYER_SHARED_KV || (c->layer_flags[from] ^ c->layer_flags[layer]) & LAYER_WINDOW)
		from--; /* there is one: config_global.c */
	return from;
}

const struct rope_config *model_local_rope(const struct model_config *c)
{
	return c->arch->traits & ARCH_LOCAL_ROPE ? &c->local_rope : NULL;
}
