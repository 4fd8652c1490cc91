/* What config.json says in further families of transformers, and what is refused in it. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/proc_worker/config_said.h"

#define SIZES \
	"\"vocab_size\": 64, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"max_position_embeddings\": 128"

static struct model_config c;

#define good(family, more)		   said_good(&c, family, SIZES, more)
#define refused(family, more, error, text) said_refused(family, SIZES, more, error, text)

#define PERSIMMON "PersimmonForCausalLM"

Test(config_further, persimmon_norms_heads_unless_told_otherwise)
{
	good(PERSIMMON, "");
	cr_assert(c.head_norms && c.arch->head_norm_biases && !c.arch->head_layer_norms && c.activation == KERN_RELU_SQUARED && c.norm_eps == 1e-5f);
	cr_assert(c.kv_heads == 4 && c.head_dim == 12 && c.rope.dim == 6 && c.rope.theta == 10000 && !c.tied_embeddings && !c.parallel);
	good(PERSIMMON, "\"qk_layernorm\": false, \"layer_norm_eps\": 1e-3, \"partial_rotary_factor\": 1.0, \"rope_theta\": 25000.0, \"hidden_act\": \"gelu\"");
	cr_assert(!c.head_norms && c.norm_eps == 1e-3f && c.rope.dim == 12 && c.rope.theta == 25000 && c.activation == KERN_GELU);
	refused(PERSIMMON, "\"qk_layernorm\": 1", ERR_FORMAT, "\"qk_layernorm\" must be true or false");
	refused(PERSIMMON, "\"attention_bias\": true", ERR_UNSUPPORTED, "\"attention_bias\" is set, which is not supported for " PERSIMMON);
	refused(PERSIMMON, "\"sliding_window\": 16", ERR_UNSUPPORTED, "\"sliding_window\" is set, which is not supported for " PERSIMMON);
}
