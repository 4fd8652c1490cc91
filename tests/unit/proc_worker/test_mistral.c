/* What params.json says of a model in Mistral AI's own format, what is refused in it, and what its tensors are called. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proc_worker/model/config.h"
#include "proc_worker/model/mistral_names.h"
#include "proc_worker/model/safetensors.h"
#include "proc_worker/model/tensor_names.h"

#define SIZES "\"dim\": 64, \"n_layers\": 4, \"hidden_dim\": 96, \"n_heads\": 4, \"norm_eps\": 1e-05, \"vocab_size\": 96"
#define PLAIN SIZES ", \"n_kv_heads\": 2, \"head_dim\": 32"
#define RANKS "\"q_lora_rank\": 32, \"kv_lora_rank\": 16, \"qk_rope_head_dim\": 8, \"qk_nope_head_dim\": 24, \"v_head_dim\": 12"
#define LATENT SIZES ", \"n_kv_heads\": 4, \"head_dim\": 128, \"rope_theta\": 10000.0, " RANKS
#define THETA "\"rope_theta\": 1000000.0"
#define YARN "\"yarn\": {\"factor\": 16.0, \"original_max_position_embeddings\": 128, \"beta\": 24.0, \"alpha\": 2.0, \"apply_scale\": false}"
#define QUERIES "\"llama_4_scaling\": {\"original_max_position_embeddings\": 128, \"beta\": 0.1}"
#define EXPERTS "\"num_experts\": 8, \"num_experts_per_tok\": 2, \"expert_hidden_dim\": 40"

static struct model_config c;

static enum err parse(const char *fields, struct err_msg *em)
{
	char text[4096];
	int bytes = snprintf(text, sizeof(text), "{%s}", fields);

	em->text[0] = 0;
	return model_config_parse_params(&c, text, (size_t)bytes, em);
}

static void good(const char *fields)
{
	struct err_msg em;

	cr_assert_eq(parse(fields, &em), ERR_OK, "{%s}: %s", fields, em.text);
	cr_assert(c.from_params && c.interleaved && c.eos_count == 1 && c.eos_ids[0] == 2);
}

static void refused(const char *fields, enum err expected, const char *text)
{
	struct err_msg em;
	enum err e = parse(fields, &em);

	cr_assert_eq(e, expected, "{%s}: %s: %s", fields, err_name(e), em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	cr_assert(!strstr(em.text, "config.json"), "'%s' names another file", em.text);
}

static u32 layers_with(u16 flag)
{
	u32 bits = 0;

	for (u32 i = 0; i < c.layers; i++)
		bits |= (u32)(c.layer_flags[i] & flag ? 1 : 0) << i;
	return bits;
}

Test(mistral, a_plain_model_has_its_sizes_and_no_window)
{
	good(PLAIN ", \"max_batch_size\": 8, \"model_parallel\": 1, \"use_biases\": false, \"causal\": true, \"model_type\": \"transformer\", \"activation\": \"silu\", \"dtype\": \"bfloat16\"");
	cr_assert_str_eq(c.arch->name, "MistralForCausalLM");
	cr_assert(c.hidden == 64 && c.layers == 4 && c.intermediate == 96 && c.heads == 4 && c.kv_heads == 2 && c.head_dim == 32 && c.vocab_size == 96);
	cr_assert(c.window == 0 && c.context_max == 128000 && !c.tied_embeddings && c.has_dtype && c.dtype == KERN_BF16);
	cr_assert_float_eq(c.norm_eps, 1e-5, 1e-9);
	cr_assert(c.rope.kind == ROPE_PLAIN && c.rope.theta == 1e6);
	good(SIZES ", \"head_dim\": 16, \"tied_embeddings\": true, \"lora\": null, \"vision_encoder\": {\"hidden_size\": 8}, \"_note\": [1]");
	cr_assert(c.kv_heads == 4 && c.tied_embeddings);
}

Test(mistral, a_context_is_the_least_that_is_stated)
{
	good(PLAIN ", \"max_position_embeddings\": 4096, \"max_seq_len\": 2048, \"model_max_length\": 8192");
	cr_assert_eq(c.context_max, 2048);
	good(PLAIN ", \"max_position_embeddings\": null, \"model_max_length\": 512");
	cr_assert_eq(c.context_max, 512);
	good(PLAIN ", " THETA ", " YARN ", \"max_seq_len\": 256, \"max_position_embeddings\": 2048");
	cr_assert_eq(c.context_max, 256, "YaRN is not asked");
	good(PLAIN ", " THETA ", \"yarn\": {\"factor\": 16, \"original_max_position_embeddings\": 16384, \"apply_scale\": false}");
	cr_assert_eq(c.context_max, 262144, "none is stated");
	refused(PLAIN ", \"max_seq_len\": \"long\"", ERR_FORMAT, "params.json: \"max_seq_len\" must be an integer");
}

Test(mistral, windows_are_of_all_layers_or_of_those_that_a_list_says)
{
	good(PLAIN ", \"sliding_window\": 16");
	cr_assert(c.window == 16 && layers_with(LAYER_WINDOW) == 15 && c.rope.theta == 1e4);
	good(PLAIN ", \"_sliding_window\": \"32\", \"rope_theta\": 5.0");
	cr_assert(c.window == 32 && c.rope.theta == 5);
	good(PLAIN ", \"_sliding_window\": [null, 16], " THETA);
	cr_assert_str_eq(c.arch->name, "MinistralForCausalLM");
	cr_assert(c.window == 16 && layers_with(LAYER_WINDOW) == 10);
	good(PLAIN ", \"sliding_window\": [16, 16, 16], \"_sliding_window\": [16, 16, 16]");
	cr_assert(c.window == 16 && layers_with(LAYER_WINDOW) == 15);
	good(PLAIN ", \"sliding_window\": [null, null]");
	cr_assert(c.window == 0 && layers_with(LAYER_WINDOW) == 0 && c.rope.theta == 1e6);
	refused(PLAIN ", \"sliding_window\": 0", ERR_FORMAT, "params.json: \"sliding_window\" must be an integer above 0, null, or an array of such");
	refused(PLAIN ", \"sliding_window\": \"wide\"", ERR_FORMAT, "\"sliding_window\" must be an integer above 0");
	refused(PLAIN ", \"sliding_window\": [16, 8]", ERR_UNSUPPORTED, "windows of 16 and of 8 tokens; they must be of one size");
	refused(PLAIN ", \"sliding_window\": [16, null, null]", ERR_INVALID, "is an array of 3, which layers take in turns; \"n_layers\", which is 4, must be a multiple");
	refused(PLAIN ", \"sliding_window\": 16, \"_sliding_window\": 8", ERR_INVALID, "\"sliding_window\" and \"_sliding_window\" say the same, but not the same value");
	refused(PLAIN ", \"sliding_window\": [16, null], " THETA ", " QUERIES, ERR_UNSUPPORTED, "of some layers alone is not supported together with \"llama_4_scaling\"");
	refused(LATENT ", \"sliding_window\": 16", ERR_UNSUPPORTED, "params.json: \"sliding_window\" is set, which is not supported for Mistral4ForCausalLM");
}

Test(mistral, beta_is_the_fast_end_of_yarn_and_alpha_the_slow_one)
{
	good(PLAIN ", " THETA ", " YARN);
	cr_assert_str_eq(c.arch->name, "MistralForCausalLM");
	cr_assert(c.rope.kind == ROPE_YARN && c.rope.factor == 16 && c.rope.beta_fast == 24 && c.rope.beta_slow == 2 && c.rope.original_context == 128);
	cr_assert(c.rope.attention_factor == 1 && c.rope.query_beta == 0 && c.rope.theta == 1e6);
	good(PLAIN ", " THETA ", \"yarn\": {\"factor\": 16, \"original_max_position_embeddings\": 128, \"apply_scale\": true}");
	cr_assert(fabs(c.rope.attention_factor - (0.1 * log(16) + 1)) < 1e-12 && c.rope.beta_fast == 32 && c.rope.beta_slow == 1);
	good(PLAIN ", \"rope_theta\": 500.0, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 4.0}");
	cr_assert(c.rope.kind == ROPE_LINEAR && c.rope.factor == 4 && c.rope.theta == 500);
	refused(PLAIN ", " THETA ", \"yarn\": {\"factor\": 16, \"original_max_position_embeddings\": 128}", ERR_FORMAT,
		"\"apply_scale\" of \"yarn\" is missing; it must be true or false");
	refused(PLAIN ", " THETA ", \"yarn\": {\"factor\": 16, \"apply_scale\": false}", ERR_FORMAT, "\"original_max_position_embeddings\" of \"yarn\" is missing");
	refused(PLAIN ", " THETA ", \"yarn\": {\"factor\": 0.5, \"original_max_position_embeddings\": 128, \"apply_scale\": false}", ERR_INVALID, "\"factor\"");
	refused(PLAIN ", " THETA ", \"yarn\": {\"factor\": 2, \"original_max_position_embeddings\": 128, \"apply_scale\": 1}", ERR_FORMAT,
		"\"apply_scale\" of \"yarn\" must be true or false, found integer");
	refused(PLAIN ", " THETA ", \"yarn\": {\"gamma\": 3}", ERR_UNSUPPORTED, "params.json: unknown field \"gamma\" of \"yarn\"");
	refused(PLAIN ", " YARN, ERR_FORMAT, "\"rope_theta\" is missing");
	refused(PLAIN ", " THETA ", " YARN ", \"rope_scaling\": {\"rope_type\": \"default\"}", ERR_INVALID, "\"rope_scaling\" and \"yarn\" say how positions rotate");
}

Test(mistral, queries_count_by_their_positions)
{
	good(PLAIN ", " THETA ", " YARN ", " QUERIES);
	cr_assert_str_eq(c.arch->name, "Ministral3ForCausalLM");
	cr_assert(c.rope.kind == ROPE_YARN && c.rope.query_floor == 128 && fabs(c.rope.query_beta - 0.1) < 1e-12 && c.window == 0);
	good(PLAIN ", " THETA ", " QUERIES ", \"sliding_window\": 64");
	cr_assert(c.rope.kind == ROPE_PLAIN && c.rope.query_floor == 128 && c.window == 64);
	refused(PLAIN ", " THETA ", \"llama_4_scaling\": {\"beta\": 0.1}", ERR_FORMAT, "\"original_max_position_embeddings\" of \"llama_4_scaling\" is missing");
	refused(PLAIN ", " THETA ", " YARN ", \"llama_4_scaling\": {\"original_max_position_embeddings\": 64, \"beta\": 0.1}", ERR_UNSUPPORTED,
		"of \"yarn\" and of \"llama_4_scaling\" must be the same");
}

Test(mistral, experts_of_mixtral_are_as_wide_as_an_mlp)
{
	good(PLAIN ", \"moe\": {\"num_experts\": 8, \"num_experts_per_tok\": 2, \"expert_parallel\": 1}");
	cr_assert_str_eq(c.arch->name, "MixtralForCausalLM");
	cr_assert(c.experts == 8 && c.experts_per_token == 2 && c.expert_intermediate == 96 && layers_with(LAYER_EXPERTS) == 15 && c.rope.theta == 1e6);
	refused(PLAIN ", \"moe\": {\"num_experts\": 8}", ERR_FORMAT, "\"num_experts_per_tok\" of \"moe\" is missing");
	refused(PLAIN ", \"moe\": {\"num_experts\": 8, \"num_experts_per_tok\": 9}", ERR_INVALID, "\"num_experts_per_tok\"");
	refused(PLAIN ", \"moe\": {" EXPERTS "}", ERR_UNSUPPORTED, "\"expert_hidden_dim\" of \"moe\" must be \"hidden_dim\" unless heads share a latent");
	refused(PLAIN ", \"moe\": {\"num_experts\": 8, \"num_experts_per_tok\": 2, \"num_shared_experts\": 1}", ERR_UNSUPPORTED,
		"\"num_shared_experts\" of \"moe\" must be 0 unless heads share a latent");
	refused(PLAIN ", " THETA ", " QUERIES ", \"moe\": {\"num_experts\": 8, \"num_experts_per_tok\": 2}", ERR_UNSUPPORTED, "\"llama_4_scaling\" together with \"moe\"");
}

Test(mistral, heads_may_share_a_latent_and_experts_come_from_groups)
{
	good(LATENT ", " YARN ", " QUERIES ", \"moe\": {" EXPERTS ", \"first_k_dense_replace\": 1, \"num_shared_experts\": 2, \"routed_scale\": 2.5, "
	     "\"num_expert_groups\": 4, \"num_expert_groups_per_tok\": 2, \"route_every_n\": 1, \"renorm_strategy\": \"WEIGHTS\", \"use_load_balancing_bias\": false}");
	cr_assert_str_eq(c.arch->name, "Mistral4ForCausalLM");
	cr_assert(c.latent.rank == 16 && c.latent.q_rank == 32 && c.latent.key == 24 && c.latent.rope == 8 && c.latent.value == 12);
	cr_assert(c.experts == 8 && c.experts_per_token == 2 && c.expert_intermediate == 40 && layers_with(LAYER_EXPERTS) == 14);
	cr_assert(c.shared_intermediate == 80 && c.router.groups == 4 && c.router.groups_top == 2 && c.router.scale == 2.5f && c.normalize_experts && !c.router.sigmoid);
	cr_assert(c.rope.attention_factor == 1 && fabs((double)c.attention_scale - 1 / sqrt(32)) < 1e-6 && c.rope.query_floor == 128, "apply_scale is false");
	good(LATENT);
	cr_assert(layers_with(LAYER_EXPERTS) == 0 && c.rope.kind == ROPE_PLAIN);
	good(LATENT ", \"moe\": {" EXPERTS "}");
	cr_assert(c.shared_intermediate == 0 && layers_with(LAYER_EXPERTS) == 15);
	refused(LATENT ", \"moe\": {" EXPERTS ", \"use_load_balancing_bias\": true}", ERR_UNSUPPORTED, "\"use_load_balancing_bias\" of \"moe\" must be false");
	refused(LATENT ", \"moe\": {" EXPERTS ", \"renorm_strategy\": \"NONE\"}", ERR_UNSUPPORTED, "\"renorm_strategy\" of \"moe\" is 'NONE'; supported: WEIGHTS");
	refused(LATENT ", \"moe\": {" EXPERTS ", \"route_every_n\": 2}", ERR_UNSUPPORTED, "\"route_every_n\" of \"moe\" must be 1");
	refused(LATENT ", \"moe\": {\"num_experts\": 8, \"num_experts_per_tok\": 2}", ERR_FORMAT, "\"expert_hidden_dim\" of \"moe\" is missing");
	refused(LATENT ", \"moe\": {" EXPERTS ", \"num_expert_groups\": 3, \"num_expert_groups_per_tok\": 1}", ERR_INVALID, "\"num_expert_groups\"");
	refused(LATENT ", \"yarn\": {\"factor\": 16, \"original_max_position_embeddings\": 128, \"apply_scale\": true}", ERR_UNSUPPORTED,
		"\"apply_scale\" of \"yarn\" must be false where heads share a latent");
	refused(PLAIN ", \"kv_lora_rank\": 16", ERR_FORMAT, "\"rope_theta\" is missing");
	refused(PLAIN ", " THETA ", \"kv_lora_rank\": 16", ERR_FORMAT, "params.json: \"qk_nope_head_dim\" is missing");
}

Test(mistral, matrices_may_be_in_eight_bits)
{
	static const char *const inputs[] = {"\"TENSOR\"", "\"NO_SCALES\"", "null"};
	char fields[1024];

	for (size_t i = 0; i < COUNT_OF(inputs); i++) {
		snprintf(fields, sizeof(fields), PLAIN ", \"quantization\": {\"qformat_weight\": \"fp8_e4m3\", \"qscheme_act\": %s}", inputs[i]);
		good(fields);
		cr_assert(c.quant.count == 1 && c.quant.schemes[0].format == QUANT_FP8 && c.quant.schemes[0].block_rows == 0);
	}
	good(PLAIN ", \"quantization\": {}, \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}");
	cr_assert(c.quant.count == 1 && c.quant.schemes[0].block_rows == 128);
	good(PLAIN ", \"quantization\": {\"quant_method\": \"fp8\", \"weight_block_size\": [32, 64]}");
	cr_assert(c.quant.schemes[0].block_columns == 64);
	refused(PLAIN ", \"quantization\": {\"qformat_weight\": \"int3\"}", ERR_UNSUPPORTED, "\"qformat_weight\" of \"quantization\" is 'int3'; supported: fp8_e4m3");
	refused(PLAIN ", \"quantization\": {\"qscheme_act\": \"TENSOR\"}", ERR_FORMAT, "\"qformat_weight\" of \"quantization\" is missing");
	refused(PLAIN ", \"quantization\": {\"qformat_weight\": \"fp8_e4m3\", \"qscheme_act\": \"ROW\"}", ERR_UNSUPPORTED,
		"\"qscheme_act\" of \"quantization\" is 'ROW'; supported: TENSOR, NO_SCALES or null");
	refused(PLAIN ", \"quantization\": {\"qformat_weight\": \"fp8_e4m3\", \"bits\": 8}", ERR_UNSUPPORTED, "unknown field \"bits\" of \"quantization\"");
	refused(PLAIN ", \"quantization\": {\"qformat_weight\": \"fp8_e4m3\"}, \"quantization_config\": {\"quant_method\": \"fp8\"}", ERR_INVALID,
		"\"quantization\" and \"quantization_config\" say how matrices are stored");
}

Test(mistral, what_is_missing_unknown_or_not_computed_is_named)
{
	struct err_msg em;

	cr_assert_eq(model_config_parse_params(&c, "[]", 2, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "params.json: the file must be an object, found array");
	refused("\"n_layers\": 4", ERR_FORMAT, "params.json: \"dim\" is missing; it must be a number");
	refused(SIZES, ERR_FORMAT, "params.json: \"head_dim\" is missing");
	refused("\"dim\": 64, \"n_layers\": 4, \"hidden_dim\": 96, \"n_heads\": 4, \"norm_eps\": 1e-05, \"vocab_size\": 2, \"head_dim\": 16", ERR_INVALID,
		"params.json: \"vocab_size\" is 2; it must be above 2, the id of </s>");
	refused(PLAIN ", \"ffn_dim_multiplier\": 1.3", ERR_UNSUPPORTED, "params.json: unknown field \"ffn_dim_multiplier\": it may change what the model computes");
	refused(PLAIN ", \"pooling\": {\"type\": \"mean\"}", ERR_UNSUPPORTED, "unknown field \"pooling\"");
	refused(PLAIN ", \"lora\": {\"rank\": 8}", ERR_UNSUPPORTED, "unknown field \"lora\"");
	refused(PLAIN ", \"use_biases\": true", ERR_UNSUPPORTED, "params.json: \"use_biases\" must be false");
	refused(PLAIN ", \"causal\": false", ERR_UNSUPPORTED, "params.json: \"causal\" must be true");
	refused(PLAIN ", \"model_type\": \"mamba\"", ERR_UNSUPPORTED, "params.json: \"model_type\" is 'mamba'; supported: transformer");
	refused(PLAIN ", \"activation\": \"tanh\"", ERR_UNSUPPORTED, "params.json: \"activation\"");
	refused(PLAIN ", \"moe\": 8", ERR_FORMAT, "params.json: \"moe\" must be an object, found integer");
	refused("\"dim\": \"wide\", \"n_layers\": 4, \"hidden_dim\": 96, \"n_heads\": 4, \"norm_eps\": 1e-05, \"vocab_size\": 96, \"head_dim\": 16", ERR_FORMAT,
		"params.json: \"dim\" must be an integer");
	refused(SIZES ", \"head_dim\": 16, \"n_kv_heads\": 3", ERR_INVALID, "params.json: n_heads 4 is not a multiple of n_kv_heads 3");
	refused(PLAIN ", \"a\\u0000b\": 1", ERR_FORMAT, "params.json: there is a NUL in \"a");
	good(PLAIN ", \"multimodal\": {\"whisper_model_args\": {\"encoder_args\": {\"causal\": false}}}");
	refused(PLAIN ", \"multimodal\": {\"whisper_model_args\": {\"encoder_args\": {\"causal\": true}}}", ERR_UNSUPPORTED, "\"causal\" of \"encoder_args\" must be false");
	refused(PLAIN ", \"multimodal\": {\"touch_args\": 1}", ERR_UNSUPPORTED, "unknown field \"touch_args\" of \"multimodal\"");
}

/* ---------------------------------------------------------------- tensors */

/* A file of tensors of one number each under these names. */
static struct safetensors *open_named(const char *const *names, u32 count)
{
	char dir[] = "/tmp/tercet-names-XXXXXX", path[64], header[4096];
	struct safetensors *st;
	struct err_msg em;
	size_t used = 0;
	float data[64] = {0};

	cr_assert(mkdtemp(dir));
	for (u32 i = 0; i < count; i++)
		used += (size_t)snprintf(header + used, sizeof(header) - used, "%s\"%s\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [%u, %u]}",
					 i ? ", " : "{", names[i], 4 * i, 4 * i + 4);
	used += (size_t)snprintf(header + used, sizeof(header) - used, "}");
	snprintf(path, sizeof(path), "%s/a.safetensors", dir);
	FILE *f = fopen(path, "wb");
	u64 bytes = used;
	cr_assert(f && fwrite(&bytes, 8, 1, f) == 1 && fwrite(header, used, 1, f) == 1 && fwrite(data, 4, count, f) == count && fclose(f) == 0);
	cr_assert_eq(safetensors_open_file(&st, dir, "a.safetensors", &em), ERR_OK, "%s", em.text);
	unlink(path);
	rmdir(dir);
	return st;
}

static void expect_names(const char *fields, const char *const (*pairs)[2], u32 count)
{
	const char *names[64];
	struct err_msg em;
	char text[256];

	good(fields);
	for (u32 i = 0; i < count; i++)
		names[i] = pairs[i][0];
	struct safetensors *st = open_named(names, count);
	cr_assert_eq(tensor_names_add(st, &c, &em), ERR_OK, "%s", em.text);
	for (u32 i = 0; i < count; i++) {
		const struct st_tensor *from = safetensors_find(st, pairs[i][0]), *here = pairs[i][1] ? safetensors_find(st, pairs[i][1]) : NULL;
		cr_assert(from && (!pairs[i][1] || (here && here->data == from->data)), "%s", pairs[i][0]);
		if (!pairs[i][1])
			continue;
		snprintf(text, sizeof(text), "no tensor %s (expected), model.safetensors", pairs[i][1]);
		tensor_names_in_file(text, sizeof(text), st, &c);
		cr_assert(strstr(text, pairs[i][0]) && strstr(text, "model.safetensors") && !strstr(text, pairs[i][1]), "%s", text);
	}
	safetensors_close(&st);
}

Test(mistral, tensors_have_the_names_of_the_familys_table)
{
	static const char *const plain[][2] = {
		{"tok_embeddings.weight", "model.embed_tokens.weight"},
		{"norm.weight", "model.norm.weight"},
		{"output.weight", "lm_head.weight"},
		{"layers.10.attention_norm.weight", "model.layers.10.input_layernorm.weight"},
		{"layers.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
		{"layers.0.attention.wq.weight", "model.layers.0.self_attn.q_proj.weight"},
		{"layers.0.attention.wk.qscale_weight", "model.layers.0.self_attn.k_proj.weight_scale"},
		{"layers.0.attention.wv.qscale_act", "model.layers.0.self_attn.v_proj.input_scale"},
		{"layers.0.attention.wo.weight", "model.layers.0.self_attn.o_proj.weight"},
		{"layers.0.feed_forward.w1.weight", "model.layers.0.mlp.gate_proj.weight"},
		{"layers.0.feed_forward.w2.weight", "model.layers.0.mlp.down_proj.weight"},
		{"layers.0.feed_forward.w3.weight", "model.layers.0.mlp.up_proj.weight"},
		{"vision_encoder.transformer.layers.0.attention.wq.weight", NULL},
	};
	static const char *const experts[][2] = {
		{"layers.3.feed_forward.gate.weight", "model.layers.3.block_sparse_moe.gate.weight"},
		{"layers.3.feed_forward.experts.11.w1.weight", "model.layers.3.block_sparse_moe.experts.11.w1.weight"},
		{"layers.3.feed_forward.experts.0.w2.weight", "model.layers.3.block_sparse_moe.experts.0.w2.weight"},
	};

	expect_names(PLAIN ", \"quantization\": {\"qformat_weight\": \"fp8_e4m3\"}", plain, COUNT_OF(plain));
	expect_names(PLAIN ", \"moe\": {\"num_experts\": 12, \"num_experts_per_tok\": 2}", experts, COUNT_OF(experts));
}

Test(mistral, tensors_of_models_with_latents_and_of_other_writers_have_them_too)
{
	static const char *const latent[][2] = {
		{"layers.1.attention.wq_a.weight", "model.layers.1.self_attn.q_a_proj.weight"},
		{"layers.1.attention.q_a_norm.weight", "model.layers.1.self_attn.q_a_layernorm.weight"},
		{"layers.1.attention.wq_b.weight", "model.layers.1.self_attn.q_b_proj.weight"},
		{"layers.1.attention.wkv_a_with_mqa.weight", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"},
		{"layers.1.attention.kv_a_norm.weight", "model.layers.1.self_attn.kv_a_layernorm.weight"},
		{"layers.1.attention.wkv_b.weight", "model.layers.1.self_attn.kv_b_proj.weight"},
		{"layers.1.gate.weight", "model.layers.1.mlp.gate.weight"},
		{"layers.1.experts.7.w3.weight_packed", "model.layers.1.mlp.experts.7.up_proj.weight_packed"},
		{"layers.1.shared_experts.w1.weight", "model.layers.1.mlp.shared_experts.gate_proj.weight"},
	};
	static const char *const names[] = {"layers.0.block_sparse_moe.gate.weight", "layers.0.block_sparse_moe.experts.1.w2.weight",
					    "mm_whisper_embeddings.tok_embeddings.weight"};
	struct err_msg em;

	expect_names(LATENT ", \"moe\": {" EXPERTS "}", latent, COUNT_OF(latent));
	good(PLAIN ", \"moe\": {\"num_experts\": 8, \"num_experts_per_tok\": 2}");
	struct safetensors *st = open_named(names, COUNT_OF(names));
	cr_assert_eq(mistral_names_add(st, &c, &em), ERR_OK, "%s", em.text);
	cr_assert(safetensors_find(st, "model.layers.0.block_sparse_moe.gate.weight") && safetensors_find(st, "model.embed_tokens.weight"));
	cr_assert(safetensors_find(st, "model.layers.0.block_sparse_moe.experts.1.w2.weight"));
	safetensors_close(&st);
}
