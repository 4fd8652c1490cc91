#include "tests/unit/proc_worker/lora_fixture.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "kernels/kern_priv.h"

enum { LAYERS = 2, HIDDEN = 8, INTERMEDIATE = 12 };

/* `first`: the row of B in which it begins where several are stacked; `a_of`: whose A it then has. */
static const struct module {
	const char *name, *fused;
	u32 rows, columns, first, a_of;
} MODULES[] = {
	{"self_attn.q_proj", "self_attn.qkv_proj", 8, HIDDEN, 0, 0},
	{"self_attn.k_proj", "self_attn.qkv_proj", 4, HIDDEN, 8, 0},
	{"self_attn.v_proj", "self_attn.qkv_proj", 4, HIDDEN, 12, 0},
	{"self_attn.o_proj", NULL, HIDDEN, 8, 0, 3},
	{"mlp.gate_proj", "mlp.gate_up_proj", INTERMEDIATE, HIDDEN, 0, 4},
	{"mlp.up_proj", "mlp.gate_up_proj", INTERMEDIATE, HIDDEN, INTERMEDIATE, 4},
	{"mlp.down_proj", NULL, HIDDEN, INTERMEDIATE, 0, 6},
};

static u32 rank_of(const struct lora_fixture *f, u32 layer, u32 module)
{
	return f->double_rank_layer == layer + 1 && module == 0 ? 2 * f->rank : f->rank;
}

/* A number that all three types hold. */
static float value(const struct lora_fixture *f, u32 layer, u32 module, u32 which, u32 i)
{
	u32 x = (f->seed * 7919 + layer * 104729 + module * 1299709 + which * 15485863 + i * 2654435761u) % 65521;

	return ((float)((int)(x * 40503u % 65521 % 61) - 30)) / 128;
}

static float a_at(const struct lora_fixture *f, u32 layer, u32 module, u32 r, u32 column)
{
	u32 of = f->fused ? MODULES[module].a_of : module;
	return value(f, layer, of, 0, r * MODULES[of].columns + column);
}

static float b_at(const struct lora_fixture *f, u32 layer, u32 module, u32 row, u32 r)
{
	return value(f, layer, module, 1, row * 64 + r);
}

double lora_fixture_more(void *ctx, const char *tensor, u32 row, u32 column)
{
	const struct lora_fixture *f = ctx;
	u32 layer = 0;
	int at = 0;
	double sum = 0;

	if (sscanf(tensor, "model.layers.%u.%n", &layer, &at) != 1 || (f->only && !strstr(tensor, f->only)))
		return 0;
	for (u32 m = 0; m < COUNT_OF(MODULES); m++) {
		size_t bytes = strlen(MODULES[m].name);
		if (strncmp(tensor + at, MODULES[m].name, bytes) != 0 || tensor[(size_t)at + bytes] != '.')
			continue;
		for (u32 r = 0; r < rank_of(f, layer, m); r++)
			sum += (double)b_at(f, layer, m, row, r) * a_at(f, layer, m, r, column);
	}
	return sum * (f->scale != 0 ? f->scale : 2);
}

/* ---------------------------------------------------------------- files */

struct writing {
	const struct lora_fixture *f;
	struct buf header, data;
};

static void write_file(const char *dir, const char *name, const void *data, size_t bytes)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	FILE *file = fopen(path, "wb");
	cr_assert(file && fwrite(data, 1, bytes, file) == bytes);
	fclose(file);
}

static void put_value(struct writing *w, float v)
{
	const char *dtype = w->f->dtype;
	u16 half = dtype && !strcmp(dtype, "F16") ? kern_float_to_f16(v) : kern_float_to_bf16(v);

	if (dtype)
		buf_append(&w->data, &half, sizeof(half));
	else
		buf_append(&w->data, &v, sizeof(v));
}

static void end_tensor(struct writing *w, const char *name, u32 rows, u32 columns, size_t begin)
{
	if (w->f->strange && strstr(name, w->f->strange)) {
		w->data.bytes -= w->f->dtype ? sizeof(u16) : sizeof(float);
		put_value(w, w->f->strange_value);
	}
	if (w->f->longer && strstr(name, w->f->longer)) {
		rows++;
		for (u32 i = 0; i < columns; i++)
			put_value(w, 0);
	}
	buf_printf(&w->header, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [%u, %u], \"data_offsets\": [%zu, %zu]}",
		   w->header.bytes > 1 ? ", " : "", name, w->f->dtype ? w->f->dtype : "F32", rows, columns, begin, w->data.bytes);
}

static bool is_left_out(const struct writing *w, const char *name)
{
	return (w->f->only && !strstr(name, w->f->only)) || (w->f->skip && strstr(name, w->f->skip));
}

/* Both matrices; with `fused` the B's of all modules of that name. */
static void write_module(struct writing *w, u32 layer, u32 m)
{
	const struct lora_fixture *f = w->f;
	u32 rank = rank_of(f, layer, m), rows = 0;
	const char *fused = f->fused ? MODULES[m].fused : NULL;
	size_t begin = w->data.bytes;
	char name[160];

	snprintf(name, sizeof(name), "base_model.model.%slayers.%u.%s.lora_A.weight", f->whole ? f->whole : "model.", layer, fused ? fused : MODULES[m].name);
	if (!is_left_out(w, name)) {
		for (u32 i = 0; i < rank * MODULES[m].columns; i++)
			put_value(w, a_at(f, layer, m, i / MODULES[m].columns, i % MODULES[m].columns));
		end_tensor(w, name, rank, MODULES[m].columns, begin);
	}
	*strstr(name, "lora_A") = '\0';
	snprintf(name + strlen(name), sizeof(name) - strlen(name), "lora_B.weight");
	begin = w->data.bytes;
	if (is_left_out(w, name))
		return;
	for (u32 i = m; i < COUNT_OF(MODULES) && (i == m || (fused && MODULES[i].fused == fused)); i++) {
		for (u32 j = 0; j < MODULES[i].rows * rank; j++)
			put_value(w, b_at(f, layer, i, j / rank, j % rank));
		rows += MODULES[i].rows;
	}
	end_tensor(w, name, rows, rank, begin);
}

static void write_tensors(struct writing *w)
{
	struct buf file = {0};

	buf_append_str(&w->header, "{");
	for (u32 layer = 0; layer < LAYERS; layer++)
		for (u32 m = 0; m < COUNT_OF(MODULES); m++)
			if (!w->f->fused || MODULES[m].first == 0)
				write_module(w, layer, m);
	if (w->f->extra) {
		size_t begin = w->data.bytes;
		for (u32 i = 0; i < 8; i++)
			put_value(w, 0);
		end_tensor(w, w->f->extra, 1, 8, begin);
	}
	buf_append_str(&w->header, "}");
	while (w->header.bytes % 8)
		buf_append_char(&w->header, ' ');
	u64 length = w->header.bytes;
	buf_append(&file, &length, sizeof(length));
	buf_append(&file, w->header.data, w->header.bytes);
	buf_append(&file, w->data.data, w->data.bytes);
	write_file(w->f->dir, "adapter_model.safetensors", file.data, file.bytes);
	buf_fini(&file);
	buf_fini(&w->header);
	buf_fini(&w->data);
}

static void write_config(const struct lora_fixture *f)
{
	struct buf text = {0};

	if (f->config)
		buf_append_str(&text, f->config);
	else
		buf_printf(&text,
			   "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"some/model\", \"bias\": \"none\", "
			   "\"inference_mode\": true, \"lora_dropout\": 0.05, \"task_type\": \"CAUSAL_LM\", "
			   "\"modules_to_save\": null, \"use_dora\": false, \"rank_pattern\": {}, "
			   "\"target_modules\": \"all-linear\", \"r\": %u, \"lora_alpha\": %u%s}",
			   f->rank, 2 * f->rank, f->more_config ? f->more_config : "");
	if (text.bytes)
		write_file(f->dir, "adapter_config.json", text.data, text.bytes);
	buf_fini(&text);
}

void lora_fixture_write(struct lora_fixture *f)
{
	struct writing w = {.f = f};

	f->rank = f->rank ? f->rank : 4;
	snprintf(f->dir, sizeof(f->dir), "/tmp/tercet-test-XXXXXX");
	cr_assert(mkdtemp(f->dir));
	write_config(f);
	if (!f->no_tensors)
		write_tensors(&w);
}

void lora_fixture_remove(struct lora_fixture *f)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -r %s", f->dir);
	cr_assert_eq(system(command), 0);
}
