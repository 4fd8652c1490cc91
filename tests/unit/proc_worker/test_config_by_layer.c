/* What config.json says of models whose layers have KV heads and MLPs of their own sizes, or lack one of both, and what is refused in it. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define DECILM "DeciLMForCausalLM"
#define SIZES                                                                                                              \
	"\"vocab_size\": 64, \"hidden_size\": 96, \"num_hidden_layers\": 3, \"num_attention_heads\": 12, \"rms_norm_eps\": 1e-5, " \
	"\"max_position_embeddings\": 128"
#define BLOCK(attention, ffn)	 "{\"attention\": {" attention "}, \"ffn\": {" ffn "}}"
#define GROUP(n)		 "\"no_op\": false, \"replace_with_linear\": false, \"n_heads_in_group\": " n
#define WIDTH(n)		 "\"no_op\": false, \"sparsify\": null, \"intermediate_size\": " n
#define MULT(n)			 "\"no_op\": false, \"replace_with_linear\": false, \"ffn_mult\": " n
#define NONE			 "\"no_op\": true, \"n_heads_in_group\": null"
#define NO_MLP			 "\"no_op\": true, \"ffn_mult\": null"
#define BLOCKS(one, two, three)	 "\"block_configs\": [" one ", " two ", " three "]"
#define KV_HEADS(list)		 "\"intermediate_size\": 40, \"num_key_value_heads_per_layer\": " list

static struct model_config c;

#define good(more)	      said_good(&c, DECILM, SIZES, more)
#define refused(more, e, text) said_refused(DECILM, SIZES, more, e, text)
/* Of the first layer. */
#define refused_block(attention, ffn, e, text) refused("\"block_configs\": [" BLOCK(attention, ffn) ", " BLOCK(GROUP("3"), WIDTH("40")) ", " BLOCK(GROUP("3"), WIDTH("40")) "]", e, text)

Test(config_by_layer, blocks_say_what_each_layer_has)
{
	good(BLOCKS(BLOCK(GROUP("3"), WIDTH("40")), BLOCK(NONE, MULT("5.25")), BLOCK(GROUP("12"), NO_MLP)) ", \"intermediate_size\": null, \"num_key_value_heads\": null");
	cr_assert(c.layer_flags[0] == 0 && c.layer_flags[1] == LAYER_NO_MIXER && c.layer_flags[2] == LAYER_NO_MLP);
	cr_assert(model_kv_heads(&c, 0) == 4 && model_kv_heads(&c, 1) == 0 && model_kv_heads(&c, 2) == 1 && c.kv_heads == 4);
	/* 2 * 5.25 * 96 / 3 is 336, and the next multiple of 256 is 512. */
	cr_assert(model_intermediate(&c, 0) == 40 && model_intermediate(&c, 1) == 512 && model_intermediate(&c, 2) == 0 && c.intermediate == 512);
	cr_assert(c.own_kv_layers == 3 && c.head_dim == 8 && c.rope.theta == 10000);
	good(BLOCKS(BLOCK(GROUP("3"), MULT("4")), BLOCK(NONE, MULT("4.1")), BLOCK(NONE, NO_MLP)));
	/* 256 is a multiple, 262.4 is not. */
	cr_assert(c.own_kv_layers == 1 && model_intermediate(&c, 0) == 256 && model_intermediate(&c, 1) == 512);
}

Test(config_by_layer, a_matrix_may_stand_in_place_of_a_block)
{
	good(BLOCKS(BLOCK("\"replace_with_linear\": true", WIDTH("40")), BLOCK(GROUP("3"), "\"replace_with_linear\": true, \"ffn_mult\": null"), BLOCK("\"no_op\": true, \"replace_with_linear\": true", NO_MLP)));
	cr_assert(c.layer_flags[0] == (LAYER_NO_MIXER | LAYER_LINEAR_MIXER) && c.layer_flags[1] == (LAYER_NO_MLP | LAYER_LINEAR_MLP));
	cr_assert(c.layer_flags[2] == (LAYER_NO_MIXER | LAYER_NO_MLP) && c.own_kv_layers == 2 && !model_attends(&c, 0));
	cr_assert(model_kv_heads(&c, 0) == 0 && model_intermediate(&c, 1) == 0);
}

Test(config_by_layer, kv_heads_may_be_listed_alone)
{
	good(KV_HEADS("[4, 1, 12]"));
	cr_assert(model_kv_heads(&c, 0) == 4 && model_kv_heads(&c, 1) == 1 && model_kv_heads(&c, 2) == 12 && c.kv_heads == 12 && c.own_kv_layers == 3);
	cr_assert(model_intermediate(&c, 0) == 40 && model_intermediate(&c, 2) == 40);
	refused(KV_HEADS("[4, 1]"), ERR_FORMAT, "\"num_key_value_heads_per_layer\" must be an array of a number for each of the 3 layers");
	refused(KV_HEADS("[4, 5, 1]"), ERR_INVALID, "\"num_key_value_heads_per_layer\"[1] must be a number that divides num_attention_heads, which is 12");
	refused(KV_HEADS("[4, 0, 1]"), ERR_INVALID, "\"num_key_value_heads_per_layer\"[1]");
	refused(KV_HEADS("[4, 2, 1], \"num_key_value_heads\": 4"), ERR_INVALID, "\"num_key_value_heads\" is 4, but layer 1 has 2");
	refused("\"num_key_value_heads_per_layer\": [4, 2, 1]", ERR_FORMAT, "\"intermediate_size\" is missing");
	refused("\"intermediate_size\": 40", ERR_FORMAT, "or \"block_configs\" one of an object for each, found missing");
}

Test(config_by_layer, what_no_layer_can_have_is_refused_by_name)
{
	refused_block(GROUP("5"), WIDTH("40"), ERR_INVALID, "\"n_heads_in_group\" is 5; it must divide num_attention_heads, which is 12");
	refused_block("\"no_op\": false", WIDTH("40"), ERR_FORMAT, "\"n_heads_in_group\" is missing");
	refused_block(GROUP("3"), "\"no_op\": false", ERR_FORMAT, "\"ffn_mult\" is missing");
	refused_block(GROUP("3"), MULT("1e9"), ERR_INVALID, "\"ffn_mult\" is 1e+09");
	refused_block(GROUP("3"), MULT("0.001"), ERR_INVALID, "\"ffn_mult\" is 0.001");
	refused_block(GROUP("3"), MULT("1") ", \"intermediate_size\": 40", ERR_INVALID, "\"intermediate_size\" is 40, but \"ffn_mult\" makes 256");
	refused("\"attention_bias\": true, \"block_configs\": [" BLOCK("\"replace_with_linear\": true", WIDTH("40")) ", " BLOCK(GROUP("3"), WIDTH("40")) ", " BLOCK(GROUP("3"), WIDTH("40")) "]",
		ERR_UNSUPPORTED, "\"replace_with_linear\" of \"attention\" of \"block_configs\"[0] is true, and the matrix has a bias");
	refused_block(GROUP("3") ", \"window_length\": 8", WIDTH("40"), ERR_UNSUPPORTED, "\"window_length\" of \"attention\" of \"block_configs\"[0] is set");
	refused_block(GROUP("3"), WIDTH("40") ", \"moe\": {\"num_experts\": 4}", ERR_UNSUPPORTED, "\"moe\" of \"ffn\"");
	refused_block(GROUP("3"), WIDTH("40") ", \"gated\": false", ERR_UNSUPPORTED, "\"gated\" of \"ffn\" of \"block_configs\"[0] is set, which is not supported; it must be true");
	refused_block(GROUP("3"), WIDTH("40") ", \"hidden_act\": \"gelu\"", ERR_UNSUPPORTED, "\"hidden_act\" of \"ffn\" of \"block_configs\"[0] is 'gelu'");
	refused("\"block_configs\": [" BLOCK(GROUP("3"), WIDTH("40")) "]", ERR_FORMAT, "\"block_configs\" must be an array of an object for each of the 3 layers");
	refused(BLOCKS("7", "7", "7"), ERR_FORMAT, "\"attention\" of \"block_configs\"[0] must be an object, found missing");
	refused(BLOCKS(BLOCK(NONE, WIDTH("40")), BLOCK(NONE, WIDTH("40")), BLOCK(NONE, WIDTH("40"))), ERR_UNSUPPORTED, "no layer attends");
	refused(KV_HEADS("[1, 1, 1]") ", " BLOCKS("7", "7", "7"), ERR_INVALID, "both say how many KV heads layers have");
	said_refused("LlamaForCausalLM", SIZES ", \"intermediate_size\": 40", "\"block_configs\": [1]", ERR_UNSUPPORTED, "\"block_configs\" is set");
}

Test(config_by_layer, ranks_divide_what_every_layer_has)
{
	struct model_shard s;
	struct err_msg em;

	good(BLOCKS(BLOCK(GROUP("3"), WIDTH("40")), BLOCK(NONE, WIDTH("44")), BLOCK(GROUP("12"), NO_MLP)));
	cr_assert_eq(model_shard_init(&s, &c, 3, 4, &em), ERR_OK, "%s", em.text);
	cr_assert(s.heads == 3 && model_shard_kv_heads(&s, &c, 0) == 1 && model_shard_kv_first(&s, &c, 0) == 3);
	cr_assert(model_shard_kv_heads(&s, &c, 2) == 1 && model_shard_kv_first(&s, &c, 2) == 0 && s.kv_heads == 1 && s.intermediate == 11);
	cr_assert_eq(model_shard_init(&s, &c, 0, 3, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "the model's intermediate_size 44 cannot be divided by it"), "%s", em.text);
	good(BLOCKS(BLOCK(GROUP("2"), WIDTH("42")), BLOCK(GROUP("3"), WIDTH("36")), BLOCK(GROUP("12"), NO_MLP)));
	cr_assert_eq(model_shard_init(&s, &c, 0, 3, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "the model's 4 KV heads (of layer 1)"), "%s", em.text);
	good(BLOCKS(BLOCK(GROUP("2"), WIDTH("42")), BLOCK(GROUP("2"), WIDTH("40")), BLOCK(GROUP("12"), NO_MLP)));
	cr_assert_eq(model_shard_init(&s, &c, 0, 3, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "the intermediate size 40 (of layer 1) cannot be divided by it"), "%s", em.text);
}
