#include "tests/unit/proc_worker/tiny_model.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "kernels/kern_priv.h"

static const char CONFIG[] =
	"{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 20, \"hidden_size\": 8, "
	"\"intermediate_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
	"\"num_key_value_heads\": 2, \"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, "
	"\"torch_dtype\": \"float32\", \"eos_token_id\": 3}";

static const struct {
	const char *name;
	u32 rows, columns;
} TENSORS[] = {
	{"model.embed_tokens.weight", 20, 8},
	{"model.norm.weight", 8, 0},
	{"lm_head.weight", 20, 8},
	{"model.layers.0.input_layernorm.weight", 8, 0},
	{"model.layers.0.self_attn.q_proj.weight", 8, 8},
	{"model.layers.0.self_attn.k_proj.weight", 4, 8},
	{"model.layers.0.self_attn.v_proj.weight", 4, 8},
	{"model.layers.0.self_attn.o_proj.weight", 8, 8},
	{"model.layers.0.post_attention_layernorm.weight", 8, 0},
	{"model.layers.0.mlp.gate_proj.weight", 12, 8},
	{"model.layers.0.mlp.up_proj.weight", 12, 8},
	{"model.layers.0.mlp.down_proj.weight", 8, 12},
	{"model.layers.1.input_layernorm.weight", 8, 0},
	{"model.layers.1.self_attn.q_proj.weight", 8, 8},
	{"model.layers.1.self_attn.k_proj.weight", 4, 8},
	{"model.layers.1.self_attn.v_proj.weight", 4, 8},
	{"model.layers.1.self_attn.o_proj.weight", 8, 8},
	{"model.layers.1.post_attention_layernorm.weight", 8, 0},
	{"model.layers.1.mlp.gate_proj.weight", 12, 8},
	{"model.layers.1.mlp.up_proj.weight", 12, 8},
	{"model.layers.1.mlp.down_proj.weight", 8, 12},
};

static void write_file(const struct tiny_model *m, const char *name, const char *data, size_t bytes)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", m->dir, name);
	FILE *f = fopen(path, "wb");
	cr_assert(f && fwrite(data, 1, bytes, f) == bytes);
	fclose(f);
}

/* `text` with the first `from` replaced by `to`. */
static void append_replaced(struct buf *out, const char *text, const char *from, const char *to)
{
	const char *at = from ? strstr(text, from) : NULL;

	cr_assert(at || !from, "'%s' is not there to be replaced", from);
	if (!at) {
		buf_append_str(out, text);
		return;
	}
	buf_append(out, text, (size_t)(at - text));
	buf_append_str(out, to);
	buf_append_str(out, at + strlen(from));
}

static void append_data(const struct tiny_model *m, struct buf *data, size_t t, u32 count)
{
	u32 columns = TENSORS[t].columns;

	for (u32 i = 0; i < count; i++) {
		float v = (float)((int)((t * 131 + i * 71) % 41) - 20) / 40;
		if (!TENSORS[t].columns)
			v = 1 + v / 8;
		else if (m->more)
			v += (float)m->more(m->more_ctx, TENSORS[t].name, i / columns, i % columns);
		u16 half = kern_float_to_f16(v);
		buf_append(data, m->half ? (void *)&half : &v, m->half ? sizeof(half) : sizeof(v));
	}
}

/* Tensors that lie one behind the other as one, where the first is of `part` and the last of `last`. */
static void append_fused(struct buf *header, size_t t, size_t offset, const char *part, const char *last, const char *name)
{
	const char *id = TENSORS[t].name, *at = strstr(id, part);
	u32 rows = TENSORS[t].rows, columns = TENSORS[t].columns;

	while (!strstr(TENSORS[t].name, last))
		rows += TENSORS[++t].rows;
	buf_printf(header, ", \"%.*s%s.weight\": {\"dtype\": \"F32\", \"shape\": [%u, %u], \"data_offsets\": [%zu, %zu]}",
		   (int)(at - id), id, name, rows, columns, offset, offset + (size_t)rows * columns * 4);
}

/* Whether the tensor's entry of the header is written, or another's has it in it. */
static bool is_fused(struct buf *header, size_t t, size_t offset)
{
	const char *id = TENSORS[t].name;

	if (strstr(id, "q_proj"))
		append_fused(header, t, offset, "q_proj", "v_proj", "qkv_proj");
	else if (strstr(id, "gate_proj"))
		append_fused(header, t, offset, "gate_proj", "up_proj", "gate_up_proj");
	else
		return strstr(id, "k_proj") || strstr(id, "v_proj") || strstr(id, "up_proj");
	return true;
}

/* Tensors [first, end) into one file. */
static void write_tensors(const struct tiny_model *m, const char *name, size_t first, size_t end)
{
	struct buf header = {0}, data = {0}, changed = {0}, file = {0};

	buf_append_str(&header, "{\"__metadata__\": {\"format\": \"pt\"}");
	for (size_t t = first; t < end; t++) {
		const char *id = TENSORS[t].name;
		u32 rows = TENSORS[t].rows, columns = TENSORS[t].columns;
		u32 count = rows * (columns ? columns : 1);
		if (m->skip && !strcmp(m->skip, id))
			continue;
		if (m->reshape && !strcmp(m->reshape, id)) {
			u32 swap = rows;
			rows = columns;
			columns = swap;
		}
		if (m->fused && is_fused(&header, t, data.bytes)) {
			append_data(m, &data, t, count);
			continue;
		}
		const char *dtype = m->dtype_of && !strcmp(m->dtype_of, id) ? m->dtype : m->half ? "F16" : "F32";
		buf_printf(&header, ", \"%s\": {\"dtype\": \"%s\", \"shape\": [%u", id, dtype, rows);
		if (columns)
			buf_printf(&header, ", %u", columns);
		buf_printf(&header, "], \"data_offsets\": [%zu, %zu]}", data.bytes, data.bytes + count * (m->half ? 2 : 4));
		append_data(m, &data, t, count);
	}
	buf_append_str(&header, "}");
	while ((header.bytes + m->odd) % 8)
		buf_append_char(&header, ' ');
	append_replaced(&changed, m->header ? m->header : buf_cstr(&header), m->header_from, m->header_to);
	u64 length = m->header_length ? m->header_length : changed.bytes;
	buf_append(&file, &length, sizeof(length));
	buf_append(&file, changed.data, changed.bytes);
	buf_append(&file, data.data, data.bytes);
	for (i64 i = 0; i < -m->cut; i++)
		buf_append_char(&file, 'x');
	write_file(m, name, file.data, file.bytes - (size_t)(m->cut > 0 ? m->cut : 0));
	buf_fini(&header);
	buf_fini(&data);
	buf_fini(&changed);
	buf_fini(&file);
}

static void write_shards(const struct tiny_model *m)
{
	struct buf index = {0}, changed = {0};
	size_t half = COUNT_OF(TENSORS) / 2;

	write_tensors(m, "a.safetensors", 0, half);
	write_tensors(m, "b.safetensors", half, COUNT_OF(TENSORS));
	buf_append_str(&index, "{\"metadata\": {}, \"weight_map\": {");
	for (size_t t = 0; t < COUNT_OF(TENSORS); t++)
		buf_printf(&index, "%s\"%s\": \"%c.safetensors\"", t ? ", " : "", TENSORS[t].name,
			   t < half ? 'a' : 'b');
	buf_append_str(&index, "}}");
	append_replaced(&changed, buf_cstr(&index), m->index_from, m->index_to);
	write_file(m, "model.safetensors.index.json", changed.data, changed.bytes);
	buf_fini(&index);
	buf_fini(&changed);
}

void tiny_model_write(struct tiny_model *m)
{
	struct buf config = {0};

	snprintf(m->dir, sizeof(m->dir), "/tmp/tercet-test-XXXXXX");
	cr_assert(mkdtemp(m->dir));
	append_replaced(&config, m->config ? m->config : CONFIG, m->config_from, m->config_to);
	if (config.bytes)
		write_file(m, "config.json", config.data, config.bytes);
	if (m->generation)
		write_file(m, "generation_config.json", m->generation, strlen(m->generation));
	if (m->sharded)
		write_shards(m);
	else
		write_tensors(m, "model.safetensors", 0, COUNT_OF(TENSORS));
	buf_fini(&config);
}

void tiny_model_remove(struct tiny_model *m)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -r %s", m->dir);
	cr_assert_eq(system(command), 0);
}
