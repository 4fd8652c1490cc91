/* What config.json says of experts, in families whose layers differ in little else. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define SIZES                                                                                             \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4, " \
	"\"num_attention_heads\": 16, \"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-6"

static struct model_config c;

#define good(family, more)		   said_good(&c, family, SIZES, more)
#define refused(family, more, error, text) said_refused(family, SIZES, more, error, text)

#define HY "HYV3ForCausalLM"
#define HY_EXPERTS "\"num_experts\": 8, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 24"
Test(config_moe, weights_of_hy_3_always_sum_to_its_factor)
{
	good(HY, HY_EXPERTS);
	cr_assert(c.router.sigmoid && c.normalize_experts && c.router.scale == 2.826f && c.router.sum_plus == 1e-20f && c.shared_intermediate == 24);
	cr_assert(c.head_dim == 128 && c.kv_heads == 8 && c.rope.theta == 11158840 && !c.attention_bias && !c.tied_embeddings);
	cr_assert(!(c.layer_flags[0] & LAYER_EXPERTS) && (c.layer_flags[1] & LAYER_EXPERTS));
	refused(HY, HY_EXPERTS ", \"num_shared_experts\": 0", ERR_UNSUPPORTED, "\"num_shared_experts\" is 0, which is not supported for " HY);
	good(HY, "\"num_local_experts\": 8, \"num_experts_per_tok\": 3, \"expert_hidden_dim\": 24, \"num_shared_experts\": 2, \"attention_bias\": true, "
		 "\"router_scaling_factor\": 1.5, \"mlp_layer_types\": [\"sparse\", \"dense\", \"sparse\", \"sparse\"]");
	cr_assert(c.expert_intermediate == 24 && c.shared_intermediate == 48 && c.attention_bias && c.router.scale == 1.5f);
	cr_assert((c.layer_flags[0] & LAYER_EXPERTS) && !(c.layer_flags[1] & LAYER_EXPERTS));
	good(HY, HY_EXPERTS ", \"expert_hidden_dim\": 24, \"first_k_dense_replace\": 2, \"moe_router_enable_expert_bias\": true, "
			    "\"moe_router_use_sigmoid\": true, \"route_norm\": true, \"qk_norm\": true, \"num_nextn_predict_layers\": 1, "
			    "\"enable_attention_fp32_softmax\": false, \"enable_lm_head_fp32\": true, \"enable_moe_fp32_combine\": false");
	cr_assert(!(c.layer_flags[1] & LAYER_EXPERTS) && (c.layer_flags[2] & LAYER_EXPERTS));
	refused(HY, HY_EXPERTS ", \"expert_hidden_dim\": 25", ERR_INVALID, "\"expert_hidden_dim\" and \"moe_intermediate_size\" are the same field of a " HY);
	refused(HY, HY_EXPERTS ", \"moe_router_use_sigmoid\": false", ERR_UNSUPPORTED, "\"moe_router_use_sigmoid\" must be true for " HY);
	refused(HY, HY_EXPERTS ", \"route_norm\": false", ERR_UNSUPPORTED, "\"route_norm\" must be true for " HY);
	refused(HY, HY_EXPERTS ", \"qk_norm\": false", ERR_UNSUPPORTED, "\"qk_norm\" must be true for " HY);
	refused(HY, HY_EXPERTS ", \"mlp_bias\": true", ERR_UNSUPPORTED, "\"mlp_bias\" is set");
	refused(HY, HY_EXPERTS ", \"n_group\": 2", ERR_UNSUPPORTED, "\"n_group\" is set");
	refused("LlamaForCausalLM", "\"head_dim\": 12, \"moe_router_use_sigmoid\": true", ERR_UNSUPPORTED, "\"moe_router_use_sigmoid\"");
}
