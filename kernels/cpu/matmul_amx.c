/* Matrix products with matrix tiles (AMX): which kernel a product goes to. Weights in bfloat16 take tiles for any number of rows, since sums of tiles
 * have an order of their own; those in 8 and 4 bits, whose groups' sums are whole numbers, for many rows. */
#include "kernels/cpu/amx_priv.h"
#include "kernels/cpu/matmul_blocked_priv.h"

/* Registers of so many rows, the upper ones and the lower ones, if they do not hold as many. */
static void configure(u32 upper, u32 lower)
{
	static _Thread_local u32 upper_now, lower_now;
	const u8 of[AMX_REGISTERS] = {(u8)upper, (u8)upper, (u8)lower, (u8)lower, (u8)upper, (u8)lower, AMX_UNITS, AMX_UNITS};
	struct amx_config config = {.palette = 1};
	if (upper == upper_now && lower == lower_now)
		return;
	for (u32 i = 0; i < AMX_REGISTERS; i++) {
		config.row_bytes[i] = AMX_ROW_BYTES;
		config.rows[i] = of[i];
	}
	amx_configure(&config);
	upper_now = upper;
	lower_now = lower;
}

void VARIANT(amx_rows)(u32 rows)
{
	const u32 upper = amx_upper(rows);
	configure(upper, rows > upper ? rows - upper : upper);
}

void VARIANT(amx_rows_alike)(u32 rows)
{
	configure(rows, rows);
}

enum err VARIANT(matmul)(struct kern_ctx *ctx, const struct kern_matmul_args *a)
{
	if (a->w->packed == KERN_LAYOUT_PANEL && a->w->dtype == KERN_BF16)
		return VARIANT(matmul_bf16)(ctx, a);
	if (a->w->packed == KERN_LAYOUT_GROUPS)
		return VARIANT(matmul_quantized)(ctx, a);
	return matmul_avx512(ctx, a);
}
