/* ZIP archives (PKWARE's APPNOTE, with ZIP64) that somebody else has mapped: where the bytes of every entry lie. For archives whose entries
 * are stored, not compressed, as PyTorch writes them: nothing is unpacked or copied. */
#ifndef TERCET_COMMON_ZIP_MAP_H
#define TERCET_COMMON_ZIP_MAP_H

#include <stddef.h>

#include "common/err.h"
#include "common/types.h"

struct zip_entry {
	const char *name; /* in the archive, without a NUL behind it */
	u32 name_bytes;
	const u8 *data;
	u64 bytes;
	u64 header; /* where its local header begins in the archive */
};

/* Zero-initialised is empty and valid. */
struct zip_map {
	struct zip_entry *entries; /* in the order of their names */
	u32 count;
	const u8 *directory; /* the archive's table of entries, up to the archive's end */
	u64 directory_bytes;
};

/* Reads the directory and the entries' own headers, and checks that they agree, that all entries lie in the archive, no two of them in the
 * same bytes or under the same name, and that all are stored. Sums of entries (CRC) are not compared: that would read all of them, and
 * PyTorch can leave them out. ERR_FORMAT: says what was found and what was expected; ERR_UNSUPPORTED: an entry is compressed or encrypted, or the
 * archive is one of several; ERR_TOO_LONG: more entries than are read; ERR_NO_MEMORY. zip_map_fini in every case; entries point into the archive. */
MUST_CHECK enum err zip_map_read(struct zip_map *z, const void *archive, u64 bytes, struct err_msg *em);
void zip_map_fini(struct zip_map *z);

/* NULL when there is none. */
const struct zip_entry *zip_map_find(const struct zip_map *z, const char *name, size_t name_bytes);

#endif
