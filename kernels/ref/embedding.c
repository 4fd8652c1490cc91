/* Reference: rows of the embedding table. */
#include "kernels/kern_priv.h"

enum err embedding_ref(struct kern_ctx *ctx, const struct kern_embedding_args *a)
{
	(void)ctx;
	for (u32 t = 0; t < a->tokens; t++) {
		float *out = a->out + (size_t)t * a->hidden;
		float scale = a->scale != 0 ? a->scale : 1;
		u32 row = a->ids[t] - a->first; /* wraps to a large number below `first` */
		for (u32 i = 0; i < a->hidden; i++) {
			float x = row < a->rows ? scale * kern_load(a->table, a->table_dtype, (size_t)row * a->hidden + i) : 0;
			out[i] = a->accumulate ? out[i] + x : x;
		}
	}
	return ERR_OK;
}
