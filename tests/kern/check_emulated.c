/* Tiles (AMX) made of vectors among the targets: where the processor has none these are their only check, and where it has some, their sums are
 * compared with its own. */
#include "kernels/cpu/variants_priv.h"
#include "tests/kern/check.h"

#ifdef KERN_HAVE_X86
KERN_DECLARE(attention, amx_emulated);
KERN_DECLARE(matmul, amx_emulated);

void check_add_emulated(struct check *c)
{
	const u32 needed = KERN_CAP_AVX512_VNNI | KERN_CAP_AVX512_BF16, caps = kern_caps_detect();
	if ((caps & needed) != needed)
		return;
	struct check_target *t = check_add_target(c, (caps & ~(u32)KERN_CAP_AVX512_BF16) | KERN_CAP_AMX);
	t->ops.attention = attention_amx_emulated;
	t->ops.attention_variant = "amx_emulated";
	t->ops.matmul = matmul_amx_emulated;
	t->ops.matmul_variant = "amx_emulated";
}
#else
void check_add_emulated(struct check *c)
{
	(void)c;
}
#endif
