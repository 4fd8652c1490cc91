/* Finds the tensors of a checkpoint in Mistral AI's own format, whose names are its own. Runs in the worker while it loads, before anything looks for a
 * tensor, and where it has failed. Copies nothing: what it adds are names for places in the mapped files. */
#include "proc_worker/model/mistral_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"

enum { NAME_BYTES = 256 };

/* `file` stands for `here`, if the family's table has that; {}: an expert's number. */
struct name {
	const char *file, *here;
};

static const struct name WHOLE[] = {
	{"tok_embeddings", "model.embed_tokens"},
	{"norm", "model.norm"},
	{"output", "lm_head"},
	/* of models with a part for sound, whose embeddings of text lie beside it */
	{"mm_whisper_embeddings.tok_embeddings", "model.embed_tokens"},
	{"mm_streams_embeddings.embedding_module.tok_embeddings", "model.embed_tokens"},
};

/* Behind "layers.N." and "model.layers.N.". */
static const struct name OF_LAYER[] = {
	{"attention_norm", "input_layernorm"},
	{"ffn_norm", "post_attention_layernorm"},
	{"attention.wq", "self_attn.q_proj"},
	{"attention.wk", "self_attn.k_proj"},
	{"attention.wv", "self_attn.v_proj"},
	{"attention.wo", "self_attn.o_proj"},
	{"attention.wq_a", "self_attn.q_a_proj"},
	{"attention.q_a_norm", "self_attn.q_a_layernorm"},
	{"attention.wq_b", "self_attn.q_b_proj"},
	{"attention.wkv_a_with_mqa", "self_attn.kv_a_proj_with_mqa"},
	{"attention.kv_a_norm", "self_attn.kv_a_layernorm"},
	{"attention.wkv_b", "self_attn.kv_b_proj"},
	{"feed_forward.w1", "mlp.gate_proj"},
	{"feed_forward.w2", "mlp.down_proj"},
	{"feed_forward.w3", "mlp.up_proj"},
	{"gate", "mlp.gate"},
	{"experts.{}.w1", "mlp.experts.{}.gate_proj"},
	{"experts.{}.w2", "mlp.experts.{}.down_proj"},
	{"experts.{}.w3", "mlp.experts.{}.up_proj"},
	{"shared_experts.w1", "mlp.shared_experts.gate_proj"},
	{"shared_experts.w2", "mlp.shared_experts.down_proj"},
	{"shared_experts.w3", "mlp.shared_experts.up_proj"},
	{"feed_forward.gate", "block_sparse_moe.gate"},
	{"feed_forward.experts.{}.w1", "block_sparse_moe.experts.{}.w1"},
	{"feed_forward.experts.{}.w2", "block_sparse_moe.experts.{}.w2"},
	{"feed_forward.experts.{}.w3", "block_sparse_moe.experts.{}.w3"},
	{"block_sparse_moe.gate", "block_sparse_moe.gate"},
	{"block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w1"},
	{"block_sparse_moe.experts.{}.w2", "block_sparse_moe.experts.{}.w2"},
	{"block_sparse_moe.experts.{}.w3", "block_sparse_moe.experts.{}.w3"},
};

/* What a matrix in 8 bits has beside it. */
static const struct name SCALES[] = {{".qscale_weight", ".weight_scale"}, {".qscale_act", ".input_scale"}};

/* ---------------------------------------------------------------- one name */

/* Whether `name` begins with `stem` and goes on with what is no part of it: `*end` is where, `*expert` the number that stands for {}. */
static bool begins(const char *name, const char *stem, const char **end, u32 *expert)
{
	int digits = 0;

	*expert = 0;
	for (; *stem; stem++)
		if (*stem != '{') {
			if (*name++ != *stem)
				return false;
		} else {
			if (*name < '0' || *name > '9' || sscanf(name, "%9u%n", expert, &digits) != 1)
				return false;
			name += digits;
			stem++;
		}
	*end = name;
	return *name == '.' || *name == '\0';
}

/* `stem` with the number where it has {}. */
static void put_stem(struct buf *out, const char *stem, u32 expert)
{
	const char *hole = strstr(stem, "{}");

	if (hole)
		buf_printf(out, "%.*s%u%s", (int)(hole - stem), stem, expert, hole + 2);
	else
		buf_append_str(out, stem);
}

static bool table_has(const struct arch *a, const char *here)
{
	const size_t bytes = strlen(here);

	for (u32 i = 0; i < a->tensor_count; i++) {
		const char *at = strstr(a->tensors[i].name, here);
		if (at && at[bytes] == '.')
			return true;
	}
	return false;
}

/* Where names of layers go on: behind the number. NULL: it is none of a layer. */
static const char *behind_layer(const char *name, const char *prefix, u32 *layer)
{
	const size_t bytes = strlen(prefix);
	int digits = 0;

	if (strncmp(name, prefix, bytes) != 0 || name[bytes] < '0' || name[bytes] > '9' || sscanf(name + bytes, "%9u%n", layer, &digits) != 1)
		return NULL;
	return name[bytes + (size_t)digits] == '.' ? name + bytes + digits + 1 : NULL;
}

static void put_end(struct buf *out, const char *end)
{
	for (size_t i = 0; i < COUNT_OF(SCALES); i++)
		if (strcmp(end, SCALES[i].file) == 0)
			end = SCALES[i].here;
	buf_append_str(out, end);
}

/* What the family's table calls the tensor; false: it is none of the text's. */
static bool name_here(struct buf *out, const struct arch *a, const char *name)
{
	u32 layer = 0, expert;
	const char *end, *rest = behind_layer(name, "layers.", &layer);
	const struct name *table = rest ? OF_LAYER : WHOLE;

	for (size_t i = 0; i < (rest ? COUNT_OF(OF_LAYER) : COUNT_OF(WHOLE)); i++) {
		if (!begins(rest ? rest : name, table[i].file, &end, &expert) || !table_has(a, table[i].here))
			continue;
		if (rest)
			buf_printf(out, "model.layers.%u.", layer);
		put_stem(out, table[i].here, expert);
		put_end(out, end);
		return true;
	}
	return false;
}

/* ---------------------------------------------------------------- all of them */

enum err mistral_names_add(struct safetensors *st, const struct model_config *c, struct err_msg *em)
{
	const u32 count = safetensors_count(st);
	struct st_tensor *tensors = calloc(count + 1, sizeof(*tensors));
	char(*names)[NAME_BYTES] = calloc(count + 1, sizeof(*names));
	struct buf name = {0};
	u32 added = 0;
	enum err e = tensors && names ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");

	for (u32 i = 0; !e && i < count; i++) {
		name.bytes = 0;
		if (!name_here(&name, c->arch, safetensors_at(st, i)->name) || name.bytes >= NAME_BYTES)
			continue;
		if (!buf_ok(&name))
			e = err_set(em, ERR_NO_MEMORY, "out of memory");
		else
			memcpy(names[added], name.data, name.bytes);
		tensors[added] = *safetensors_at(st, i);
		tensors[added].name = names[added];
		added++;
	}
	if (!e && added)
		e = safetensors_add(st, tensors, added, em);
	buf_fini(&name);
	free(names);
	free(tensors);
	return e;
}

/* ---------------------------------------------------------------- names in errors */

/* Files with a format of scales of their own have those of matrices under these names. */
static const char *end_in_file(const struct model_config *c, const char *end)
{
	const bool own = c->quant.count > 0 && c->quant.schemes[0].format == QUANT_FP8 && c->quant.schemes[0].block_rows == 0;

	for (size_t i = 0; i < COUNT_OF(SCALES) && own; i++)
		if (strcmp(end, SCALES[i].here) == 0)
			return SCALES[i].file;
	return end;
}

/* What the files call the tensor `name` of the table; false: it is none. */
static bool name_in_file(struct buf *out, const struct model_config *c, const char *name)
{
	u32 layer = 0, expert;
	const char *end, *rest = behind_layer(name, "model.layers.", &layer);
	const struct name *table = rest ? OF_LAYER : WHOLE;

	for (size_t i = 0; i < (rest ? COUNT_OF(OF_LAYER) : COUNT_OF(WHOLE)); i++) {
		if (!begins(rest ? rest : name, table[i].here, &end, &expert))
			continue;
		if (rest)
			buf_printf(out, "layers.%u.", layer);
		put_stem(out, table[i].file, expert);
		buf_append_str(out, end_in_file(c, end));
		return true;
	}
	return false;
}

static size_t name_length(const char *at)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
	size_t bytes = strspn(at, letters);

	while (bytes > 0 && at[bytes - 1] == '.') /* that of the sentence */
		bytes--;
	return bytes;
}

void mistral_names_in_file(char *text, size_t bytes, const struct model_config *c)
{
	char name[NAME_BYTES];
	struct buf said = {0};

	for (const char *at = text; *at;) {
		const size_t length = at == text || strchr(" (\"'", at[-1]) ? name_length(at) : 0;
		snprintf(name, sizeof(name), "%.*s", (int)length, at);
		if (length > 0 && length < sizeof(name) && name_in_file(&said, c, name)) {
			at += length;
			continue;
		}
		buf_append(&said, at, length ? length : 1);
		at += length ? length : 1;
	}
	if (buf_ok(&said) && said.data)
		snprintf(text, bytes, "%.*s", (int)said.bytes, said.data);
	buf_fini(&said);
}
