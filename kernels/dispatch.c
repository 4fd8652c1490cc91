/* Which variant of each op runs on this machine: finds what the processor and the operating system offer,
 * lets TERCET_KERN_CAPS hide some of it, and fills the op table. Runs once at worker start. */
#include <stdio.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "common/log.h"
#include "kernels/kern_priv.h"
#include "kernels/cpu/variants_priv.h"

static const struct {
	const char *name;
	u32 cap;
} cap_names[] = {
	{"portable", KERN_CAP_PORTABLE},
	{"avx2", KERN_CAP_AVX2},
	{"avx_vnni", KERN_CAP_AVX_VNNI},
	{"avx512", KERN_CAP_AVX512},
	{"avx512_bf16", KERN_CAP_AVX512_BF16},
	{"avx512_vnni", KERN_CAP_AVX512_VNNI},
	{"amx", KERN_CAP_AMX},
};

#if defined(__x86_64__)
/* Registers that the operating system saves on a context switch (XCR0); Intel SDM volume 1, 13.3. */
static u64 saved_state(void)
{
	u32 low, high;
	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (u64)high << 32 | low;
}

/* Whether the operating system lets this process use tiles, which have to be asked for once: Linux, Documentation/arch/x86/xstate.rst. */
static bool tiles_granted(void)
{
#if defined(__linux__)
	enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 };
	return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
#else
	return false;
#endif
}

static u32 caps_of_cpu(void)
{
	const u64 ymm = 0x6, zmm = 0xe6, tiles = 0x60000;
	const u32 amx = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
	const u32 avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
	u32 a, b, c, d, c1, a71 = 0, b7, c7, d7, subleaves, caps = 0;
	if (!__get_cpuid(1, &a, &b, &c1, &d) || !(c1 & bit_OSXSAVE) ||
	    !__get_cpuid_count(7, 0, &subleaves, &b7, &c7, &d7))
		return 0;
	if (subleaves >= 1)
		__get_cpuid_count(7, 1, &a71, &b, &c, &d);
	u64 saved = saved_state();
	if ((saved & ymm) == ymm && (b7 & bit_AVX2) && (c1 & bit_FMA) && (c1 & bit_F16C))
		caps |= KERN_CAP_AVX2;
	if ((caps & KERN_CAP_AVX2) && (a71 & bit_AVXVNNI))
		caps |= KERN_CAP_AVX_VNNI;
	if ((saved & zmm) != zmm || (b7 & avx512) != avx512)
		return caps;
	caps |= KERN_CAP_AVX512;
	if (c7 & bit_AVX512VNNI)
		caps |= KERN_CAP_AVX512_VNNI;
	/* Variants for bfloat16 use VNNI, too; no processor has the one without the other. */
	if ((c7 & bit_AVX512VNNI) && (a71 & bit_AVX512BF16))
		caps |= KERN_CAP_AVX512_BF16;
	if ((caps & KERN_CAP_AVX512_BF16) && (saved & tiles) == tiles && (d7 & amx) == amx && tiles_granted())
		caps |= KERN_CAP_AMX;
	return caps;
}
#else
static u32 caps_of_cpu(void)
{
	return 0;
}
#endif

/* Of Intel's processors bfloat16: on Emerald Rapids VDPBF16PS begins every other cycle and VFMADD231PS twice in every one, so that float32 has
 * twice the products, and rounding inputs is as slow. */
static u32 caps_slow(void)
{
#if defined(__x86_64__)
	return __builtin_cpu_is("intel") ? KERN_CAP_AVX512_BF16 : 0;
#else
	return 0;
#endif
}

enum err kern_caps_parse(const char *text, u32 *mask, struct err_msg *em)
{
	u32 caps = 0;
	*mask = KERN_CAP_ALL;
	if (strcmp(text, "all") == 0)
		return ERR_OK;
	for (const char *p = text; *p && strcmp(text, "none") != 0;) {
		size_t length = strcspn(p, ","), i = 0;
		while (i < COUNT_OF(cap_names) &&
		       (strlen(cap_names[i].name) != length || strncmp(cap_names[i].name, p, length) != 0))
			i++;
		if (i == COUNT_OF(cap_names))
			return err_set(em, ERR_INVALID,
				       "unknown instruction set '%.*s': a list of portable, avx2, avx_vnni, avx512, avx512_bf16, "
				       "avx512_vnni, amx, or all, or none",
				       (int)(length < 64 ? length : 64), p);
		caps |= cap_names[i].cap;
		p += length;
		p += *p == ',';
	}
	*mask = caps;
	return ERR_OK;
}

u32 kern_caps_detect(void)
{
	const char *text = getenv("TERCET_KERN_CAPS");
	struct err_msg em = {""};
	u32 mask = ~caps_slow();
	if (text && kern_caps_parse(text, &mask, &em) != ERR_OK) {
		LOG_WARN("KERN_CAPS", "variable=TERCET_KERN_CAPS ignored=\"%s\"", em.text);
		mask = ~caps_slow();
	}
	return (caps_of_cpu() | KERN_CAP_PORTABLE) & mask;
}

#define FILL(op, isa) ops->op = op##_##isa, ops->op##_variant = #isa;

static void fill_ref(struct kern_ops *ops)
{
#define FILL_REF(op) FILL(op, ref)
	KERN_OPS(FILL_REF)
	KERN_CPU_OPS(FILL_REF)
#undef FILL_REF
}

void kern_ops_init(struct kern_ops *ops, u32 caps)
{
	fill_ref(ops);
	if (caps & KERN_CAP_PORTABLE) {
		KERN_PORTABLE_OPS(FILL)
	}
#ifdef KERN_HAVE_X86
	/* Variants assume all that came before them, but for the two VNNI and BF16, of which any may be alone. */
	if (!(caps & KERN_CAP_AVX2))
		return;
	KERN_AVX2_OPS(FILL)
	if (caps & KERN_CAP_AVX_VNNI) {
		KERN_AVX_VNNI_OPS(FILL)
	}
	if (!(caps & KERN_CAP_AVX512))
		return;
	KERN_AVX512_OPS(FILL)
	if (caps & KERN_CAP_AVX512_BF16) {
		KERN_AVX512_BF16_OPS(FILL)
	}
	if (caps & KERN_CAP_AVX512_VNNI) {
		FILL(matmul, avx512_vnni)
		if (!(caps & KERN_CAP_AVX512_BF16)) {
			FILL(attention, avx512_vnni)
		}
	}
	if ((caps & KERN_CAP_AMX) && (caps & KERN_CAP_AVX512_VNNI)) {
		KERN_AMX_OPS(FILL)
	}
#endif
}

void kern_ops_print(const struct kern_ops *ops, char *out, size_t bytes)
{
	size_t used = 0;
	ASSERT(bytes > 0);
	out[0] = '\0';
#define PRINT(op)                                                                                   \
	if (used < bytes)                                                                           \
		used += (size_t)snprintf(out + used, bytes - used, "%s" #op "=%s", used ? " " : "", \
					 ops->op##_variant);
	KERN_OPS(PRINT)
	KERN_CPU_OPS(PRINT)
#undef PRINT
}
