/* Makes of params.json the config.json that says the same. Runs in the worker at start. Owns nothing. Never guesses: a field that nobody here knows is
 * refused by name, and so is what readers of the format disagree about. What a field's value may be is left to the readers of config.json wherever these
 * look at it. */
#include "proc_worker/model/mistral_params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mistral_folder.h"
#include "proc_worker/model/config_priv.h"
#include "proc_worker/model/mistral_params_priv.h"

enum {
	CONTEXT = 128000, /* of files that state none */
	END_ID = 2,	  /* </s> */
};

static const char THETA[] = "1000000.0", THETA_OF_WINDOWS[] = "10000.0"; /* of files that state none: those of before they were stated */

/* ---------------------------------------------------------------- values */

struct params {
	json_val v, yarn, queries, moe, window; /* `window`: "sliding_window", or the list of that name with an underscore */
	bool latent, experts;
	bool windowed, windows_differ; /* some layers have windows; not all do */
	struct buf text;
	struct json_writer w;
	struct err_msg *em;
};

static void copy(struct params *p, const char *here, json_val v)
{
	if (!json_present(v))
		return;
	json_key(&p->w, here);
	json_write_value(&p->w, v);
}

static void copy_members(struct params *p, json_val v, const struct mistral_member *m)
{
	for (; m->name; m++)
		if (m->here)
			copy(p, m->here, json_get(v, m->name));
}

static enum err need(json_val v, const char *name, const char *where, struct err_msg *em)
{
	char in[64];

	if (json_present(json_get(v, name)))
		return ERR_OK;
	return err_set(em, ERR_FORMAT, "params.json: \"%s\"%s is missing; it must be a number", name, mistral_where(in, sizeof(in), where));
}

/* What config.json's readers would take another value for. */
static enum err need_all(const struct params *p)
{
	static const char *const names[] = {"dim", "n_layers", "n_heads", "norm_eps", "vocab_size", "hidden_dim"};
	enum err e = ERR_OK;

	for (size_t i = 0; !e && i < COUNT_OF(names); i++)
		e = need(p->v, names[i], "", p->em);
	if (!e && !p->latent)
		e = need(p->v, "head_dim", "", p->em);
	if (!e && (p->latent || json_present(p->yarn) || json_present(p->queries)))
		e = need(p->v, "rope_theta", "", p->em);
	if (!e && p->experts)
		e = need(p->moe, "num_experts", "moe", p->em);
	if (!e && p->experts)
		e = need(p->moe, "num_experts_per_tok", "moe", p->em);
	if (!e && p->experts && p->latent)
		e = need(p->moe, "expert_hidden_dim", "moe", p->em);
	if (!e && json_present(p->yarn))
		e = need(p->yarn, "factor", "yarn", p->em);
	if (!e && json_present(p->yarn))
		e = need(p->yarn, "original_max_position_embeddings", "yarn", p->em);
	if (!e && json_present(p->queries))
		e = need(p->queries, "original_max_position_embeddings", "llama_4_scaling", p->em);
	return !e && json_present(p->queries) ? need(p->queries, "beta", "llama_4_scaling", p->em) : e;
}

/* The least of those that the file states, which YaRN does not stretch any further. */
static enum err write_context(struct params *p)
{
	static const char *const names[] = {"max_position_embeddings", "max_seq_len", "model_max_length"};
	u32 least = 0, n = 0;
	enum err e = ERR_OK;

	for (size_t i = 0; !e && i < COUNT_OF(names); i++) {
		e = config_may_u32(p->v, names[i], CONFIG_CONTEXT_MAX, 0, &n, p->em);
		least = !e && n && (!least || n < least) ? n : least;
	}
	json_key(&p->w, "max_position_embeddings");
	json_write_uint(&p->w, least ? least : CONTEXT);
	if (least) {
		json_key(&p->w, MISTRAL_CONTEXT);
		json_write_uint(&p->w, least);
	}
	return e;
}

/* ---------------------------------------------------------------- windows */

/* A number, some files have it in quotes. 0: no window. */
static enum err window_of(const struct params *p, json_val v, u64 *out)
{
	const char *text = json_cstr(v, "");
	char *end = NULL;

	*out = 0;
	if (!json_present(v) || (json_uint(v, out) && *out > 0))
		return ERR_OK;
	if (*text >= '1' && *text <= '9')
		*out = strtoull(text, &end, 10);
	if (end && !*end)
		return ERR_OK;
	return err_set(p->em, ERR_FORMAT, "params.json: \"sliding_window\" must be an integer above 0, null, or an array of such, found %s", json_type_name(v));
}

/* An array, which layers take in turns: all windows of it are of one size. */
static enum err read_pattern(struct params *p, u64 *size)
{
	u64 layers = 0, one;
	u32 without = 0, with = 0;
	enum err e = ERR_OK;

	for (struct json_iter it = json_iterate(p->window); !e && json_next(&it);) {
		e = window_of(p, it.value, &one);
		if (!e && one && *size && one != *size)
			e = err_set(p->em, ERR_UNSUPPORTED, "params.json: \"sliding_window\" has windows of %llu and of %llu tokens; they must be of one size",
				    (unsigned long long)*size, (unsigned long long)one);
		*size = one ? one : *size;
		with += one > 0;
		without += one == 0;
	}
	p->windows_differ = with && without;
	if (!e && p->windows_differ && json_uint(json_get(p->v, "n_layers"), &layers) && layers % (with + without))
		e = err_set(p->em, ERR_INVALID, "params.json: \"sliding_window\" is an array of %u, which layers take in turns; \"n_layers\", which is %llu, must be a multiple",
			    with + without, (unsigned long long)layers);
	if (!e && p->windows_differ && (p->latent || p->experts || json_present(p->queries)))
		e = err_set(p->em, ERR_UNSUPPORTED, "params.json: \"sliding_window\" of some layers alone is not supported together with \"%s\"",
			    p->latent ? "kv_lora_rank" : p->experts ? "moe" : "llama_4_scaling");
	return e;
}

static void write_layers(struct params *p)
{
	u64 layers = 0;

	if (!p->windows_differ || !json_uint(json_get(p->v, "n_layers"), &layers) || layers > MODEL_LAYERS_MAX)
		return;
	json_key(&p->w, "layer_types");
	json_array_begin(&p->w);
	for (u64 i = 0; i < layers; i++)
		json_write_cstr(&p->w, json_present(json_at(p->window, i % json_count(p->window))) ? "sliding_attention" : "full_attention");
	json_array_end(&p->w);
}

static enum err write_windows(struct params *p)
{
	u64 size = 0;
	enum err e = json_type(p->window) == JSON_ARRAY ? read_pattern(p, &size) : window_of(p, p->window, &size);

	p->windowed = size > 0;
	if (e || (p->latent && size == 0))
		return e;
	json_key(&p->w, "sliding_window");
	if (size)
		json_write_uint(&p->w, size);
	else
		json_write_null(&p->w); /* families take another one for a missing one */
	write_layers(p);
	return ERR_OK;
}

static enum err find_window(struct params *p)
{
	json_val other = json_get(p->v, "_sliding_window");

	p->window = json_get(p->v, "sliding_window");
	if (json_present(other) && json_present(p->window) && !config_same_value(other, p->window))
		return err_set(p->em, ERR_INVALID, "params.json: \"sliding_window\" and \"_sliding_window\" say the same, but not the same value; take one of them out");
	if (json_present(other))
		p->window = other;
	return ERR_OK;
}

/* ---------------------------------------------------------------- rotation */

/* Whether cosines and sines are scaled. Of heads that share a latent some readers would scale the scores then, and others not. */
static enum err write_scale(struct params *p)
{
	json_val field = json_get(p->yarn, "apply_scale");
	bool scaled = false;

	if (!json_present(field))
		return err_set(p->em, ERR_FORMAT, "params.json: \"apply_scale\" of \"yarn\" is missing; it must be true or false, for readers disagree about files without it");
	if (!json_bool(field, &scaled))
		return err_set(p->em, ERR_FORMAT, "params.json: \"apply_scale\" of \"yarn\" must be true or false, found %s", json_type_name(field));
	if (p->latent && scaled)
		return err_set(p->em, ERR_UNSUPPORTED, "params.json: \"apply_scale\" of \"yarn\" must be false where heads share a latent (\"kv_lora_rank\")");
	if (!scaled) {
		json_key(&p->w, "attention_factor");
		json_write_double(&p->w, 1);
	}
	return ERR_OK;
}

static void write_theta(struct params *p)
{
	json_val theta = json_get(p->v, "rope_theta");
	const char *usual = p->windowed ? THETA_OF_WINDOWS : THETA;

	json_key(&p->w, "rope_theta");
	if (json_present(theta))
		json_write_value(&p->w, theta);
	else
		json_write_raw(&p->w, usual, strlen(usual));
}

static enum err check_rope(const struct params *p)
{
	const char *original = "original_max_position_embeddings";
	const bool scaling = json_present(json_get(p->v, "rope_scaling"));

	if (scaling && (json_present(p->yarn) || json_present(p->queries)))
		return err_set(p->em, ERR_INVALID, "params.json: \"rope_scaling\" and \"%s\" say how positions rotate; take one of them out",
			       json_present(p->yarn) ? "yarn" : "llama_4_scaling");
	if (p->experts && !p->latent && json_present(p->queries))
		return err_set(p->em, ERR_UNSUPPORTED, "params.json: \"llama_4_scaling\" together with \"moe\" is supported where heads share a latent (\"kv_lora_rank\") alone");
	if (json_present(p->yarn) && json_present(p->queries) && !config_same_value(json_get(p->yarn, original), json_get(p->queries, original)))
		return err_set(p->em, ERR_UNSUPPORTED, "params.json: \"%s\" of \"yarn\" and of \"llama_4_scaling\" must be the same", original);
	return ERR_OK;
}

static enum err write_rope(struct params *p)
{
	const bool yarn = json_present(p->yarn);
	enum err e = check_rope(p);

	json_key(&p->w, "rope_interleave"); /* rows of q and k lie so that neighbours rotate together */
	json_write_bool(&p->w, true);
	if (json_present(json_get(p->v, "rope_scaling"))) {
		write_theta(p);
		copy(p, "rope_scaling", json_get(p->v, "rope_scaling"));
		return e;
	}
	json_key(&p->w, "rope_parameters");
	json_object_begin(&p->w);
	json_key(&p->w, "rope_type");
	json_write_cstr(&p->w, yarn ? "yarn" : "default");
	write_theta(p);
	copy_members(p, p->yarn, MISTRAL_YARN);
	if (!e && yarn)
		e = write_scale(p);
	else
		copy(p, "original_max_position_embeddings", json_get(p->queries, "original_max_position_embeddings"));
	copy_members(p, p->queries, MISTRAL_QUERIES);
	json_object_end(&p->w);
	return e;
}

/* ---------------------------------------------------------------- experts */

static enum err check_experts(const struct params *p)
{
	static const struct {
		const char *name;
		double value;
		bool latent_may; /* those whose heads share a latent may say something else */
	} usual[] = {{"route_every_n", 1, false},	   {"first_k_dense_replace", 0, true}, {"num_shared_experts", 0, true},
		     {"routed_scale", 1, true}, {"num_expert_groups", 1, true},     {"num_expert_groups_per_tok", 1, true}};
	json_val width = json_get(p->moe, "expert_hidden_dim");
	double found;

	for (size_t i = 0; i < COUNT_OF(usual); i++) {
		json_val field = json_get(p->moe, usual[i].name);
		if (!json_present(field) || (usual[i].latent_may && p->latent) || (json_double(field, &found) && found == usual[i].value))
			continue;
		return err_set(p->em, ERR_UNSUPPORTED, "params.json: \"%s\" of \"moe\" must be %g%s", usual[i].name, usual[i].value,
			       usual[i].latent_may ? " unless heads share a latent (\"kv_lora_rank\")" : "");
	}
	if (!p->latent && json_present(width) && !config_same_value(width, json_get(p->v, "hidden_dim")))
		return err_set(p->em, ERR_UNSUPPORTED, "params.json: \"expert_hidden_dim\" of \"moe\" must be \"hidden_dim\" unless heads share a latent (\"kv_lora_rank\")");
	return ERR_OK;
}

/* A model without experts is one whose layers are all among the first ones, which have none. */
static void write_no_experts(struct params *p)
{
	static const char *const ones[] = {"n_routed_experts", "num_experts_per_tok", "n_shared_experts"};

	for (size_t i = 0; i < COUNT_OF(ones); i++) {
		json_key(&p->w, ones[i]);
		json_write_uint(&p->w, 1);
	}
	copy(p, "moe_intermediate_size", json_get(p->v, "hidden_dim"));
	copy(p, "first_k_dense_replace", json_get(p->v, "n_layers"));
}

static enum err write_experts(struct params *p)
{
	enum err e = check_experts(p);

	if (p->latent && !p->experts)
		write_no_experts(p);
	else if (p->latent)
		copy_members(p, p->moe, MISTRAL_EXPERTS);
	else if (p->experts) {
		copy(p, "num_local_experts", json_get(p->moe, "num_experts"));
		copy(p, "num_experts_per_tok", json_get(p->moe, "num_experts_per_tok"));
	}
	if (p->latent && p->experts && !json_present(json_get(p->moe, "num_shared_experts"))) {
		json_key(&p->w, "n_shared_experts");
		json_write_uint(&p->w, 0);
	}
	return e;
}

/* ---------------------------------------------------------------- rounded matrices */

/* Whether inputs are rounded as well, as their scales would say, changes nothing here. */
static enum err write_rounded(struct params *p, json_val v)
{
	json_val inputs = json_get(v, "qscheme_act");
	const char *method = json_cstr(json_get(v, "quant_method"), NULL);

	if (method) { /* that of config.json under another name */
		copy(p, "quantization_config", v);
		return ERR_OK;
	}
	enum err e = mistral_check_members(v, MISTRAL_ROUNDED, "quantization", p->em);
	if (!e && !json_present(json_get(v, "qformat_weight")))
		e = err_set(p->em, ERR_FORMAT, "params.json: \"qformat_weight\" of \"quantization\" is missing; supported: fp8_e4m3");
	if (!e && json_present(inputs) && !json_string_equals(inputs, "TENSOR") && !json_string_equals(inputs, "NO_SCALES"))
		e = err_set(p->em, ERR_UNSUPPORTED, "params.json: \"qscheme_act\" of \"quantization\" is '%.64s'; supported: TENSOR, NO_SCALES or null",
			    json_cstr(inputs, json_type_name(inputs)));
	json_key(&p->w, "quantization_config");
	json_object_begin(&p->w);
	json_key(&p->w, "quant_method");
	json_write_cstr(&p->w, "fp8");
	json_key(&p->w, "activation_scheme");
	json_write_cstr(&p->w, json_string_equals(inputs, "NO_SCALES") ? "dynamic" : "static");
	json_object_end(&p->w);
	return e;
}

static enum err write_quantization(struct params *p)
{
	json_val own = json_get(p->v, "quantization"), usual = json_get(p->v, "quantization_config");

	if (!mistral_is_off(own) && !mistral_is_off(usual))
		return err_set(p->em, ERR_INVALID, "params.json: \"quantization\" and \"quantization_config\" say how matrices are stored; take one of them out");
	if (!mistral_is_off(own))
		return write_rounded(p, own);
	copy(p, "quantization_config", usual);
	return ERR_OK;
}

/* ---------------------------------------------------------------- the whole */

static bool is_latent(json_val v)
{
	static const char *const names[] = {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"};

	for (size_t i = 0; i < COUNT_OF(names); i++)
		if (!mistral_is_off(json_get(v, names[i])))
			return true;
	return false;
}

static const char *family(const struct params *p)
{
	if (p->latent)
		return "Mistral4ForCausalLM";
	if (p->experts)
		return "MixtralForCausalLM";
	if (json_present(p->queries))
		return "Ministral3ForCausalLM";
	return p->windows_differ ? "MinistralForCausalLM" : "MistralForCausalLM";
}

/* Images and sound are not computed; text that is made while one listens is no text by itself. */
static enum err check_parts(json_val v, struct err_msg *em)
{
	json_val parts = json_get(v, "multimodal"), encoder = json_get(json_get(parts, "whisper_model_args"), "encoder_args");
	enum err e = mistral_check_members(parts, MISTRAL_PARTS, "multimodal", em);

	if (!e && !mistral_is_off(json_get(encoder, "causal")))
		e = err_set(em, ERR_UNSUPPORTED, "params.json: \"causal\" of \"encoder_args\" must be false: models that listen while they write are not supported");
	return e;
}

static enum err check_all(struct params *p)
{
	enum err e = mistral_check_members(p->v, MISTRAL_TOP, "", p->em);

	p->yarn = json_get(p->v, "yarn");
	p->queries = json_get(p->v, "llama_4_scaling");
	p->moe = json_get(p->v, "moe");
	if (!e)
		e = check_parts(p->v, p->em);
	if (!e)
		e = mistral_check_members(p->yarn, MISTRAL_YARN, "yarn", p->em);
	if (!e)
		e = mistral_check_members(p->queries, MISTRAL_QUERIES, "llama_4_scaling", p->em);
	if (!e)
		e = mistral_check_members(p->moe, MISTRAL_EXPERTS, "moe", p->em);
	p->latent = is_latent(p->v);
	p->experts = !mistral_is_off(p->moe);
	if (mistral_is_off(p->yarn))
		p->yarn = (json_val){NULL};
	if (mistral_is_off(p->queries))
		p->queries = (json_val){NULL};
	if (!e)
		e = find_window(p);
	return e ? e : need_all(p);
}

static enum err write_end(struct params *p)
{
	u64 vocab = 0;

	if (json_uint(json_get(p->v, "vocab_size"), &vocab) && vocab > 0 && vocab <= END_ID)
		return err_set(p->em, ERR_INVALID, "params.json: \"vocab_size\" is %llu; it must be above %d, the id of </s>", (unsigned long long)vocab, END_ID);
	json_key(&p->w, "eos_token_id");
	json_write_uint(&p->w, END_ID);
	return ERR_OK;
}

static enum err write_all(struct params *p)
{
	json_val kv_heads = json_get(p->v, "n_kv_heads");

	copy_members(p, p->v, MISTRAL_TOP);
	copy(p, "num_key_value_heads", json_present(kv_heads) ? kv_heads : json_get(p->v, "n_heads"));
	if (!p->latent) /* else it says nothing that others do not */
		copy(p, "head_dim", json_get(p->v, "head_dim"));
	enum err e = write_context(p);
	if (!e)
		e = write_windows(p);
	if (!e)
		e = write_rope(p);
	if (!e)
		e = write_experts(p);
	if (!e)
		e = write_quantization(p);
	if (!e)
		e = write_end(p);
	json_key(&p->w, "architectures");
	json_array_begin(&p->w);
	json_write_cstr(&p->w, family(p));
	json_array_end(&p->w);
	return e;
}

static enum err convert(struct json_doc **out, json_val root, struct err_msg *em)
{
	struct params p = {.v = root, .em = em};
	const char *nul = json_text_with_nul(root);

	*out = NULL;
	if (nul)
		return err_set(em, ERR_FORMAT, "params.json: there is a NUL in \"%.64s\\u0000...\"; no name or text may have one", nul);
	json_begin(&p.w, &p.text);
	json_object_begin(&p.w);
	enum err e = check_all(&p);
	if (!e)
		e = write_all(&p);
	json_object_end(&p.w);
	if (!e && !buf_ok(&p.text))
		e = err_set(em, ERR_NO_MEMORY, "out of memory");
	if (!e)
		e = json_parse(out, p.text.data, p.text.bytes, em);
	buf_fini(&p.text);
	if (e && em)
		mistral_params_in_file(em->text, sizeof(em->text));
	return e;
}

enum err mistral_params_parse(struct json_doc **out, const char *text, size_t bytes, struct err_msg *em)
{
	struct json_doc *doc = NULL;

	*out = NULL;
	enum err e = json_parse(&doc, text, bytes, em);
	if (!e)
		e = convert(out, json_root(doc), em);
	json_free(&doc);
	return e;
}

enum err mistral_params_read(struct json_doc **out, const char *dir, struct err_msg *em)
{
	char path[4096];
	struct json_doc *doc = NULL;

	*out = NULL;
	if ((size_t)snprintf(path, sizeof(path), "%s/" MISTRAL_PARAMS, dir) >= sizeof(path))
		return err_set(em, ERR_TOO_LONG, "the model's path is longer than %zu bytes", sizeof(path) - 1);
	enum err e = json_parse_file(&doc, path, em);
	if (!e)
		e = convert(out, json_root(doc), em);
	json_free(&doc);
	return e;
}
