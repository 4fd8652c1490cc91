/* What finding a quantized matrix and reading it have in common. */
#ifndef TERCET_PROC_WORKER_MODEL_QUANT_TENSOR_PRIV_H
#define TERCET_PROC_WORKER_MODEL_QUANT_TENSOR_PRIV_H

#include <string.h>

#include "proc_worker/model/quant_tensor.h"

static inline u32 ceil_div(u32 a, u32 b)
{
	return (a + b - 1) / b;
}

static inline u32 word_at(const struct st_tensor *t, size_t i)
{
	u32 word;
	memcpy(&word, (const char *)t->data + i * sizeof(word), sizeof(word));
	return word;
}

/* QUANT_GGUF: where a row's blocks begin. */
static inline const u8 *gguf_row(const struct quant_tensor *t, u32 row)
{
	return safetensors_row(t->values, row, t->values->bytes / t->rows);
}

/* Of a row's inputs. */
static inline u32 group_count(const struct quant_tensor *t)
{
	return ceil_div(t->columns, t->group_columns);
}

#endif
