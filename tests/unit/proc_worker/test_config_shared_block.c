/* What config.json says of blocks that layers share, what is refused in it, and that weights of such blocks are held once. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/model/tensor_names.h"
#include "proc_worker/model/weights_priv.h"
#include "tests/unit/proc_worker/config_said.h"
#include "tests/unit/proc_worker/random_model.h"

#define ZAMBA2 "Zamba2ForCausalLM"
#define SIZES                                                                                                                            \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 90, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, " \
	"\"n_mamba_heads\": 4, \"mamba_ngroups\": 2"
#define TYPES ", \"layers_block_type\": [\"hybrid\", \"mamba\", \"hybrid\", \"hybrid\"]"

static struct model_config c;

#define good(more)		   said_good(&c, ZAMBA2, SIZES TYPES, more)
#define refused(more, error, text) said_refused(ZAMBA2, SIZES TYPES, more, error, text)

Test(config_shared_block, a_layer_of_the_file_is_two)
{
	const u32 nothing = LAYER_NO_MIXER | LAYER_NO_MLP, state = LAYER_RECURRENT | LAYER_NO_MLP, block = LAYER_SHARED_BLOCK | LAYER_NO_ROPE;

	good("\"num_mem_blocks\": 2");
	cr_assert(c.layers == 8 && c.own_kv_layers == 8 && c.blocks.uses == 3 && c.blocks.count == 2 && c.blocks.rank == 128 && !c.blocks.adapts_attention);
	for (u32 i = 1; i < 8; i += 2)
		cr_assert_eq(c.layer_flags[i], state);
	cr_assert(c.layer_flags[0] == block && c.layer_flags[2] == nothing && c.layer_flags[4] == block && c.layer_flags[6] == block);
	cr_assert(c.blocks.first[0] == 0 && c.blocks.first[4] == 4 && c.blocks.first[6] == 0);
	cr_assert(model_attends(&c, 4) && !model_attends(&c, 2) && !model_attends(&c, 5));
	good("\"use_mem_rope\": true, \"use_shared_attention_adapter\": true, \"adapter_rank\": 5");
	cr_assert(c.layer_flags[0] == LAYER_SHARED_BLOCK && c.blocks.adapts_attention && c.blocks.rank == 5 && c.blocks.first[4] == 0 && c.blocks.first[6] == 0);
}

Test(config_shared_block, heads_are_of_twice_the_stream)
{
	good("");
	cr_assert(c.head_dim == 24 && c.rope.dim == 24 && fabsf(c.attention_scale - 1 / sqrtf(12)) < 1e-7f && c.activation == KERN_GELU && c.kv_heads == 4);
	cr_assert(c.context_max == 4096 && c.tied_embeddings && c.norm_eps == 1e-5f && c.recurrent.value_dim == 24 && c.recurrent.key_dim == 64 && !c.mlp_bias);
	good("\"add_bias_linear\": true, \"rms_norm_eps\": 1e-3, \"mamba_headdim\": 24, \"attention_head_dim\": 24, \"attention_hidden_size\": 96, "
	     "\"ffn_hidden_size\": 90, \"kv_channels\": 12, \"num_query_groups\": 4, \"hybrid_layer_ids\": [0, 2, 3]");
	cr_assert(c.mlp_bias && c.recurrent.bias && c.norm_eps == 1e-3f && c.recurrent.gate_eps == 1e-5f);
}

Test(config_shared_block, what_files_say_of_blocks_is_checked)
{
	said_refused(ZAMBA2, SIZES, "\"num_mem_blocks\": 2", ERR_FORMAT, "\"layer_types\" must be an array of 4 strings (num_hidden_layers), each mamba or hybrid, found missing of 0");
	said_refused(ZAMBA2, SIZES, "\"layers_block_type\": [\"hybrid\", \"mamba\"]", ERR_FORMAT, "found array of 2 (the field \"layers_block_type\"");
	said_refused(ZAMBA2, SIZES, "\"layers_block_type\": [\"hybrid\", \"mamba\", \"attention\", \"mamba\"]", ERR_UNSUPPORTED,
		     "\"layer_types\"[2] is 'attention'; supported: mamba (or linear_attention), hybrid");
	said_refused(ZAMBA2, SIZES, "\"layers_block_type\": [\"mamba\", \"mamba\", \"mamba\", \"mamba\"]", ERR_UNSUPPORTED, "none of the layers is one of attention (\"layer_types\": hybrid)");
	refused("\"hybrid_layer_ids\": [0, 3]", ERR_INVALID, "\"hybrid_layer_ids\"[1] is not the number of the next layer");
	refused("\"hybrid_layer_ids\": [0]", ERR_INVALID, "\"hybrid_layer_ids\" has 1 layers, but \"layer_types\" calls 3 hybrid");
	refused("\"attention_head_dim\": 12", ERR_UNSUPPORTED, "\"head_dim\" is 12; of a " ZAMBA2 " with hidden_size 48, intermediate_size 90 and num_attention_heads 4 it must be 24");
	refused("\"attention_hidden_size\": 48", ERR_UNSUPPORTED, "\"attention_hidden_size\" is 48");
	refused("\"num_mem_blocks\": 0", ERR_INVALID, "\"num_mem_blocks\" is 0");
	refused("\"use_long_context\": true", ERR_UNSUPPORTED, "\"use_long_context\" must be false for " ZAMBA2);
	refused("\"use_conv_bias\": false", ERR_UNSUPPORTED, "\"use_conv_bias\" must be true for " ZAMBA2);
	refused("\"num_experts\": 4", ERR_UNSUPPORTED, "\"num_experts\" is set, which is not supported for " ZAMBA2);
	said_refused(ZAMBA2, "\"vocab_size\": 64, \"hidden_size\": 50, \"num_hidden_layers\": 1, \"num_attention_heads\": 3, \"layers_block_type\": [\"hybrid\"]", "", ERR_INVALID,
		     "\"hidden_size\" is 50; of a " ZAMBA2 " twice that must be a multiple of \"num_attention_heads\", which is 3");
	said_refused("LlamaForCausalLM", "\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 90, \"num_hidden_layers\": 4, \"num_attention_heads\": 4",
		     "\"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"num_mem_blocks\": 2", ERR_UNSUPPORTED, "\"num_mem_blocks\" is set, which is not supported for LlamaForCausalLM");
}

/* ---------------------------------------------------------------- weights */

#define MODEL \
	"{\"architectures\": [\"" ZAMBA2 "\"], " SIZES TYPES ", \"num_mem_blocks\": 2, \"use_shared_attention_adapter\": true, \"adapter_rank\": 6, \"add_bias_linear\": true}"

struct loaded {
	struct random_model model;
	struct model_shard shard;
	struct safetensors *st;
	struct weights_plan plan;
	struct model_weights weights;
};

static void load(struct loaded *l, enum kern_dtype matrices)
{
	struct err_msg em;

	random_model_write(&l->model, MODEL, 3);
	cr_assert_eq(model_config_parse(&c, MODEL, strlen(MODEL), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(model_shard_init(&l->shard, &c, 1, 2, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(safetensors_open(&l->st, l->model.dir, &em), ERR_OK, "%s", em.text);
	l->plan = (struct weights_plan){.config = &c, .shard = &l->shard, .checkpoint = l->st, .dtype = KERN_F32, .matrix_dtype = matrices, .memory_available = 1 << 28};
	cr_assert_eq(model_weights_load(&l->weights, &l->plan, &em), ERR_OK, "%s", em.text);
}

static void unload(struct loaded *l)
{
	model_weights_fini(&l->weights);
	safetensors_close(&l->st);
	random_model_remove(&l->model);
}

Test(config_shared_block, weights_of_a_block_are_held_once_and_adapters_of_each_layer)
{
	struct loaded l;

	load(&l, KERN_I8);
	const struct layer_weights *w = l.weights.layers;
	cr_assert(w[0].qkv.data && w[0].qkv.data == w[6].qkv.data && w[0].qkv.data != w[4].qkv.data && w[6].qkv.n == 3 * 48 && w[6].qkv.k == 96);
	cr_assert(w[0].gate_up.data == w[6].gate_up.data && w[0].down.data == w[6].down.data && w[0].attn_out.data == w[6].attn_out.data);
	cr_assert(w[0].attn_norm == w[6].attn_norm && w[0].mlp_norm == w[6].mlp_norm && w[0].gate_up_bias == w[6].gate_up_bias && w[0].down_bias == w[6].down_bias);
	cr_assert(w[0].adapter_in.data != w[6].adapter_in.data && w[6].adapter_in.n == 18 && w[6].adapter_q.n == 48 && w[6].adapter_q.k == 6);
	cr_assert(w[6].mlp_adapter_out.n == 90 && w[6].mlp_adapter_out.dtype == KERN_F32 && w[6].qkv.dtype == KERN_I8 && w[0].block_out.data != w[6].block_out.data);
	cr_assert(!w[2].qkv.data && w[3].qkv.data && w[3].attn_norm && w[2].attn_norm == NULL);
	unload(&l);
}

Test(config_shared_block, a_checkpoint_may_have_a_block_for_each_layer)
{
	struct loaded l;
	struct err_msg em;
	struct st_tensor added;

	load(&l, KERN_F32);
	tensor_names_find_blocks(l.st, &c);
	cr_assert(c.blocks.first[0] == 0 && c.blocks.first[4] == 4 && c.blocks.first[6] == 0);
	added = *safetensors_find(l.st, "model.layers.0.shared_transformer.self_attn.q_proj.weight");
	added.name = "model.layers.3.shared_transformer.self_attn.q_proj.weight";
	cr_assert_eq(safetensors_add(l.st, &added, 1, &em), ERR_OK, "%s", em.text);
	tensor_names_find_blocks(l.st, &c);
	cr_assert_eq(c.blocks.first[6], 6);
	cr_assert_eq(tensor_names_add_shared(l.st, &c, &em), ERR_NOT_FOUND);
	cr_assert(strstr(em.text, "no tensor model.layers.0.shared_transformer.self_attn.linear_q_adapter_list.0.0.weight, which is an adapter of layer 0"), "%s", em.text);
	unload(&l);
}

Test(config_shared_block, what_a_checkpoint_has_is_read_or_named)
{
	struct loaded l;
	struct err_msg em;
	struct st_tensor added;
	const struct st_tensor *unread;
	u32 from = 0;

	load(&l, KERN_F32);
	cr_assert_null(model_weights_unread(&l.plan, &from)); /* both layers that are one of the file have its names */
	c.mlp_bias = false;
	from = 0;
	cr_assert((unread = model_weights_unread(&l.plan, &from)) && !strcmp(unread->name, "model.layers.0.shared_transformer.feed_forward.gate_up_proj.bias"), "%s", unread ? unread->name : "none");
	added = *safetensors_find(l.st, "model.layers.0.shared_transformer.self_attn.linear_q_adapter.0.weight");
	added.name = "model.layers.0.shared_transformer.self_attn.linear_q_adapter_list.0.0.weight";
	cr_assert_eq(safetensors_add(l.st, &added, 1, &em), ERR_OK, "%s", em.text);
	c.blocks.adapts_attention = false;
	cr_assert_eq(tensor_names_add_shared(l.st, &c, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "linear_q_adapter_list.0.0.weight, but by config.json there are no adapters of attention"), "%s", em.text);
	unload(&l);
}
