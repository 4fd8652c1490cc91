/* What a device holds of each weight, and how much memory that takes: types and sizes by the same tables as for the CPU. Runs in the worker at
 * start, before anything is read. */
#include "proc_worker/model/weights_device_priv.h"

static u32 fill_up(u32 n)
{
	return (n + WEIGHTS_DEVICE_COLUMNS - 1) / WEIGHTS_DEVICE_COLUMNS * WEIGHTS_DEVICE_COLUMNS;
}

/* All parts of a weight are FP8, and nothing else was asked for: a device holds them as they are. */
static bool is_f8(const struct weights_plan *p, enum weight_slot slot, u32 layer)
{
	const struct arch *a = p->config->arch;
	enum weight_slot source = weights_source_slot(p, slot);
	u32 parts = 0;

	if (!quant_config_has(&p->config->quant, QUANT_FP8) || kern_dtype_group(p->matrix_dtype) > 0 ||
	    weights_is_router(slot) || !weights_is_matrix(source))
		return false;
	for (u32 i = 0; i < a->tensor_count; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		struct weights_range columns = weights_columns(p, t, layer);
		if (t->slot != source || !weights_tensor_applies(p, t, layer))
			continue;
		for (u32 x = 0; x < weights_copies(p, source); x++, parts++) {
			struct quant_tensor q = weights_quant_part(p, t, layer, x);
			if (!quant_tensor_is_f8(&q, columns.first, columns.count))
				return false;
		}
	}
	return parts > 0;
}

/* Of rows that are looked up. */
static bool is_table(enum weight_slot slot)
{
	return WEIGHTS_SLOTS[slot].kind == SLOT_IS_EMBED || WEIGHTS_SLOTS[slot].kind == SLOT_IS_TABLE;
}

struct weights_placed weights_device_place(const struct weights_plan *p, enum weight_slot slot, u32 layer)
{
	struct weights_placed s = {.type = KERN_F32};

	weights_slot_shape(p, slot, layer, &s.rows, &s.columns);
	s.device_rows = s.rows;
	s.device_columns = s.columns;
	if (slot == SLOT_GATE_UP || slot == SLOT_EXPERT_GATE_UP || slot == SLOT_GATE_UP_BIAS)
		s.device_rows = weights_device_sides(p) * fill_up(s.rows / weights_device_sides(p));
	if (slot == SLOT_EXPERT_GATE_UP_BIAS)
		s.device_columns = weights_device_sides(p) * fill_up(s.columns / weights_device_sides(p));
	if (slot == SLOT_DOWN || slot == SLOT_EXPERT_DOWN)
		s.device_columns = fill_up(s.columns);
	if (is_table(slot))
		s.type = KERN_BF16;
	else if (s.rows > 0 && !weights_is_vector(slot))
		s.type = weights_matrix_dtype(p, slot, layer, &s.ordered);
	bool filled = s.device_rows != s.rows || s.device_columns != s.columns;
	if (s.type == KERN_BF16 && !filled && s.rows > 0 && is_f8(p, slot, layer))
		s.type = KERN_F8E4M3;
	return s;
}

size_t weights_device_slot_bytes(const struct weights_plan *p, enum weight_slot slot, const struct weights_placed *s)
{
	if (s->rows == 0 || weights_device_is_shared(p, slot, s))
		return 0;
	if (weights_is_vector(slot))
		return weights_device_round_up((size_t)s->device_rows * s->device_columns * sizeof(float));
	if (is_table(slot))
		return weights_device_round_up((size_t)s->rows * s->columns * sizeof(u16));
	return weights_device_round_up(kern_weight_device_bytes(s->device_rows, s->device_columns, s->type)) +
	       (s->ordered ? weights_device_round_up(s->columns * sizeof(u32)) : 0);
}

static enum err check_slot(const struct weights_plan *p, const struct weights_placed *s, struct err_msg *em)
{
	bool filled = s->device_rows != s->rows || s->device_columns != s->columns;

	if (s->device_columns % WEIGHTS_DEVICE_COLUMNS != 0)
		return err_set(em, ERR_UNSUPPORTED,
			       "a matrix of %u inputs: the device's kernels want a multiple of %d; use "
			       "--device cpu",
			       s->columns, WEIGHTS_DEVICE_COLUMNS);
	if (filled && s->type != KERN_BF16)
		return err_set(em, ERR_UNSUPPORTED,
			       "an intermediate size of %u on each worker in %s: the device's kernels want a "
			       "multiple of %d; use another --tensor-parallel-size, or --device cpu",
			       s->device_rows != s->rows ? s->rows / weights_device_sides(p) : s->columns, kern_dtype_name(s->type),
			       WEIGHTS_DEVICE_COLUMNS);
	return ERR_OK;
}

enum err model_weights_device_bytes(const struct weights_plan *p, u64 *bytes, struct err_msg *em)
{
	*bytes = 0;
	for (u32 slot = 0; slot < SLOT_COUNT; slot++)
		for (u32 layer = 0; layer < weights_layers(p, slot); layer++) {
			struct weights_placed s = weights_device_place(p, slot, layer);
			enum err e = s.rows && weights_is_matrix(slot) ? check_slot(p, &s, em) : ERR_OK;
			if (e)
				return e;
			*bytes += (u64)weights_device_slot_bytes(p, slot, &s) * weights_copies(p, slot);
		}
	return ERR_OK;
}
