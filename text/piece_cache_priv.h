/* Remembered pieces: what a model made of the short pieces that it met lately. In the scratch, hence one per thread. */
#ifndef TERCET_TEXT_PIECE_CACHE_PRIV_H
#define TERCET_TEXT_PIECE_CACHE_PRIV_H

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "text/scratch_priv.h"

/* The place of a piece: two slots that it may be in. */
struct piece_place {
	struct piece_slot *set;
	u32 victim; /* the slot that is given up for it */
};

/* True when the ids of the piece were remembered; they are appended (`ids` has room for PIECE_IDS_MAX). Otherwise
 * `*place` is where to remember them; its set is NULL when the piece is too long for that. */
static inline bool piece_recall(struct text_scratch *s, const char *piece, size_t bytes, struct u32_vec *ids,
				struct piece_place *place)
{
	*place = (struct piece_place){.set = NULL};
	if (bytes > PIECE_KEY_MAX || !u32_vec_reserve(ids, PIECE_IDS_MAX))
		return false;
	u64 hash = XXH3_64bits(piece, bytes);
	struct piece_slot *set = &s->pieces[(hash & (PIECE_SETS - 1)) * PIECE_WAYS];
	for (u32 i = 0; i < PIECE_WAYS; i++)
		if (set[i].key_bytes == bytes && memcmp(set[i].key, piece, bytes) == 0) {
			memcpy(ids->data + ids->count, set[i].ids, sizeof(set[i].ids));
			ids->count += set[i].id_count;
			return true;
		}
	*place = (struct piece_place){.set = set, .victim = (u32)(hash >> 63)};
	return false;
}

static inline void piece_remember(const struct piece_place *place, const char *piece, size_t bytes, const u32 *ids,
				  size_t count)
{
	if (place->set == NULL || count > PIECE_IDS_MAX)
		return;
	struct piece_slot *slot = &place->set[place->victim];
	slot->key_bytes = (u8)bytes;
	slot->id_count = (u8)count;
	memcpy(slot->key, piece, bytes);
	memcpy(slot->ids, ids, count * sizeof(*ids));
}

#endif
