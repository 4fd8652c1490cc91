/* What config.json says of BitNet's models and of matrices of three values, and what is refused in it. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                                                     \
	"\"vocab_size\": 64, \"hidden_size\": 80, \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 20, " \
	"\"max_position_embeddings\": 128"
#define BITNET "BitNetForCausalLM"
#define QUANTIZED(fields) "\"quantization_config\": {\"quant_method\": \"bitnet\"" fields "}"
#define AUTO(mode)	  ", \"linear_class\": \"autobitlinear\", \"quantization_mode\": \"" mode "\""

static struct model_config c;

#define good(family, more)	      said_good(&c, family, SIZES, more)
#define refused(family, more, e, text) said_refused(family, SIZES, more, e, text)

Test(config_bitnet, what_the_file_leaves_out_is_the_familys)
{
	good(BITNET, "");
	cr_assert(c.kv_heads == 5 && c.head_dim == 4 && c.rope.theta == 500000 && c.norm_eps == 1e-5f && c.activation == KERN_RELU_SQUARED);
	cr_assert(!c.tied_embeddings && !c.attention_bias && c.quant.count == 0);
	good(BITNET, "\"num_key_value_heads\": null, \"tie_word_embeddings\": true, \"attention_bias\": true, \"hidden_act\": \"silu\"");
	cr_assert(c.kv_heads == 20 && c.tied_embeddings && c.attention_bias && c.activation == KERN_SILU);
	refused(BITNET, "\"mlp_bias\": true", ERR_UNSUPPORTED, "\"mlp_bias\" is set");
	refused(BITNET, "\"sliding_window\": 8", ERR_UNSUPPORTED, "\"sliding_window\" is set");
	refused(BITNET, "\"weight_bits\": 1", ERR_UNSUPPORTED, "unknown field \"weight_bits\"");
}

Test(config_bitnet, scales_multiply_or_divide_by_the_class_of_products)
{
	good(BITNET, QUANTIZED(AUTO("offline")));
	cr_assert(c.quant.count == 1 && c.quant.schemes[0].format == QUANT_TERNARY && c.quant.schemes[0].bits == 2);
	cr_assert(!c.quant.schemes[0].scale_divides && !c.quant.schemes[0].at_load);
	good("LlamaForCausalLM", "\"rms_norm_eps\": 1e-5, " QUANTIZED(", \"modules_to_not_convert\": null"));
	cr_assert(c.quant.schemes[0].scale_divides && !c.quant.schemes[0].at_load);
	good(BITNET, QUANTIZED(", \"linear_class\": \"bitlinear\", \"quantization_mode\": \"online\"")); /* these are always packed */
	cr_assert(c.quant.schemes[0].scale_divides && !c.quant.schemes[0].at_load);
	refused(BITNET, QUANTIZED(", \"linear_class\": \"linear\""), ERR_UNSUPPORTED, "\"linear_class\" is 'linear'; supported: bitlinear, autobitlinear");
	refused(BITNET, QUANTIZED(", \"use_rms_norm\": true"), ERR_UNSUPPORTED, "field \"use_rms_norm\" is set");
	refused(BITNET, QUANTIZED(", \"input_bits\": 8"), ERR_UNSUPPORTED, "field \"input_bits\" is unknown");
}

Test(config_bitnet, all_but_lm_head_is_rounded_at_load)
{
	good(BITNET, QUANTIZED(AUTO("online")));
	cr_assert(c.quant.schemes[0].at_load && !c.quant.schemes[0].scale_divides);
	good(BITNET, QUANTIZED(AUTO("online") ", \"modules_to_not_convert\": [\"lm_head\"]"));
	cr_assert(c.quant.schemes[0].at_load);
	refused(BITNET, QUANTIZED(AUTO("online") ", \"modules_to_not_convert\": []"), ERR_UNSUPPORTED, "\"modules_to_not_convert\" must be null or [\"lm_head\"]");
	refused(BITNET, QUANTIZED(AUTO("online") ", \"modules_to_not_convert\": [\"q_proj\"]"), ERR_UNSUPPORTED, "must be null or [\"lm_head\"]");
	refused("LlamaForCausalLM", "\"rms_norm_eps\": 1e-5, " QUANTIZED(AUTO("online")), ERR_UNSUPPORTED, "is read of a BitNetForCausalLM only, not of a LlamaForCausalLM");
}
