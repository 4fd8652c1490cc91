/* What config.json says of layers in pairs whose experts skip the second (LongCat Flash), and what is refused in it. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define LONGCAT "LongcatFlashForCausalLM"
#define HEADS                                                                                                                    \
	"\"vocab_size\": 64, \"hidden_size\": 96, \"num_attention_heads\": 4, \"max_position_embeddings\": 128, \"kv_lora_rank\": 16, " \
	"\"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 8, \"v_head_dim\": 10, \"ffn_hidden_size\": 80"
#define EXPERTS ", \"expert_ffn_hidden_size\": 20, \"n_routed_experts\": 6, \"moe_topk\": 3"
#define SIZES	HEADS ", \"q_lora_rank\": 24" EXPERTS

static struct model_config c;

#define good(more)	       said_good(&c, LONGCAT, SIZES, more)
#define refused(more, e, text) said_refused(LONGCAT, SIZES, more, e, text)

Test(config_shortcut, the_first_of_two_layers_has_experts)
{
	good("\"num_layers\": 2, \"zero_expert_num\": 5, \"routed_scaling_factor\": 2.5");
	cr_assert(c.layers == 4 && c.own_kv_layers == 4 && c.intermediate == 80 && c.head_dim == 24 && c.kv_heads == 1);
	for (u32 i = 0; i < 4; i++)
		cr_assert_eq(c.layer_flags[i], i % 2 ? 0 : LAYER_SHORTCUT);
	cr_assert(c.experts == 6 && c.zero_experts == 5 && c.experts_per_token == 3 && c.expert_intermediate == 20);
	cr_assert(c.router.scale == 2.5f && !c.normalize_experts && !c.router.sigmoid && c.interleaved);
	good("\"num_layers\": 2, \"num_hidden_layers\": 4, \"mla_scale_q_lora\": true, \"zero_expert_type\": \"identity\", \"attention_method\": \"MLA\"");
	cr_assert(c.zero_experts == 256 && c.router.scale == 6 && c.rope.theta == 10000000 && c.norm_eps == 1e-5f);
	good("\"num_layers\": 3, \"num_hidden_layers\": 3, \"zero_expert_num\": null");
	cr_assert(c.layers == 6 && c.zero_experts == 0);
}

Test(config_shortcut, what_is_computed_otherwise_is_refused_by_name)
{
	refused("\"num_hidden_layers\": 4", ERR_FORMAT, "\"num_layers\" is missing");
	refused("\"num_layers\": 2, \"num_hidden_layers\": 3", ERR_INVALID, "\"num_hidden_layers\" is 3; with \"num_layers\" 2 it must be that, or twice that");
	refused("\"num_layers\": 2, \"zero_expert_type\": \"copy\"", ERR_UNSUPPORTED, "\"zero_expert_type\" must be 'identity' for LongcatFlashForCausalLM");
	refused("\"num_layers\": 2, \"mla_scale_kv_lora\": false", ERR_UNSUPPORTED, "\"mla_scale_kv_lora\" must be true");
	refused("\"num_layers\": 2, \"router_bias\": true", ERR_UNSUPPORTED, "\"router_bias\" must be false");
	refused("\"num_layers\": 2, \"norm_topk_prob\": true", ERR_UNSUPPORTED, "\"norm_topk_prob\" is set");
	said_refused(LONGCAT, HEADS EXPERTS ", \"q_lora_rank\": null", "\"num_layers\": 2", ERR_UNSUPPORTED, "\"q_lora_rank\" is null");
	said_refused(LONGCAT, HEADS ", \"q_lora_rank\": 24, \"expert_ffn_hidden_size\": 20, \"n_routed_experts\": 2, \"moe_topk\": 5",
		     "\"num_layers\": 2, \"zero_expert_num\": 2", ERR_INVALID, "there are only 4 experts");
	said_refused("LlamaForCausalLM", "\"vocab_size\": 64, \"hidden_size\": 96, \"num_attention_heads\": 4, \"num_hidden_layers\": 2, \"intermediate_size\": 80, \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 128",
		     "\"zero_expert_num\": 2", ERR_UNSUPPORTED, "\"zero_expert_num\" is set");
}
