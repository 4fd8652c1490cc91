/* What config.json says of families whose program comes with the checkpoint, Baichuan, Qwen 1 and Orion, and what is refused in it. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define BAICHUAN_FIRST "BaiChuanForCausalLM"
#define BAICHUAN       "BaichuanForCausalLM"
#define QWEN	       "QWenLMHeadModel"
#define ORION	       "OrionForCausalLM"
#define SIZES	       "\"vocab_size\": 64, \"hidden_size\": 96, \"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 12"
#define CONTEXT	       ", \"max_position_embeddings\": 512"

static struct model_config c;

Test(config_remote, baichuan_has_alibi_where_its_file_has_no_context_or_is_wider_than_7b)
{
	said_good(&c, BAICHUAN, SIZES CONTEXT, "\"model_max_length\": 4096, \"z_loss_weight\": 0");
	cr_assert(c.unit_head && c.alibi.kind == ALIBI_NONE && c.context_max == 512 && c.kv_heads == 12 && c.head_dim == 8 && c.rope.theta == 10000 && c.norm_eps == 1e-6f);
	cr_assert(!(c.layer_flags[1] & LAYER_NO_ROPE));
	said_good(&c, BAICHUAN_FIRST, SIZES CONTEXT, "");
	cr_assert(!c.unit_head);
	said_good(&c, BAICHUAN, SIZES, "\"model_max_length\": 300, \"z_loss_weight\": 0");
	cr_assert(c.unit_head && c.alibi.kind == ALIBI_BELOW && c.alibi.bias_max == 8 && c.context_max == 300 && c.layer_flags[0] & LAYER_NO_ROPE && c.layer_flags[1] & LAYER_NO_ROPE);
	said_good(&c, BAICHUAN, SIZES, "\"z_loss_weight\": 0");
	cr_assert_eq(c.context_max, 4096);
	said_good(&c, BAICHUAN, "\"vocab_size\": 64000, \"hidden_size\": 5120, \"intermediate_size\": 80, \"num_hidden_layers\": 2, \"num_attention_heads\": 40" CONTEXT, "");
	cr_assert(!c.unit_head && c.alibi.kind == ALIBI_BELOW && c.context_max == 512);
}

Test(config_remote, baichuan_of_13b_is_refused_where_nothing_tells_its_generation)
{
	said_refused(BAICHUAN, SIZES, "", ERR_UNSUPPORTED, "\"vocab_size\" is 64, which does not tell the generation of this BaichuanForCausalLM of 13B");
	said_refused(BAICHUAN, SIZES, "\"z_loss_weight\": 0, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}", ERR_UNSUPPORTED,
		     "\"rope_scaling\" is set, but the heads of this BaichuanForCausalLM have ALiBi");
	said_refused(BAICHUAN_FIRST, SIZES, "", ERR_UNSUPPORTED, "\"max_position_embeddings\" is missing; of a BaiChuanForCausalLM it must be as of 7B");
}

Test(config_remote, the_lm_head_of_baichuan_is_tied_in_the_first_generation_alone)
{
	said_refused(BAICHUAN, SIZES CONTEXT, "\"tie_word_embeddings\": true", ERR_UNSUPPORTED, "\"tie_word_embeddings\" must be false");
	said_good(&c, BAICHUAN_FIRST, SIZES CONTEXT, "\"tie_word_embeddings\": true");
	cr_assert(c.tied_embeddings);
}

Test(config_remote, the_context_of_qwen_ends_where_its_arithmetic_changes)
{
	said_good(&c, QWEN, SIZES CONTEXT, "\"seq_length\": 128, \"kv_channels\": 8");
	cr_assert(!strcmp(c.context_bound, "seq_length"));
	cr_assert(c.context_max == 128 && c.intermediate == 40 && c.head_dim == 8 && c.kv_heads == 12);
	said_good(&c, QWEN, SIZES CONTEXT, "\"seq_length\": 128, \"use_dynamic_ntk\": false");
	cr_assert(c.context_max == 128 && c.head_dim == 128 && c.norm_eps == 1e-6f);
	said_good(&c, QWEN, SIZES CONTEXT, "\"seq_length\": 128, \"use_dynamic_ntk\": false, \"use_logn_attn\": true");
	cr_assert(c.context_max == 128);
	said_good(&c, QWEN, SIZES CONTEXT, "\"seq_length\": 128, \"use_dynamic_ntk\": false, \"use_logn_attn\": false, \"rotary_emb_base\": 1000000");
	cr_assert(c.context_max == 512 && !c.context_bound && c.rope.theta == 1000000);
	said_good(&c, QWEN, SIZES ", \"max_position_embeddings\": 32768", "\"seq_length\": null");
	cr_assert(c.context_max == 8192);
	said_good(&c, QWEN, SIZES CONTEXT, "\"seq_length\": 2048");
	cr_assert(c.context_max == 512);
}

Test(config_remote, what_qwen_would_compute_otherwise_is_refused_by_name)
{
	said_refused(QWEN, SIZES CONTEXT, "\"no_bias\": false", ERR_UNSUPPORTED, "\"no_bias\" must be true for " QWEN);
	said_refused(QWEN, SIZES CONTEXT, "\"rotary_pct\": 0.5", ERR_UNSUPPORTED, "\"rotary_pct\" is set");
	said_good(&c, QWEN, SIZES CONTEXT, "\"rotary_pct\": 1.0, \"no_bias\": true, \"use_cache_quantization\": false, \"bf16\": true, \"onnx_safe\": null");
	said_refused(QWEN, SIZES CONTEXT, "\"use_cache_quantization\": true", ERR_UNSUPPORTED, "\"use_cache_quantization\"");
	said_refused(QWEN, SIZES CONTEXT, "\"use_logn_attn\": 1", ERR_FORMAT, "\"use_logn_attn\" must be true or false");
	said_refused(QWEN, "\"vocab_size\": 64, \"hidden_size\": 96, \"intermediate_size\": 1, \"num_hidden_layers\": 2, \"num_attention_heads\": 12" CONTEXT, "", ERR_INVALID,
		     "\"intermediate_size\" is 1; of a " QWEN " the MLP is half as wide");
	said_refused("LlamaForCausalLM", SIZES CONTEXT ", \"rms_norm_eps\": 1e-5", "\"use_dynamic_ntk\": true", ERR_UNSUPPORTED, "\"use_dynamic_ntk\" is set");
}

Test(config_remote, orion_is_llama_with_another_norm)
{
	said_good(&c, ORION, SIZES CONTEXT, "\"max_sequence_length\": 512, \"num_key_value_heads\": 4");
	cr_assert(c.arch->layer_norm && c.kv_heads == 4 && c.norm_eps == 1e-5f && !c.attention_bias && c.activation == KERN_SILU);
	said_good(&c, ORION, SIZES CONTEXT, "\"rms_norm_eps\": 1e-3, \"attention_bias\": true");
	cr_assert(c.norm_eps == 1e-3f && c.attention_bias && c.kv_heads == 12);
	said_refused(ORION, SIZES CONTEXT, "\"mlp_bias\": true", ERR_UNSUPPORTED, "\"mlp_bias\" is set");
}
