#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

static u32 parsed(const char *text)
{
	struct err_msg em;
	u32 mask = 0;
	cr_assert_eq(kern_caps_parse(text, &mask, &em), ERR_OK, "%s: %s", text, em.text);
	return mask;
}

Test(dispatch, caps_are_named_in_lists)
{
	cr_assert_eq(parsed("avx2"), KERN_CAP_AVX2);
	cr_assert_eq(parsed("portable"), KERN_CAP_PORTABLE);
	cr_assert_eq(parsed("avx2,avx_vnni"), KERN_CAP_AVX2 | KERN_CAP_AVX_VNNI);
	cr_assert_eq(parsed("avx512_bf16,avx2,avx512"),
		     KERN_CAP_AVX2 | KERN_CAP_AVX512 | KERN_CAP_AVX512_BF16);
	cr_assert_eq(parsed("avx512_vnni,amx"), KERN_CAP_AVX512_VNNI | KERN_CAP_AMX);
	cr_assert_eq(parsed("none"), 0);
	cr_assert_eq(parsed(""), 0);
	cr_assert_eq(parsed("all"), KERN_CAP_ALL);
}

Test(dispatch, an_unknown_cap_is_named_in_the_error)
{
	struct err_msg em;
	u32 mask;
	cr_assert_eq(kern_caps_parse("avx2,sse9", &mask, &em), ERR_INVALID);
	cr_assert_neq(strstr(em.text, "'sse9'"), NULL, "%s", em.text);
	cr_assert_eq(kern_caps_parse("avx5", &mask, &em), ERR_INVALID,
		     "a beginning of a name is not the name");
}

Test(dispatch, the_environment_hides_instruction_sets)
{
	u32 all;
	unsetenv("TERCET_KERN_CAPS");
	all = kern_caps_detect();
	setenv("TERCET_KERN_CAPS", "none", 1);
	cr_assert_eq(kern_caps_detect(), 0);
	setenv("TERCET_KERN_CAPS", "avx2", 1);
	cr_assert_eq(kern_caps_detect(), all & KERN_CAP_AVX2);
	setenv("TERCET_KERN_CAPS", "nonsense", 1);
	cr_assert_eq(kern_caps_detect(), all, "a list that cannot be read hides nothing");
}

Test(dispatch, what_slows_a_processor_down_has_to_be_asked_for)
{
	u32 fast, all;
	unsetenv("TERCET_KERN_CAPS");
	fast = kern_caps_detect();
	setenv("TERCET_KERN_CAPS", "all", 1);
	all = kern_caps_detect();
	cr_assert_eq(fast & ~all, 0);
#if defined(__x86_64__)
	cr_assert_eq(all & ~fast, __builtin_cpu_is("intel") ? all & KERN_CAP_AVX512_BF16 : 0);
#endif
	setenv("TERCET_KERN_CAPS", "portable,avx2,avx512,avx512_bf16", 1);
	cr_assert_eq(kern_caps_detect() & KERN_CAP_AVX512_BF16, all & KERN_CAP_AVX512_BF16);
}

Test(dispatch, every_processor_has_the_portable_products_and_attention)
{
	struct kern_ops ops;
	cr_assert(kern_caps_detect() & KERN_CAP_PORTABLE);
	kern_ops_init(&ops, KERN_CAP_PORTABLE);
	cr_assert_str_eq(ops.matmul_variant, "portable");
	cr_assert_str_eq(ops.attention_variant, "portable");
	cr_assert_str_eq(ops.rmsnorm_variant, "ref");
}

Test(dispatch, without_caps_every_slot_is_the_reference)
{
	struct kern_ops ops;
	memset(&ops, 0, sizeof(ops));
	kern_ops_init(&ops, 0);
#define IS_REF(op)                           \
	cr_assert_neq((void *)ops.op, NULL); \
	cr_assert_str_eq(ops.op##_variant, "ref");
	KERN_OPS(IS_REF)
	KERN_CPU_OPS(IS_REF)
}

Test(dispatch, every_mask_fills_every_slot)
{
	u32 caps = kern_caps_detect();
	for (u32 mask = 0; mask < 64; mask++) {
		struct kern_ops ops;
		memset(&ops, 0, sizeof(ops));
		kern_ops_init(&ops, caps & mask);
#define IS_SET(op) cr_assert(ops.op &&ops.op##_variant, "mask %x leaves " #op " empty", mask);
		KERN_OPS(IS_SET)
		KERN_CPU_OPS(IS_SET)
	}
}

Test(dispatch, the_table_prints_op_and_variant)
{
	struct kern_ops ops;
	char text[600], cut[20];
	kern_ops_init(&ops, 0);
	kern_ops_print(&ops, text, sizeof(text));
	cr_assert_str_eq(
		text, "embedding=ref rmsnorm=ref matmul=ref rope_kv=ref attention=ref act_mul=ref "
		      "moe_route=ref moe_matmul=ref moe_combine=ref soft_cap=ref logits=ref sample=ref logprobs=ref block_copy=ref "
		      "layernorm=ref qk_squares=ref qk_norm=ref conv=ref recurrent=ref gate=ref head_matmul=ref latent_kv=ref lora=ref selective_scan=ref lru=ref stream_mix=ref moments=ref index_keys=ref index_choose=ref index_gather=ref");
	kern_ops_print(&ops, cut, sizeof(cut));
	cr_assert_eq(strncmp(cut, text, sizeof(cut) - 1), 0);
	cr_assert_eq(strlen(cut), sizeof(cut) - 1, "too long a text is cut to fit");
}
