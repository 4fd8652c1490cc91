/* Models whose layers mix tokens otherwise than others do: that answers do not depend on how they are computed, and that adapters are refused. */
#include <criterion/criterion.h>

#include "tests/unit/proc_worker/random_runs.h"

#define SIZES "\"vocab_size\": 96, \"hidden_size\": 48, \"intermediate_size\": 80, \"max_position_embeddings\": 256"
#define GRIFFIN(more)                                                                                                                     \
	"{\"architectures\": [\"RecurrentGemmaForCausalLM\"], " SIZES ", \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "              \
	"\"num_key_value_heads\": 1, \"attention_window_size\": 12" more "}"
#define MINIMAX                                                                                                                           \
	"{\"architectures\": [\"MiniMaxForCausalLM\"], " SIZES ", \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "                     \
	"\"num_key_value_heads\": 2, \"num_local_experts\": 5, \"num_experts_per_tok\": 2, \"linear_attn_alpha_factor\": 1.5, "             \
	"\"linear_attn_beta_factor\": 0.8, \"mlp_alpha_factor\": 0.7}"
#define JETMOE_OF(channels)                                                                                                                  \
	"{\"architectures\": [\"JetMoeForCausalLM\"], " SIZES ", \"num_hidden_layers\": 3, \"num_key_value_heads\": 2, "                      \
	"\"kv_channels\": " channels ", \"num_local_experts\": 5, \"num_experts_per_tok\": 3}"
#define JETMOE JETMOE_OF("12")
#define DIFFLLAMA                                                                                                                         \
	"{\"architectures\": [\"DiffLlamaForCausalLM\"], " SIZES ", \"num_hidden_layers\": 3, \"num_attention_heads\": 8, "                   \
	"\"num_key_value_heads\": 4}"

Test(mixers, recurrent_units_answer_alike_whatever_the_step, .timeout = 120)
{
	random_runs_check_ways(GRIFFIN(", \"lru_width\": 40"));
}

Test(mixers, wide_recurrent_units_have_room, .timeout = 120)
{
	random_runs_check_wide(GRIFFIN(", \"lru_width\": 4096"));
}

Test(mixers, lightning_attention_answers_alike_whatever_the_step, .timeout = 120)
{
	random_runs_check_ways(MINIMAX);
}

Test(mixers, mixtures_of_heads_answer_alike_whatever_the_step, .timeout = 120)
{
	random_runs_check_ways(JETMOE);
}

Test(mixers, wide_mixtures_of_heads_have_room, .timeout = 120)
{
	random_runs_check_wide(JETMOE_OF("1024"));
}

Test(mixers, differential_attention_answers_alike_whatever_the_step, .timeout = 120)
{
	random_runs_check_ways(DIFFLLAMA);
}

Test(mixers, adapters_are_refused)
{
	random_runs_check_no_adapters(GRIFFIN(""), "adapters of a RecurrentGemmaForCausalLM are not supported: some of its layers keep a state");
	random_runs_check_no_adapters(MINIMAX, "adapters of a MiniMaxForCausalLM are not supported: some of its layers keep a state");
	random_runs_check_no_adapters(JETMOE, "adapters of a JetMoeForCausalLM are not supported: its heads are a mixture of experts");
	random_runs_check_no_adapters(DIFFLLAMA, "adapters of a DiffLlamaForCausalLM are not supported: half of its heads take away from the others");
}
