#include "tests/unit/proc_worker/random_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "kernels/kv_priv.h"
#include "proc_worker/model/weights_priv.h"

struct writer {
	struct model_config config;
	struct model_shard shard;
	struct weights_plan plan;
	struct buf header, data, names; /* names: of what is written, each with a newline */
	u64 random;
};

/* Nearly normal: the sum of four uniform numbers. */
static float next(struct writer *w)
{
	float sum = 0;

	for (u32 i = 0; i < 4; i++) {
		w->random = w->random * 6364136223846793005u + 1442695040888963407u;
		sum += (float)(w->random >> 40) / (float)(1 << 24) - 0.5f;
	}
	return sum * 1.7320508f;
}

static bool is_written(struct writer *w, const char *name)
{
	char line[300];

	snprintf(line, sizeof(line), "%s\n", name);
	if (strstr(buf_cstr(&w->names), line))
		return true;
	buf_append_str(&w->names, line);
	return false;
}

/* Of as many dimensions as are not 0. */
static void begin_tensor(struct writer *w, const char *name, const char *dtype, u32 rows, u32 columns, u32 third, size_t bytes)
{
	size_t begin = w->data.bytes;

	buf_printf(&w->header, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [%u", begin ? ", " : "", name, dtype,
		   rows);
	if (columns)
		buf_printf(&w->header, ", %u", columns);
	if (third)
		buf_printf(&w->header, ", %u", third);
	buf_printf(&w->header, "], \"data_offsets\": [%zu, %zu]}", begin, begin + bytes);
}

/* A matrix in FP8, and the scales of its blocks, each another one. */
static void write_f8(struct writer *w, const char *name, u32 rows, u32 columns)
{
	const struct quant_scheme *q = &w->config.quant.schemes[0];
	u32 down = (rows + q->block_rows - 1) / q->block_rows,
	    across = (columns + q->block_columns - 1) / q->block_columns;
	char scales[300];

	begin_tensor(w, name, "F8_E4M3", rows, columns, 0, (size_t)rows * columns);
	for (size_t i = 0; i < (size_t)rows * columns; i++)
		buf_append_char(&w->data, (char)kern_float_to_f8(100 * next(w)));
	snprintf(scales, sizeof(scales), "%s_scale_inv", name);
	begin_tensor(w, scales, "F32", down, across, 0, sizeof(float) * down * across);
	for (u32 i = 0; i < down * across; i++) {
		float scale = (1 + 0.3f * (float)(i % 3)) / (100 * sqrtf((float)columns));
		buf_append(&w->data, &scale, sizeof(scale));
	}
}

static void write_tensor(struct writer *w, const struct arch_tensor *t, u32 layer, u32 expert)
{
	u32 rows = weights_rows_of_file(&w->plan, t, layer), columns = weights_dim(&w->config, t->columns, layer);
	bool vector = t->columns == DIM_NONE, norm = WEIGHTS_SLOTS[t->slot].kind == SLOT_IS_NORM;
	const bool factor = t->slot == SLOT_LAYER_SCALE || t->slot == SLOT_EXPERT_SCALES || t->slot == SLOT_ALTUP_SCALE || t->slot == SLOT_SKIP || t->slot == SLOT_GATE_NORM;
	/* Of a state most is there a token later. */
	float mean = norm ? 1 - w->config.norm_offset : factor ? 1 : t->slot == SLOT_RATE_LOG ? -1.5f : t->slot == SLOT_LRU_RATE ? -3 : 0, spread = vector ? 0.2f : 1 / sqrtf((float)columns);
	bool quantized = quant_config_has(&w->config.quant, QUANT_FP8) && weights_is_matrix(t->slot);
	char name[256];

	arch_tensor_name(name, sizeof(name), t, layer, expert);
	if (is_written(w, name))
		return; /* the other part of a fused tensor */
	if (quantized && t->slot != SLOT_LM_HEAD && !weights_is_router(t->slot)) {
		write_f8(w, name, rows, columns);
		return;
	}
	if (t->slot == SLOT_EMBED || t->slot == SLOT_LM_HEAD)
		spread = 3 / sqrtf((float)columns); /* logits far enough apart */
	if (t->slot == SLOT_ALTUP_ROUTER) /* what it says is divided by as much */
		spread = sqrtf((float)columns);
	if (t->slot == SLOT_CONV) /* of one input each */
		begin_tensor(w, name, "BF16", rows, 1, columns, (size_t)rows * columns * sizeof(u16));
	else if (t->slot == SLOT_LRU_INPUT || t->slot == SLOT_LRU_FADE || t->slot == SLOT_LRU_INPUT_BIAS || t->slot == SLOT_LRU_FADE_BIAS) /* by heads */
		begin_tensor(w, name, "BF16", w->config.recurrent.heads, w->config.recurrent.value_dim, vector ? 0 : columns, (size_t)rows * columns * sizeof(u16));
	else if (t->transposed)
		begin_tensor(w, name, "BF16", columns, rows, 0, (size_t)rows * columns * sizeof(u16));
	else
		begin_tensor(w, name, "BF16", rows, vector ? 0 : columns, 0, (size_t)rows * columns * sizeof(u16));
	for (size_t i = 0; i < (size_t)rows * columns; i++) {
		float x = mean + spread * next(w);
		u16 half;
		kern_convert(&half, KERN_BF16, &x, KERN_F32, 1);
		buf_append(&w->data, &half, sizeof(half));
	}
}

static void write_file(const struct random_model *m, const char *name, const char *data, size_t bytes)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", m->dir, name);
	FILE *f = fopen(path, "wb");
	cr_assert(f && fwrite(data, 1, bytes, f) == bytes);
	fclose(f);
}

void random_model_write(struct random_model *m, const char *config, u64 seed)
{
	static struct writer w;
	struct buf file = {0};
	struct err_msg em;

	w = (struct writer){.random = seed};
	cr_assert_eq(model_config_parse(&w.config, config, strlen(config), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(model_shard_init(&w.shard, &w.config, 0, 1, &em), ERR_OK, "%s", em.text);
	w.plan = (struct weights_plan){.config = &w.config, .shard = &w.shard};
	snprintf(m->dir, sizeof(m->dir), "/tmp/tercet-test-XXXXXX");
	cr_assert(mkdtemp(m->dir));
	write_file(m, "config.json", config, strlen(config));
	const struct arch *a = w.config.arch;
	buf_append_str(&w.header, "{");
	for (u32 i = 0; i < a->tensor_count; i++) {
		const struct arch_tensor *t = &a->tensors[i];
		if (weights_source_slot(&w.plan, t->slot) != t->slot)
			continue;
		for (u32 layer = 0; layer < weights_layers(&w.plan, t->slot); layer++)
			for (u32 x = 0; weights_tensor_applies(&w.plan, t, layer) &&
					x < weights_tensors(&w.plan, t, layer);
			     x++)
				write_tensor(&w, t, layer, x);
	}
	buf_append_str(&w.header, "}");
	while (w.header.bytes % 8)
		buf_append_char(&w.header, ' ');
	u64 length = w.header.bytes;
	buf_append(&file, &length, sizeof(length));
	buf_append(&file, w.header.data, w.header.bytes);
	buf_append(&file, w.data.data, w.data.bytes);
	write_file(m, "model.safetensors", file.data, file.bytes);
	buf_fini(&file);
	buf_fini(&w.header);
	buf_fini(&w.data);
	buf_fini(&w.names);
}

void random_model_remove(struct random_model *m)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -r %s", m->dir);
	cr_assert_eq(system(command), 0);
}
