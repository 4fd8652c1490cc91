/* Owns the writing of config.json from the values of a file in GGUF. Runs once while a model is imported. Never guesses: an
 * architecture without a row here, and a value that nobody asked for, is an error with its name, for it may change what the
 * model computes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/gguf_config_priv.h"

enum { ANY_CONTEXT = 1 << 20, GRANITE_CONTEXT = 1 << 17 };
enum { BAICHUAN2_VOCAB = 125696, BAICHUAN_13B_LAYERS = 40 };
enum { LAYERS_MAX = 4096, GEMMA_27B_LAYERS = 46, GEMMA3_27B_LAYERS = 62 };

/* ---- families ---- */

/* clang-format off */
static const struct gguf_family FAMILIES[] = {
	{"llama", "LlamaForCausalLM", NULL, INTERLEAVE | ATTENTION_BIAS | MLP_BIAS},
	{"mistral3", "Ministral3ForCausalLM", NULL, INTERLEAVE | WINDOW | QUERY_SCALE},
	{"mistral4", "Mistral4ForCausalLM", NULL, LATENT | ROUTED | QUERY_SCALE, .gating = GGUF_GATING_SOFTMAX},
	{"llama4", "Llama4ForCausalLM", NULL, ATTENTION_BIAS, .own_experts = LLAMA4_EXPERTS},
	{"deci", "DeciLMForCausalLM", NULL, INTERLEAVE | ATTENTION_BIAS | MLP_BIAS, .by_layer = true},
	{"xverse", "LlamaForCausalLM", NULL, INTERLEAVE},
	{"baichuan", "LlamaForCausalLM", NULL, INTERLEAVE},
	{"pangu-embedded", "LlamaForCausalLM", NULL, ATTENTION_BIAS | MLP_BIAS},
	{"paddleocr", "LlamaForCausalLM", NULL, ATTENTION_BIAS | MLP_BIAS | SECTIONS},
	{"orion", "OrionForCausalLM", "rms_norm_eps", ATTENTION_BIAS},
	{"jais2", "Jais2ForCausalLM", "layer_norm_eps", ATTENTION_BIAS | MLP_BIAS},
	{"bitnet", "BitNetForCausalLM", NULL, ATTENTION_BIAS, .activation = "silu"},
	{"internlm2", "LlamaForCausalLM", NULL, INTERLEAVE | ATTENTION_BIAS | MLP_BIAS},
	{"smollm3", "SmolLM3ForCausalLM", NULL, INTERLEAVE | ATTENTION_BIAS | MLP_BIAS},
	{"arcee", "ArceeForCausalLM", NULL, INTERLEAVE | ATTENTION_BIAS | MLP_BIAS},
	{"qwen", "QWenLMHeadModel", NULL, 0},
	{"qwen2", "Qwen2ForCausalLM", NULL, 0},
	{"qwen2vl", "Qwen2ForCausalLM", NULL, SECTIONS},
	{"qwen3vl", "Qwen3ForCausalLM", NULL, ATTENTION_BIAS | SECTIONS},
	{"qwen2moe", "Qwen2MoeForCausalLM", NULL, EXPERTS | KEEP_TOPK | SHARED},
	{"qwen3", "Qwen3ForCausalLM", NULL, ATTENTION_BIAS},
	{"qwen3moe", "Qwen3MoeForCausalLM", NULL, ATTENTION_BIAS | EXPERTS | NORM_TOPK},
	{"phi3", "Phi3ForCausalLM", NULL, PARTIAL | WINDOW},
	{"gemma", "GemmaForCausalLM", NULL, 0},
	{"gemma2", "Gemma2ForCausalLM", NULL, WINDOW | SOFT_CAPS},
	{"gemma3", "Gemma3ForCausalLM", NULL, WINDOW | SOFT_CAPS | LOCAL_ROPE, .pattern = 6},
	{"gemma3n", "Gemma3nForCausalLM", NULL, WINDOW | SOFT_CAPS | LOCAL_ROPE, .streams = true, .pattern = 5},
	{"gemma4", "Gemma4ForCausalLM", NULL, 0, .global_heads = true},
	{"phi2", "PhiForCausalLM", "layer_norm_eps", PARTIAL},
	{"phimoe", "PhiMoEForCausalLM", "rms_norm_eps", ATTENTION_BIAS | WINDOW | EXPERTS_ALL, .scales = true},
	{"granite", "GraniteForCausalLM", NULL, INTERLEAVE | ATTENTION_BIAS | MLP_BIAS | MULTIPLIERS},
	{"granitemoe", "GraniteMoeForCausalLM", NULL, INTERLEAVE | ATTENTION_BIAS | MULTIPLIERS | EXPERTS_ALL},
	{"gpt2", "GPT2LMHeadModel", "layer_norm_epsilon", 0, .positions = true},
	{"gptneox", "GPTNeoXForCausalLM", "layer_norm_eps", PARTIAL | ATTENTION_BIAS, .parallel_choice = true},
	{"bloom", "BloomForCausalLM", "layer_norm_epsilon", 0, .positions = true},
	{"mpt", "MPTForCausalLM", "layer_norm_epsilon", 0, .positions = true, .attention_apart = true},
	{"starcoder", "GPTBigCodeForCausalLM", "layer_norm_epsilon", 0, .positions = true, .shares_key = true},
	{"falcon", "FalconForCausalLM", "layer_norm_epsilon", USE_BIAS, .shares_key = true, .blocks_apart = true},
	{"starcoder2", "Starcoder2ForCausalLM", "norm_epsilon", WINDOW | USE_BIAS},
	{"stablelm", "StableLmForCausalLM", "layer_norm_eps", PARTIAL | QKV_BIAS, .parallel_unsaid = true, .head_norms = "qk_layernorm"},
	{"nemotron", "NemotronForCausalLM", "norm_eps", PARTIAL | ATTENTION_BIAS | MLP_BIAS},
	{"olmo", "OlmoForCausalLM", "layer_norm_eps", INTERLEAVE | CLIP},
	{"olmo2", "Olmo2ForCausalLM", NULL, 0},
	{"olmoe", "OlmoeForCausalLM", NULL, EXPERTS_ALL | KEEP_TOPK | CLIP},
	{"command-r", "CohereForCausalLM", "layer_norm_eps", LOGIT_SCALE | ATTENTION_BIAS, .head_norms = "use_qk_norm"},
	{"cohere2", "Cohere2ForCausalLM", "layer_norm_eps", LOGIT_SCALE | WINDOW, .pattern = 4},
	{"cohere2moe", "Cohere2MoeForCausalLM", "layer_norm_eps", LOGIT_SCALE | WINDOW | DRAFTS, .own_experts = COHERE_EXPERTS, .windows_listed = true},
	{"step35", "Step3p5ForCausalLM", NULL, DRAFTS, .step = true},
	{"exaone", "LlamaForCausalLM", NULL, ATTENTION_BIAS | MLP_BIAS},
	{"exaone4", "Exaone4ForCausalLM", NULL, WINDOW, .pattern = 4},
	{"seed_oss", "SeedOssForCausalLM", NULL, ATTENTION_BIAS | MLP_BIAS},
	{"hunyuan-dense", "HunYuanDenseV1ForCausalLM", NULL, ATTENTION_BIAS},
	{"ernie4_5", "Ernie4_5ForCausalLM", NULL, USE_BIAS},
	{"exaone-moe", "ExaoneMoeForCausalLM", NULL, WINDOW | ROUTED, .own_experts = EXAONE_EXPERTS, .pattern = 4},
	{"apertus", "ApertusForCausalLM", NULL, ATTENTION_BIAS, .activation = "xielu"},
	{"ernie4_5-moe", "Ernie4_5_MoeForCausalLM", NULL, 0, .own_experts = ERNIE_EXPERTS},
	{"hunyuan-moe", "HunYuanMoEV1ForCausalLM", NULL, ATTENTION_BIAS, .own_experts = HUNYUAN_EXPERTS},
	{"deepseek2", "DeepseekV2ForCausalLM", NULL, LATENT | ROUTED | GREEDY},
	{"minicpm3", "MiniCPM3ForCausalLM", NULL, LATENT, .values_known = true},
	{"glm4moe", "Glm4MoeForCausalLM", NULL, PARTIAL | ATTENTION_BIAS | ROUTED | SECTIONS, .head_norms = "use_qk_norm"},
	{"deepseek32", "DeepseekV32ForCausalLM", NULL, LATENT | ROUTED, .chosen = true},
	{"glm-dsa", "GlmMoeDsaForCausalLM", NULL, LATENT | ROUTED, .chosen = true},
	{"kimi-linear", "KimiLinearForCausalLM", NULL, LATENT | ROUTED, .own_experts = KIMI_EXPERTS, .delta_latent = true},
	{"afmoe", "AfmoeForCausalLM", NULL, WINDOW | ROUTED, .own_experts = AFMOE_EXPERTS, .pattern = 4},
	{"dots1", "Dots1ForCausalLM", NULL, ATTENTION_BIAS | ROUTED},
	{"bailingmoe2", "BailingMoeV2ForCausalLM", NULL, PARTIAL | ROUTED, .own_experts = LING_EXPERTS},
	{"gpt-oss", "GptOssForCausalLM", NULL, ATTENTION_BIAS | WINDOW | EXPERTS_ALL | OSS, .gating = GGUF_GATING_CHOSEN},
	{"minimax-m2", "MiniMaxM2ForCausalLM", NULL, PARTIAL | EXPERTS_ALL, .gating = GGUF_GATING_SIGMOID},
	{"minicpm", "GraniteForCausalLM", NULL, INTERLEAVE | ATTENTION_BIAS | MLP_BIAS | MULTIPLIERS},
	{"mellum", "MellumForCausalLM", NULL, ATTENTION_BIAS | WINDOW | EXPERTS | NORM_TOPK | LOCAL_ROPE, .windows_listed = true},
	{"qwen3vlmoe", "Qwen3MoeForCausalLM", NULL, ATTENTION_BIAS | EXPERTS | NORM_TOPK | SECTIONS},
	{"chatglm", "GlmForCausalLM", NULL, PARTIAL | ATTENTION_BIAS},
	{"glm4", "Glm4ForCausalLM", NULL, PARTIAL | ATTENTION_BIAS | SECTIONS | DRAFTS, .sections_halves = true},
	{"lfm2", "Lfm2ForCausalLM", NULL, CONV},
	{"lfm2moe", "Lfm2MoeForCausalLM", NULL, CONV | SIGMOID},
	{"qwen3next", "Qwen3NextForCausalLM", NULL, PARTIAL | ATTENTION_BIAS | EXPERTS | NORM_TOPK | SHARED | DELTA},
	{"qwen35", "Qwen3_5ForCausalLM", NULL, PARTIAL | ATTENTION_BIAS | SECTIONS | DELTA | DRAFTS},
	{"qwen35moe", "Qwen3_5MoeForCausalLM", NULL, PARTIAL | ATTENTION_BIAS | SECTIONS | EXPERTS | SHARED | DELTA | DRAFTS},
	{"granitehybrid", "GraniteMoeHybridForCausalLM", NULL, ATTENTION_BIAS | MULTIPLIERS | SCAN},
	{"nemotron_h", "NemotronHForCausalLM", NULL, BLOCKS},
	{"falcon-h1", "FalconH1ForCausalLM", NULL, 0, .state_beside = true},
	{"jamba", "JambaForCausalLM", NULL, 0, .selective = true},
	{"mamba", "MambaForCausalLM", NULL, 0, .selective = true, .attention_free = true},
	{"mamba2", "Mamba2ForCausalLM", NULL, BLOCKS, .attention_free = true},
	{"nemotron_h_moe", "NemotronHForCausalLM", NULL, BLOCKS | ROUTED},
};
/* clang-format on */

/* Models of this architecture that another family of the engine has. */
static const struct gguf_family MIXTRAL = {"llama", "MixtralForCausalLM", NULL, INTERLEAVE | WINDOW | EXPERTS_ALL};
static const struct gguf_family MISTRAL = {"llama", "MistralForCausalLM", NULL, INTERLEAVE | WINDOW};
static const struct gguf_family DEEPSEEK_V3 = {"deepseek2", "DeepseekV3ForCausalLM", NULL, LATENT | ROUTED};
/* Without experts, and with softmax scores and queries that count by their positions. */
static const struct gguf_family YOUTU = {"deepseek2", "YoutuForCausalLM", NULL, LATENT, .dense = true};
static const struct gguf_family MISTRAL_LARGE = {"deepseek2", "Mistral4ForCausalLM", NULL, LATENT | ROUTED | QUERY_SCALE, .gating = GGUF_GATING_SOFTMAX};
/* Its lm_head counts as if its rows were all of length 1; files have it as the checkpoint does, or divided. Known by the vocabulary. */
static const struct gguf_family BAICHUAN2 = {"baichuan", "BaichuanForCausalLM", NULL, INTERLEAVE};
/* Of 13B of either generation heads have ALiBi, so that the order of rows of q and k makes no difference. Known by the number of layers. */
static const struct gguf_family BAICHUAN_13B = {"baichuan", "BaichuanForCausalLM", NULL, 0, .positions = true, .context_apart = true};
static const struct gguf_family FALCON_MAMBA = {"mamba", "FalconMambaForCausalLM", NULL, 0, .selective = true, .attention_free = true};
/* Converters store what its checkpoints call "attention_factor" under the name of another factor. */
static const struct gguf_family OLMO3 = {"olmo2", "Olmo3ForCausalLM", NULL, WINDOW, .whole_factor = true, .pattern = 4};
/* Whose norms are those of Llama. */
static const struct gguf_family COHERE2_MOE_RMS = {"cohere2moe", "Cohere2MoeForCausalLM", NULL, LOGIT_SCALE | WINDOW | DRAFTS, .own_experts = COHERE_EXPERTS, .windows_listed = true};
static const struct gguf_family MISTRAL3 = {"mistral3", "MistralForCausalLM", NULL, INTERLEAVE | WINDOW};

/* ---- parts ---- */

/* Of an architecture that stands for several families, by its values. */
static const struct gguf_family *kin_of_latent(struct gguf_config *c)
{
	u32 count = 0;
	double scale = 0;

	if (!gguf_config_int(c, "expert_count", &count) || count == 0)
		return &YOUTU;
	if (gguf_config_float(c, "attention.temperature_scale", &scale) && scale > 0)
		return &MISTRAL_LARGE;
	count = 0;
	(void)gguf_config_int(c, "expert_gating_func", &count);
	(void)gguf_config_int(c, "block_count", &c->layers);
	/* Files that do not say it: scores that biases are added to are sigmoids' (GLM 4.7 Flash). */
	const bool unsaid = count == 0 && (gguf_config_layers_have(c, "exp_probs_b.bias") || gguf_config_layers_have(c, "exp_probs_b"));
	return count == GGUF_GATING_SIGMOID || unsaid ? &DEEPSEEK_V3 : c->family;
}

static void choose_kin(struct gguf_config *c)
{
	const struct gguf_tensor *embed = gguf_tensor_find(c->g, "token_embd.weight");
	u32 count = 0;
	double scale = 0;

	if (!strcmp(c->arch, "mistral3") && !gguf_config_float(c, "attention.temperature_scale", &scale))
		c->family = &MISTRAL3;
	if (!strcmp(c->arch, "deepseek2"))
		c->family = kin_of_latent(c);
	if (!strcmp(c->arch, "cohere2moe") && gguf_config_float(c, "attention.layer_norm_rms_epsilon", &scale) && scale > 0)
		c->family = &COHERE2_MOE_RMS;
	if (!strcmp(c->arch, "olmo2") && gguf_config_int(c, "attention.sliding_window", &count) && count > 0)
		c->family = &OLMO3;
	if (!strcmp(c->arch, "baichuan") && embed && embed->dims == 2 && embed->shape[0] == BAICHUAN2_VOCAB)
		c->family = &BAICHUAN2;
	if (!strcmp(c->arch, "baichuan") && gguf_config_int(c, "block_count", &count) && count == BAICHUAN_13B_LAYERS)
		c->family = &BAICHUAN_13B;
	if (c->family->attention_free && c->family->selective && gguf_config_bool(c, "ssm.dt_b_c_rms", false))
		c->family = &FALCON_MAMBA;
	if (strcmp(c->arch, "llama") != 0)
		return;
	if (gguf_config_int(c, "expert_count", &count) && count > 0)
		c->family = &MIXTRAL;
	else if (gguf_config_int(c, "attention.sliding_window", &count) && count > 0)
		c->family = &MISTRAL;
}

static void find_family(struct gguf_config *c)
{
	struct gguf_text arch = gguf_text_of(c->g, "general.architecture");
	char known[1024] = "";
	size_t used = 0;

	for (size_t i = 0; i < COUNT_OF(FAMILIES); i++) {
		if (gguf_text_is(arch, FAMILIES[i].arch))
			c->family = &FAMILIES[i];
		if (used < sizeof(known))
			used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", FAMILIES[i].arch);
	}
	if (!arch.bytes)
		gguf_config_fail(c, ERR_FORMAT, "general.architecture is missing; supported are: %s", known);
	else if (!c->family)
		gguf_config_fail(c, ERR_UNSUPPORTED, "general.architecture is '%.*s', which is not supported; supported: %s",
				 (int)(arch.bytes < 64 ? arch.bytes : 64), arch.text, known);
	if (c->e != ERR_OK)
		return;
	snprintf(c->arch, sizeof(c->arch), "%s", c->family->arch);
	choose_kin(c);
}

static void write_heads(struct gguf_config *c)
{
	u32 kv = 0, value = 0;

	c->heads = gguf_config_need_int(c, "attention.head_count");
	if (gguf_config_keeps_state(c) ? !gguf_config_some_int(c, "attention.head_count_kv", &kv)
					  : !gguf_config_int(c, "attention.head_count_kv", &kv) || kv == 0)
		kv = c->heads;
	if (!gguf_config_int(c, "attention.key_length", &c->head_dim) && c->e == ERR_OK)
		c->head_dim = c->hidden / c->heads;
	value = c->head_dim;
	if (gguf_config_int(c, "attention.value_length", &value) && value != c->head_dim)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is %u, but keys have %u dimensions; only heads with as many are supported", c->key, value,
				 c->head_dim);
	if (c->e == ERR_OK && c->head_dim == 0)
		gguf_config_fail(c, ERR_FORMAT, "%s.attention.key_length is 0", c->arch);
	gguf_config_write_uint(c, "num_attention_heads", c->heads);
	gguf_config_write_uint(c, "num_key_value_heads", kv);
	gguf_config_write_uint(c, "head_dim", c->head_dim);
	if (c->family->attention_apart)
		gguf_config_write_attention(c, kv);
	if (c->family->shares_key)
		gguf_config_write_bool(c, "multi_query", kv < c->heads);
	if (c->family->blocks_apart) {
		const bool norms = gguf_config_has_tensor(c, "blk.0.attn_norm_2.weight");
		gguf_config_write_bool(c, "new_decoder_architecture", norms || kv > 1);
		gguf_config_write_uint(c, "num_ln_in_parallel_attn", norms ? 2 : 1);
	}
}

/* Of MLPs; models all of whose layers have experts may have none. */
static void write_width(struct gguf_config *c)
{
	const bool some = gguf_config_has(c, BLOCKS), optional = gguf_config_has(c, DELTA) && gguf_config_has(c, EXPERTS);
	u32 width = 0, dense = 0;
	const bool experts_alone = gguf_config_has(c, ROUTED) && (!gguf_config_int(c, "leading_dense_block_count", &dense) || dense == 0);

	if (some ? !gguf_config_some_int(c, "feed_forward_length", &width) : !gguf_config_int(c, "feed_forward_length", &width) || width == 0) {
		if ((some || experts_alone) && c->e == ERR_OK) /* no layer has one */
			gguf_config_write_uint(c, "intermediate_size", c->hidden);
		else if (!optional)
			gguf_config_fail(c, ERR_FORMAT, "%s is missing; it must be an integer above 0", c->key);
		return;
	}
	gguf_config_write_uint(c, "intermediate_size", width);
}

/* Some converters store the epsilon of a layer norm under the name that the other kind of norm has. */
static void write_epsilon(struct gguf_config *c)
{
	static const char *const names[] = {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"};
	const bool layer_norm = c->family->layer_norm != NULL;
	double eps = 0;

	if (!layer_norm || !gguf_config_float(c, names[1], &eps))
		eps = gguf_config_need_float(c, c->family->scales || !layer_norm ? names[0] : names[1]);
	gguf_config_write_float(c, layer_norm ? c->family->layer_norm : "rms_norm_eps", eps);
}

static void write_sizes(struct gguf_config *c)
{
	const struct gguf_tensor *embed = gguf_tensor_find(c->g, "token_embd.weight");
	u32 drafting = 0;

	gguf_config_know(c, "vocab_size"); /* the tensor has the rows that there are */
	if (!embed || embed->dims != 2 || embed->shape[0] > GGUF_COUNT_MAX)
		gguf_config_fail(c, ERR_FORMAT, "the tensor token_embd.weight is missing, or has not two dimensions");
	c->hidden = gguf_config_need_int(c, "embedding_length");
	c->layers = gguf_config_need_int(c, "block_count");
	c->context = gguf_config_need_int(c, "context_length");
	/* Converters write the one number for all models without positions; those that there are were trained with the other. */
	if (gguf_config_has(c, SCAN) && c->context == ANY_CONTEXT)
		c->context = GRANITE_CONTEXT;
	c->blocks = c->layers;
	if (gguf_config_has(c, ROUTED | DRAFTS)) /* layers behind the model's that guess further tokens are counted, too */
		(void)gguf_config_int(c, "nextn_predict_layers", &drafting);
	if (drafting >= c->layers && drafting > 0)
		gguf_config_fail(c, ERR_FORMAT, "%s is %u, of %u layers in all", c->key, drafting, c->layers);
	c->layers -= c->e == ERR_OK ? drafting : 0;
	if (c->layers > LAYERS_MAX)
		gguf_config_fail(c, ERR_FORMAT, "%s.block_count is %u; it must be at most %d", c->arch, c->layers, LAYERS_MAX);
	if (c->e != ERR_OK)
		return;
	gguf_config_write_uint(c, "vocab_size", (u32)embed->shape[0]);
	gguf_config_write_uint(c, "hidden_size", c->hidden);
	if (!c->family->global_heads && !c->family->attention_free && !c->family->by_layer && c->family->own_experts != LLAMA4_EXPERTS && c->family->own_experts != COHERE_EXPERTS)
		write_width(c);
	gguf_config_write_uint(c, "num_hidden_layers", c->layers);
	if (drafting > 0 && !gguf_config_has(c, DRAFTS))
		gguf_config_write_uint(c, "num_nextn_predict_layers", drafting);
	gguf_config_write_uint(c, c->family->context_apart ? "model_max_length" : "max_position_embeddings", c->context);
	if (c->family->global_heads)
		gguf_config_write_global(c);
	else if (c->family->by_layer)
		gguf_config_write_by_layer(c);
	else if (c->family->step)
		gguf_config_write_step(c);
	else if (gguf_config_has(c, LATENT))
		gguf_config_write_latent(c);
	else if (!c->family->attention_free)
		write_heads(c);
	gguf_config_know(c, "attention.layer_norm_epsilon"); /* of the kind of norm that the family has not it says nothing */
	gguf_config_know(c, "attention.layer_norm_rms_epsilon");
	write_epsilon(c);
}

bool gguf_config_write_layer_types(struct gguf_config *c)
{
	u64 count;
	i64 window = 0;

	gguf_config_know(c, "attention.sliding_window_pattern");
	if (!gguf_array(c->g, c->key, &count))
		return false;
	if (count != c->layers)
		gguf_config_fail(c, ERR_FORMAT, "%s has %llu values; it must have one for each of the %u layers", c->key, (unsigned long long)count,
				 c->layers);
	json_key(&c->w, "layer_types");
	json_array_begin(&c->w);
	for (u64 i = 0; c->e == ERR_OK && i < count; i++) {
		if (!gguf_array_int(c->g, c->key, i, &window))
			gguf_config_fail(c, ERR_FORMAT, "%s must have true or false, or an integer, for each layer", c->key);
		json_write_cstr(&c->w, window ? "sliding_attention" : "full_attention");
	}
	json_array_end(&c->w);
	return true;
}

/* Values that are at the number that stands for their absence change nothing, whatever they are. */
static bool is_nothing(const struct gguf *g, const char *key)
{
	double number = 1;
	bool flag = true;

	return (gguf_float(g, key, &number) && number >= 0 && number <= 0) || (gguf_bool(g, key, &flag) && !flag);
}

/* Whether some layers must have a window: in some families always, in others where a value says which. */
static bool needs_window(struct gguf_config *c)
{
	if (!c->family->pattern || c->family->streams)
		return c->family->streams;
	gguf_config_know(c, "attention.sliding_window_pattern");
	return gguf_has(c->g, c->key) && !is_nothing(c->g, c->key);
}

static void write_window(struct gguf_config *c)
{
	u32 window = 0, pattern = c->family->pattern;

	if (needs_window(c)) {
		window = gguf_config_need_int(c, "attention.sliding_window");
	} else if (!gguf_config_int(c, "attention.sliding_window", &window) || window == 0) {
		json_key(&c->w, "sliding_window");
		json_write_null(&c->w);
		return;
	}
	gguf_config_write_uint(c, "sliding_window", window);
	if ((pattern == 0 && !c->family->windows_listed) || gguf_config_write_layer_types(c))
		return;
	if (c->family->windows_listed)
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s must be a list of true or false for each layer", c->key);
	(void)gguf_config_int(c, "attention.sliding_window_pattern", &pattern);
	gguf_config_write_uint(c, "sliding_window_pattern", pattern);
}

static void write_biases(struct gguf_config *c)
{
	bool attention = gguf_config_layers_have(c, "attn_q.bias") || gguf_config_has_tensor(c, "blk.0.attn_qkv.bias");
	bool mlp = gguf_config_layers_have(c, "ffn_down.bias");

	if (gguf_config_has(c, ATTENTION_BIAS))
		gguf_config_write_bool(c, "attention_bias", attention);
	if (gguf_config_has(c, MLP_BIAS))
		gguf_config_write_bool(c, "mlp_bias", mlp);
	if (gguf_config_has(c, USE_BIAS))
		gguf_config_write_bool(c, "use_bias", attention);
	if (gguf_config_has(c, QKV_BIAS))
		gguf_config_write_bool(c, "use_qkv_bias", attention);
	if (c->family->head_norms)
		gguf_config_write_bool(c, c->family->head_norms, gguf_config_layers_have(c, "attn_q_norm.weight"));
	if (c->family->scales)
		gguf_config_write_bool(c, "lm_head_bias", gguf_config_has_tensor(c, "output.bias"));
}

/* Gemma's. What scores are divided by is not in the file: it is the heads' width, but for the largest model of each
 * generation. */
static void write_soft_caps(struct gguf_config *c)
{
	double cap;
	bool large = c->layers == (gguf_config_has(c, LOCAL_ROPE) ? GEMMA3_27B_LAYERS : GEMMA_27B_LAYERS);

	gguf_config_write_float(c, "query_pre_attn_scalar", large ? (double)c->hidden / c->heads : c->head_dim);
	if (gguf_config_float(c, "attn_logit_softcapping", &cap))
		gguf_config_write_float(c, "attn_logit_softcapping", cap);
	if (gguf_config_float(c, "final_logit_softcapping", &cap))
		gguf_config_write_float(c, "final_logit_softcapping", cap);
}

static void write_local_rope(struct gguf_config *c)
{
	double theta = 10000;

	if (c->family->windows_listed) /* what rotates all layers that nothing else is said of */
		(void)gguf_config_float(c, "rope.freq_base", &theta);
	(void)gguf_config_float(c, "rope.freq_base_swa", &theta);
	gguf_config_write_float(c, "rope_local_base_freq", theta);
}

static void write_multipliers(struct gguf_config *c)
{
	static const char *const names[][2] = {{"embedding_scale", "embedding_multiplier"},
					       {"residual_scale", "residual_multiplier"},
					       {"logit_scale", "logits_scaling"}};
	/* What the first files of the other architecture left to be known. */
	const double usual[] = {12, 1.4 / sqrt(c->layers), c->hidden / 256.0};
	const bool minicpm = strcmp(c->arch, "minicpm") == 0;
	double value = 0;

	for (size_t i = 0; i < COUNT_OF(names); i++)
		if (gguf_config_float(c, names[i][0], &value) && value > 0)
			gguf_config_write_float(c, names[i][1], value);
		else if (minicpm)
			gguf_config_write_float(c, names[i][1], usual[i]);
	if (!gguf_config_float(c, "attention.scale", &value) || !(value > 0))
		value = 1 / sqrt(c->head_dim);
	gguf_config_write_float(c, "attention_multiplier", value);
}

/* Of one family by the tensors; of the other no reader of such files takes one of the two for granted. */
static void write_parallel(struct gguf_config *c)
{
	static const char name[] = "use_parallel_residual";
	const bool unsaid = c->family->parallel_unsaid, side_by_side = unsaid ? !gguf_config_layers_have(c, "ffn_norm.weight") : gguf_config_bool(c, name, false);

	gguf_config_know(c, name);
	if (!unsaid && !gguf_has(c->g, c->key))
		gguf_config_fail(c, ERR_FORMAT, "%s is missing; it must be true or false", c->key);
	gguf_config_write_bool(c, name, side_by_side);
}

static void write_parts(struct gguf_config *c)
{
	double value;

	if (c->family->activation) {
		json_key(&c->w, "hidden_act");
		json_write_cstr(&c->w, c->family->activation);
	}
	if (c->family->parallel_choice || c->family->parallel_unsaid)
		write_parallel(c);
	if (gguf_config_has(c, WINDOW))
		write_window(c);
	if (gguf_config_has(c, RECURRENT) || c->family->delta_latent)
		gguf_config_write_recurrent(c);
	if (c->family->state_beside)
		gguf_config_write_beside(c);
	if (c->family->selective)
		gguf_config_write_selective(c);
	if (c->family->streams)
		gguf_config_write_streams(c);
	if (gguf_config_has(c, EXPERTS | EXPERTS_ALL | ROUTED | SIGMOID) || c->family->own_experts)
		gguf_config_write_experts(c);
	if (gguf_config_has(c, SOFT_CAPS))
		write_soft_caps(c);
	if (gguf_config_has(c, LOCAL_ROPE))
		write_local_rope(c);
	if (gguf_config_has(c, MULTIPLIERS))
		write_multipliers(c);
	if (gguf_config_has(c, LOGIT_SCALE))
		gguf_config_write_float(c, "logit_scale", gguf_config_need_float(c, "logit_scale"));
	if (gguf_config_has(c, CLIP) && gguf_config_float(c, "attention.clamp_kqv", &value) && value > 0)
		gguf_config_write_float(c, "clip_qkv", value);
	if (gguf_config_has(c, SECTIONS)) {
		gguf_config_know(c, "n_deepstack_layers");
		gguf_config_know(c, "rope.dimension_sections");
		if (c->family->sections_halves)
			gguf_config_write_bool(c, "rope_interleave", !gguf_has(c->g, c->key));
	}
	if (c->family->chosen)
		gguf_config_write_indexer(c);
	write_biases(c);
	if (c->family->global_heads)
		gguf_config_write_global_rope(c);
	else if (!c->family->step)
		gguf_config_write_rope(c);
	if (gguf_config_has(c, INTERLEAVE))
		gguf_config_write_bool(c, "rope_interleave", true);
}

/* What values are stored in, or near to, decides in which type is computed. */
static const char *stored_type(const struct gguf_config *c)
{
	u32 count = gguf_tensor_count(c->g);
	bool half = false, bf16 = false;

	for (u32 i = 0; i < count; i++) {
		const struct gguf_tensor *t = gguf_tensor_at(c->g, i);
		bf16 = bf16 || t->type == GGUF_BF16;
		half = half || (t->type != GGUF_F32 && t->type != GGUF_BF16);
	}
	return half ? "float16" : bf16 ? "bfloat16" : "float32";
}

static void write_rest(struct gguf_config *c)
{
	u32 ends[8], count = gguf_end_ids(c->g, ends, COUNT_OF(ends));
	struct gguf_text text;
	i64 id;

	if (gguf_token_of(c->g, "tokenizer.ggml.bos_token_id", &id, &text))
		gguf_config_write_uint(c, "bos_token_id", (u32)id);
	json_key(&c->w, "eos_token_id");
	json_array_begin(&c->w);
	for (u32 i = 0; i < count; i++)
		json_write_uint(&c->w, ends[i]);
	json_array_end(&c->w);
	gguf_config_write_pooling(c);
	gguf_config_write_bool(c, "tie_word_embeddings", !gguf_config_has_tensor(c, "output.weight"));
	json_key(&c->w, "torch_dtype");
	json_write_cstr(&c->w, stored_type(c));
	json_key(&c->w, "quantization_config");
	json_object_begin(&c->w);
	json_key(&c->w, "quant_method");
	json_write_cstr(&c->w, "gguf");
	json_object_end(&c->w);
}

static void check_keys(struct gguf_config *c)
{
	size_t prefix = strlen(c->arch);
	const char *key;

	gguf_config_know(c, "tensor_data_layout");
	if (!gguf_config_bool(c, "attention.causal", true))
		gguf_config_fail(c, ERR_UNSUPPORTED, "%s is false; only models whose tokens attend to those before them are supported", c->key);
	for (u32 i = 0; c->e == ERR_OK && (key = gguf_key_at(c->g, i)) != NULL; i++) {
		bool known = strncmp(key, c->arch, prefix) != 0 || key[prefix] != '.' || is_nothing(c->g, key);
		for (u32 k = 0; k < c->asked_count && !known; k++)
			known = strcmp(key + prefix + 1, c->asked[k]) == 0;
		if (!known)
			gguf_config_fail(c, ERR_UNSUPPORTED, "the value %.100s is not known for %s: it may change what the model computes", key,
					 c->family->name);
	}
}

enum err gguf_write_config(struct buf *out, const struct gguf *g, struct err_msg *em)
{
	struct gguf_config c = {.g = g, .em = em};

	json_begin(&c.w, out);
	c.w.spaced = true;
	find_family(&c);
	if (c.e != ERR_OK)
		return c.e;
	c.rotates = !c.family->positions && !c.family->delta_latent;
	json_object_begin(&c.w);
	json_key(&c.w, "architectures");
	json_array_begin(&c.w);
	json_write_cstr(&c.w, c.family->name);
	json_array_end(&c.w);
	write_sizes(&c);
	if (c.e == ERR_OK)
		write_parts(&c);
	write_rest(&c);
	json_object_end(&c.w);
	check_keys(&c);
	return c.e == ERR_OK && !buf_ok(out) ? err_set(em, ERR_NO_MEMORY, "out of memory for config.json") : c.e;
}

/* ---- generation_config.json ---- */

enum err gguf_write_generation(struct buf *out, const struct gguf *g, struct err_msg *em)
{
	static const char *const reals[][2] = {{"general.sampling.temp", "temperature"},
					       {"general.sampling.top_p", "top_p"},
					       {"general.sampling.min_p", "min_p"},
					       {"general.sampling.penalty_repeat", "repetition_penalty"}};
	u32 ends[8], count = gguf_end_ids(g, ends, COUNT_OF(ends));
	struct json_writer w;
	double real;
	i64 top_k;

	json_begin(&w, out);
	w.spaced = true;
	json_object_begin(&w);
	json_key(&w, "eos_token_id");
	json_array_begin(&w);
	for (u32 i = 0; i < count; i++)
		json_write_uint(&w, ends[i]);
	json_array_end(&w);
	for (size_t i = 0; i < COUNT_OF(reals); i++)
		if (gguf_float(g, reals[i][0], &real) && isfinite(real)) {
			json_key(&w, reals[i][1]);
			json_write_float(&w, (float)real);
		}
	if (gguf_int(g, "general.sampling.top_k", &top_k)) {
		json_key(&w, "top_k");
		json_write_int(&w, top_k);
	}
	json_object_end(&w);
	return buf_ok(out) ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory for generation_config.json");
}
