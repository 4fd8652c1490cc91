/* Where the storages of a file of torch.save lie: what its two forms have in common. */
#ifndef TERCET_PROC_WORKER_MODEL_TORCH_STORAGES_PRIV_H
#define TERCET_PROC_WORKER_MODEL_TORCH_STORAGES_PRIV_H

#include "common/zip_map.h"
#include "proc_worker/model/pickle.h"

/* What the pickles of weights may name; `id` of pickle_global. */
enum torch_global {
	TORCH_DICT,
	TORCH_TENSOR,	 /* (storage, offset, shape, strides, requires_grad, hooks ..) */
	TORCH_TENSOR_OF, /* likewise, and the type of elements behind them, of a storage of bytes */
	TORCH_PARAMETER, /* (tensor, requires_grad, hooks) */
	TORCH_OTHER,	 /* what tensors do not need */
	TORCH_STORAGE,	 /* and what follows: its elements, TORCH_TYPES[id - TORCH_STORAGE] */
	TORCH_DTYPE = TORCH_STORAGE + 64, /* likewise, a type */
};

/* By the name that safetensors has for it. */
const char *torch_type_of(const struct pickle_global *g);
/* Reads a pickle in which TORCH_GLOBALS may be named. */
MUST_CHECK enum err torch_pickle_read(struct pickle *p, struct arena *arena, const void *data, u64 bytes, struct err_msg *em);

/* A storage by its persistent id: ("storage", class, key, location, count of elements). */
struct torch_storage {
	const char *key; /* in the file, without a NUL behind it */
	u32 key_bytes;
	const char *type; /* of its elements, as safetensors names it */
	u64 elements;	  /* of `bytes` / elements each */
	u64 bytes;
	const u8 *data; /* NULL: not known yet */
};

/* What the id says; `data` is NULL. ERR_FORMAT, ERR_UNSUPPORTED: it says something else. */
MUST_CHECK enum err torch_storage_read(struct torch_storage *s, const struct pickle_value *id, struct err_msg *em);

/* A file. Zero-initialised is empty and valid. */
struct torch_storages {
	struct pickle weights;
	/* A ZIP archive. */
	struct zip_map zip;
	const char *root; /* the folder in it; without a NUL behind it */
	u32 root_bytes;
	/* The older form: all storages, in the order of their keys. */
	struct torch_storage *list;
	u32 count;
	u64 identity;
};

/* Finds pickle and storages of a file of either form; torch_storages_fini in every case. Errors as torch_file_read. */
MUST_CHECK enum err torch_storages_read(struct torch_storages *s, struct arena *arena, const void *file, u64 bytes, struct err_msg *em);
void torch_storages_fini(struct torch_storages *s);
/* Where the storage of that id lies. */
MUST_CHECK enum err torch_storages_find(const struct torch_storages *s, const struct pickle_value *id, struct torch_storage *out, struct err_msg *em);

#endif
