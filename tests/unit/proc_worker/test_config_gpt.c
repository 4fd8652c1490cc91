/* What config.json says in families that share a key among all heads or name their fields as GPT-2 does, and what is refused in it. */
#include <criterion/criterion.h>
#include <string.h>

#include "proc_worker/model/weights.h"
#include "tests/unit/proc_worker/config_said.h"
#include "tests/unit/proc_worker/random_model.h"

static struct model_config c;

#define FALCON "FalconForCausalLM"
#define FALCON_SIZES "\"vocab_size\": 64, \"hidden_size\": 48, \"num_hidden_layers\": 4, \"num_attention_heads\": 4"
#define good(more)		   said_good(&c, FALCON, FALCON_SIZES, more)
#define refused(more, error, text) said_refused(FALCON, FALCON_SIZES, more, error, text)

Test(config_gpt, falcon_7b_shares_one_key_and_one_norm)
{
	good("");
	cr_assert(c.kv_heads == 1 && c.parallel && !c.norm_each && c.intermediate == 192 && c.context_max == 2048 && c.tied_embeddings);
	cr_assert(!c.attention_bias && !c.mlp_bias && c.activation == KERN_GELU && c.rope.dim == 12 && c.rope.theta == 10000 && !c.interleaved);
	good("\"multi_query\": true, \"num_kv_heads\": 4, \"bias\": true, \"ffn_hidden_size\": 80, \"activation\": \"gelu_new\", \"tie_word_embeddings\": false");
	cr_assert(c.kv_heads == 1 && c.attention_bias && c.mlp_bias && c.intermediate == 80 && c.activation == KERN_GELU_TANH && !c.tied_embeddings);
	good("\"num_kv_heads\": 1, \"alibi\": false, \"apply_residual_connection_post_layernorm\": false, \"num_ln_in_parallel_attn\": 1, \"ff_factor\": 4");
	cr_assert(c.kv_heads == 1 && !c.norm_each);
}

Test(config_gpt, older_falcons_say_how_wide_they_are_by_another_name)
{
	said_good(&c, FALCON, "\"vocab_size\": 64, \"n_embed\": 48, \"num_hidden_layers\": 4, \"num_attention_heads\": 4", "");
	cr_assert(c.hidden == 48 && c.intermediate == 192 && c.head_dim == 12);
	good("\"n_embed\": 48");
	refused("\"n_embed\": 64", ERR_INVALID, "\"n_embed\" and \"hidden_size\" are the same field of a " FALCON);
	good("\"multi_query\": null, \"new_decoder_architecture\": true, \"num_kv_heads\": 2");
}

Test(config_gpt, falcon_40b_has_a_norm_for_each_block)
{
	good("\"new_decoder_architecture\": true, \"num_kv_heads\": 2, \"multi_query\": true");
	cr_assert(c.kv_heads == 2 && c.parallel && c.norm_each);
	good("\"new_decoder_architecture\": true, \"num_ln_in_parallel_attn\": null");
	cr_assert(c.kv_heads == 4 && c.norm_each);
	good("\"new_decoder_architecture\": true, \"num_kv_heads\": 2, \"num_ln_in_parallel_attn\": 1");
	cr_assert(c.kv_heads == 2 && !c.norm_each);
}

Test(config_gpt, blocks_of_other_falcons_stand_one_behind_the_other)
{
	good("\"multi_query\": false, \"parallel_attn\": false, \"bias\": true");
	cr_assert(c.kv_heads == 4 && !c.parallel && !c.norm_each && c.attention_bias);
	good("\"multi_query\": false, \"num_kv_heads\": 4");
	cr_assert(c.kv_heads == 4 && c.parallel);
}

Test(config_gpt, what_no_falcon_has_is_refused)
{
	refused("\"alibi\": 1", ERR_FORMAT, "\"alibi\" must be true or false");
	refused("\"multi_query\": \"yes\"", ERR_FORMAT, "\"multi_query\" must be true or false");
	refused("\"new_decoder_architecture\": 0", ERR_FORMAT, "\"new_decoder_architecture\" must be true or false");
	refused("\"num_kv_heads\": 2", ERR_INVALID, "\"num_key_value_heads\" is 2, and \"multi_query\" is true: it must be 1 or 4, the number of heads");
	refused("\"num_kv_heads\": 2", ERR_INVALID, "(the field \"num_kv_heads\" of a " FALCON ")");
	refused("\"num_kv_heads\": 1, \"multi_query\": false", ERR_INVALID, "\"multi_query\" is false: it must be 4, the number of heads");
	refused("\"num_kv_heads\": 3, \"new_decoder_architecture\": true", ERR_INVALID,
		"num_attention_heads 4 is not a multiple of num_key_value_heads 3 (the field \"num_kv_heads\" of a " FALCON ")");
	refused("\"num_kv_heads\": 0", ERR_INVALID, "(the field \"num_kv_heads\" of a " FALCON ")");
	refused("\"parallel_attn\": false, \"new_decoder_architecture\": true", ERR_UNSUPPORTED, "(the field \"parallel_attn\" of a " FALCON ")");
	refused("\"num_ln_in_parallel_attn\": 2", ERR_UNSUPPORTED, "\"num_ln_in_parallel_attn\" is 2; without \"new_decoder_architecture\" it must be 1");
	refused("\"num_ln_in_parallel_attn\": 3, \"new_decoder_architecture\": true", ERR_INVALID, "\"num_ln_in_parallel_attn\" is 3; it must be 1 to 2");
	refused("\"multi_query\": null", ERR_FORMAT, "\"multi_query\" is null; of a " FALCON " it must be true or false, or missing");
	refused("\"parallel_attn\": null", ERR_FORMAT, "or missing (the field \"parallel_attn\" of a " FALCON ")");
	refused("\"ff_factor\": 3", ERR_INVALID, "\"ff_factor\" is 3, which is an \"intermediate_size\" of 144, but that is 192");
	refused("\"apply_residual_connection_post_layernorm\": true", ERR_UNSUPPORTED, "must be false for " FALCON);
	refused("\"activation\": \"tanh\"", ERR_UNSUPPORTED, "(the field \"activation\" of a " FALCON ")");
	refused("\"use_cache\": true, \"sliding_window\": 8", ERR_UNSUPPORTED, "\"sliding_window\" is set");
	said_refused("LlamaForCausalLM", FALCON_SIZES ", \"intermediate_size\": 80, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5",
		     "\"multi_query\": true", ERR_UNSUPPORTED, "\"multi_query\" is set, which is not supported for LlamaForCausalLM");
}

#define BIGCODE "GPTBigCodeForCausalLM"
#define GPT2_SIZES "\"vocab_size\": 64, \"n_embd\": 48, \"n_layer\": 4, \"n_head\": 4, \"n_positions\": 128"
#define STARCODER \
	"\"attention_softmax_in_fp32\": true, \"scale_attention_softmax_in_fp32\": true, \"scale_attn_weights\": true, \"n_inner\": 80, " \
	"\"inference_runner\": 0, \"validate_runner_input\": true, \"pre_allocate_kv_cache\": true, \"pad_key_length\": true, \"max_batch_size\": null"
Test(config_gpt, heads_of_starcoder_share_one_key)
{
	said_good(&c, BIGCODE, GPT2_SIZES, "");
	cr_assert(c.kv_heads == 1 && c.intermediate == 192 && c.tied_embeddings && !c.parallel && c.activation == KERN_GELU_TANH && c.norm_eps == 1e-5f);
	cr_assert(c.context_max == 128 && (c.layer_flags[3] & LAYER_NO_ROPE));
	said_good(&c, BIGCODE, GPT2_SIZES, STARCODER ", \"num_key_value_heads\": 1, \"activation_function\": \"gelu\"");
	cr_assert(c.kv_heads == 1 && c.intermediate == 80 && c.activation == KERN_GELU);
	said_good(&c, BIGCODE, GPT2_SIZES, "\"multi_query\": false, \"num_key_value_heads\": 4, \"tie_word_embeddings\": false");
	cr_assert(c.kv_heads == 4 && !c.tied_embeddings);
	said_refused(BIGCODE, GPT2_SIZES, "\"num_key_value_heads\": 2", ERR_INVALID, "\"multi_query\" is true: it must be 1 or 4");
	said_refused(BIGCODE, GPT2_SIZES, "\"num_key_value_heads\": 1, \"multi_query\": false", ERR_INVALID, "it must be 4, the number of heads");
	said_refused(BIGCODE, GPT2_SIZES, "\"multi_query\": 1", ERR_FORMAT, "\"multi_query\" must be true or false");
	said_refused(BIGCODE, GPT2_SIZES, "\"scale_attn_weights\": false", ERR_UNSUPPORTED, "\"scale_attn_weights\" must be true");
	said_refused(BIGCODE, GPT2_SIZES, "\"add_cross_attention\": true", ERR_UNSUPPORTED, "unknown field \"add_cross_attention\"");
	said_refused(BIGCODE, GPT2_SIZES, "\"rope_theta\": 10000", ERR_UNSUPPORTED, "\"rope_theta\" is set, which is not supported for " BIGCODE);
	said_refused(BIGCODE, GPT2_SIZES, "\"new_decoder_architecture\": true", ERR_UNSUPPORTED, "\"new_decoder_architecture\" is set");
	said_refused(BIGCODE, GPT2_SIZES, "\"activation_function\": \"tanh\"", ERR_UNSUPPORTED, "(the field \"activation_function\" of a " BIGCODE ")");
	said_refused("GPT2LMHeadModel", GPT2_SIZES, "\"multi_query\": true", ERR_UNSUPPORTED, "\"multi_query\" is set");
}

#define GPTJ "GPTJForCausalLM"
Test(config_gpt, a_part_of_gpt_js_heads_turns_by_neighbours)
{
	said_good(&c, GPTJ, GPT2_SIZES, "\"rotary_dim\": 4, \"rotary\": true, \"n_inner\": null, \"scale_attn_weights\": true");
	cr_assert(c.rope.dim == 4 && c.rope.theta == 10000 && c.interleaved && c.parallel && c.kv_heads == 4 && c.intermediate == 192);
	cr_assert(!c.tied_embeddings && !c.attention_bias && c.activation == KERN_GELU_TANH && c.context_max == 128 && !(c.layer_flags[0] & LAYER_NO_ROPE));
	said_good(&c, GPTJ, "\"vocab_size\": 64, \"n_embd\": 256, \"n_layer\": 4, \"n_head\": 4, \"n_positions\": 128", "\"tie_word_embeddings\": true");
	cr_assert(c.rope.dim == 64 && c.head_dim == 64 && c.tied_embeddings);
	said_refused(GPTJ, GPT2_SIZES, "", ERR_INVALID, "\"rotary_dim\" is missing; it must be an even number from 2 to 12, what a head has, for 64");
	said_refused(GPTJ, GPT2_SIZES, "\"rotary_dim\": null", ERR_FORMAT, "\"rotary_dim\" is missing; it must be an integer from 1 to 12");
	said_refused(GPTJ, GPT2_SIZES, "\"rotary_dim\": 14", ERR_INVALID, "\"rotary_dim\" is 14; it must be 1 to 12");
	said_refused(GPTJ, GPT2_SIZES, "\"rotary_dim\": 3", ERR_INVALID, "\"rotary_dim\" is 3; it must be even");
	said_refused(GPTJ, GPT2_SIZES, "\"rotary_dim\": 4, \"rotary\": false", ERR_UNSUPPORTED, "\"rotary\" must be true for " GPTJ);
	said_refused(GPTJ, GPT2_SIZES, "\"rotary_dim\": 4, \"partial_rotary_factor\": 0.5", ERR_UNSUPPORTED, "\"partial_rotary_factor\" is set");
	said_refused(GPTJ, GPT2_SIZES, "\"rotary_dim\": 4, \"scale_attn_weights\": false", ERR_UNSUPPORTED, "\"scale_attn_weights\" must be true");
	said_refused(GPTJ, GPT2_SIZES, "\"rotary_dim\": 4, \"multi_query\": true", ERR_UNSUPPORTED, "\"multi_query\" is set");
}

#define CODEGEN "CodeGenForCausalLM"
Test(config_gpt, errors_name_fields_as_files_do)
{
	static const char sizes[] = "\"vocab_size\": 64, \"n_embd\": 50, \"n_layer\": 4, \"n_positions\": 128", heads[] = "\"n_head\": 4, \"rotary_dim\": 4";
	struct err_msg em;

	said_refused(GPTJ, sizes, heads, ERR_INVALID,
		     "hidden_size 50 is not a multiple of num_attention_heads 4, and there is no \"head_dim\" (the field \"n_embd\" of a " GPTJ
		     ") (the field \"n_head\" of a " GPTJ ")");
	said_refused(BIGCODE, GPT2_SIZES, "\"layer_types\": []", ERR_FORMAT, "(num_hidden_layers), found array of 0 (the field \"n_layer\" of a " BIGCODE ")");
	/* A file may have the other name. */
	cr_assert_eq(said_parse(&c, GPTJ, sizes, "\"num_attention_heads\": 4, \"rotary_dim\": 4", &em), ERR_INVALID, "%s", em.text);
	cr_assert(strstr(em.text, "(the field \"n_embd\" of a " GPTJ ")") && !strstr(em.text, "\"n_head\""), "%s", em.text);
}

Test(config_gpt, errors_about_what_was_read_name_fields_as_files_do)
{
#define OF_LAYERS(count) \
	"{\"architectures\": [\"" GPTJ "\"], \"vocab_size\": 64, \"n_embd\": 48, \"n_layer\": " count ", \"n_head\": 4, \"n_positions\": 128, " \
	"\"rotary_dim\": 4, \"n_inner\": 81}"
	static const char fewer[] = OF_LAYERS("1");
	static struct random_model model;
	struct safetensors *st;
	struct model_shard shard;
	struct err_msg em;

	cr_assert_eq(model_config_parse(&c, fewer, strlen(fewer), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(model_shard_init(&shard, &c, 0, 2, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "the model's n_inner 81 cannot be divided by it"), "%s", em.text);
	cr_assert_eq(model_shard_init(&shard, &c, 0, 1, &em), ERR_OK, "%s", em.text);
	random_model_write(&model, OF_LAYERS("2"), 3);
	cr_assert_eq(safetensors_open(&st, model.dir, &em), ERR_OK, "%s", em.text);
	const struct weights_plan plan = {.config = &c, .shard = &shard, .checkpoint = st, .dtype = KERN_F32, .matrix_dtype = KERN_F32};
	cr_assert_eq(model_weights_check(&plan, &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "config.json says that the model has 1 layers (n_layer), and the checkpoint has 2"), "%s", em.text);
	safetensors_close(&st);
	random_model_remove(&model);
}

Test(config_gpt, heads_of_codegen_come_in_quarters)
{
	said_good(&c, CODEGEN, GPT2_SIZES, "\"rotary_dim\": 4, \"n_ctx\": 128, \"tie_word_embeddings\": false");
	cr_assert(c.rope.dim == 4 && c.interleaved && c.parallel && c.kv_heads == 4 && c.intermediate == 192 && !c.tied_embeddings);
	said_good(&c, CODEGEN, "\"vocab_size\": 64, \"n_embd\": 36, \"n_layer\": 1, \"n_head\": 6, \"n_positions\": 128", "\"rotary_dim\": 4");
	said_refused(CODEGEN, "\"vocab_size\": 64, \"n_embd\": 54, \"n_layer\": 1, \"n_head\": 3, \"n_positions\": 128", "\"rotary_dim\": 4", ERR_INVALID,
		     "3 heads of 18 dimensions; of a " CODEGEN " they must have a multiple of 4 together");
	said_refused(CODEGEN, GPT2_SIZES, "\"rotary_dim\": null", ERR_FORMAT, "\"rotary_dim\" is missing");
	/* Its numbers would be those of other heads, without a word. */
	said_refused(CODEGEN, GPT2_SIZES, "\"rotary_dim\": 4, \"head_dim\": 12", ERR_UNSUPPORTED, "\"head_dim\" is set, as of CodeGen 2, whose heads come in eighths");
	said_good(&c, CODEGEN, GPT2_SIZES, "\"rotary_dim\": 4, \"head_dim\": null");
	said_good(&c, GPTJ, GPT2_SIZES, "\"rotary_dim\": 4, \"head_dim\": 12");
}

Test(config_gpt, a_shared_key_is_on_every_rank)
{
	struct model_shard s;
	struct err_msg em;

	good("");
	cr_assert_eq(model_shard_init(&s, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert(s.heads == 2 && s.kv_heads == 1 && model_shard_kv_first(&s, &c, 0) == 0 && s.intermediate == 96);
	cr_assert_eq(model_shard_init(&s, &c, 0, 3, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "4 attention heads cannot be divided by it"), "%s", em.text);
}
