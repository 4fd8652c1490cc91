/* Owns the table of a mapped ZIP archive's entries. Runs in any process. Never trusts a length or an offset: an archive is a file that
 * somebody downloaded; and never unpacks anything. */
#include "common/zip_map.h"

#include <stdlib.h>
#include <string.h>

enum {
	ENTRIES_MAX = 1024 * 1024,
	LOCAL_BYTES = 30,     /* of an entry's own header, without its name */
	CENTRAL_BYTES = 46,   /* of its entry in the directory, likewise */
	END_BYTES = 22,	      /* of the record behind the directory, without its comment */
	COMMENT_BYTES_MAX = 0xffff,
	LOCATOR_BYTES = 20,   /* of what says where the record of ZIP64 lies, which is in front of the other */
	END64_BYTES = 56,
	EXTRA_ZIP64 = 1,
	FLAG_ENCRYPTED = 1,
	FLAG_SIZES_BEHIND = 8, /* the entry's own header does not say them */
};

static const u32 LOCAL_MAGIC = 0x04034b50, CENTRAL_MAGIC = 0x02014b50, END_MAGIC = 0x06054b50, LOCATOR_MAGIC = 0x07064b50,
		 END64_MAGIC = 0x06064b50, IN_ZIP64 = 0xffffffff;

/* Numbers are little-endian, as every host that we run on. */
static u16 u16_at(const u8 *p)
{
	u16 v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static u32 u32_at(const u8 *p)
{
	u32 v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static u64 u64_at(const u8 *p)
{
	u64 v;

	memcpy(&v, p, sizeof(v));
	return v;
}

/* What is known of the archive as a whole. */
struct archive {
	const u8 *at;
	u64 bytes;
	u64 directory, directory_bytes; /* where the table begins; its length */
	u64 count;
};

/* ---------------------------------------------------------------- the end of the archive */

/* Where the last record begins, which a comment may follow; false: there is none. */
static bool find_end(const struct archive *a, u64 *out)
{
	for (u64 comment = 0; comment <= COMMENT_BYTES_MAX && comment + END_BYTES <= a->bytes; comment++) {
		const u64 at = a->bytes - END_BYTES - comment;
		if (u32_at(a->at + at) == END_MAGIC && u16_at(a->at + at + 20) == comment) {
			*out = at;
			return true;
		}
	}
	return false;
}

/* Whether there is a record of ZIP64 in front of the last one at `end`; it takes the last one's place. */
static enum err read_end64(struct archive *a, u64 *end, struct err_msg *em)
{
	if (*end < LOCATOR_BYTES || u32_at(a->at + *end - LOCATOR_BYTES) != LOCATOR_MAGIC)
		return ERR_OK;
	const u8 *locator = a->at + *end - LOCATOR_BYTES;
	const u64 at = u64_at(locator + 8), room = *end - LOCATOR_BYTES;
	if (u32_at(locator + 4) != 0 || u32_at(locator + 16) > 1)
		return err_set(em, ERR_UNSUPPORTED, "an archive in several files; it must be one");
	if (room < END64_BYTES || at > room - END64_BYTES || u32_at(a->at + at) != END64_MAGIC)
		return err_set(em, ERR_FORMAT, "the record of ZIP64 should be at byte %llu, and is not there", (unsigned long long)at);
	const u8 *p = a->at + at;
	if (u64_at(p + 4) != room - at - 12)
		return err_set(em, ERR_FORMAT, "the record of ZIP64 says to have %llu bytes more; %llu lie behind it", (unsigned long long)u64_at(p + 4),
			       (unsigned long long)(room - at - 12));
	a->count = u64_at(p + 32);
	a->directory_bytes = u64_at(p + 40);
	a->directory = u64_at(p + 48);
	*end = at;
	return u32_at(p + 16) == 0 && u32_at(p + 20) == 0 && u64_at(p + 24) == a->count
		       ? ERR_OK
		       : err_set(em, ERR_UNSUPPORTED, "an archive in several files; it must be one");
}

static enum err read_end(struct archive *a, struct err_msg *em)
{
	u64 end;

	if (!find_end(a, &end))
		return err_set(em, ERR_FORMAT, "truncated, or something stands behind it: a ZIP archive ends with the record of its directory, which these %llu bytes do not",
			       (unsigned long long)a->bytes);
	const u8 *p = a->at + end;
	a->count = u16_at(p + 10);
	a->directory_bytes = u32_at(p + 12);
	a->directory = u32_at(p + 16);
	enum err e = read_end64(a, &end, em);
	if (e)
		return e;
	if (p == a->at + end && (u16_at(p + 4) != 0 || u16_at(p + 6) != 0 || u16_at(p + 8) != a->count))
		return err_set(em, ERR_UNSUPPORTED, "an archive in several files; it must be one");
	if (a->directory > end || a->directory_bytes != end - a->directory)
		return err_set(em, ERR_FORMAT, "the directory should be %llu bytes from byte %llu on, up to byte %llu where the record behind it begins",
			       (unsigned long long)a->directory_bytes, (unsigned long long)a->directory, (unsigned long long)end);
	if (a->count > ENTRIES_MAX)
		return err_set(em, ERR_TOO_LONG, "more than %d entries", ENTRIES_MAX);
	if (a->count > a->directory_bytes / CENTRAL_BYTES)
		return err_set(em, ERR_FORMAT, "%llu entries are announced, and the directory has %llu bytes", (unsigned long long)a->count,
			       (unsigned long long)a->directory_bytes);
	return ERR_OK;
}

/* ---------------------------------------------------------------- entries */

/* Names as messages show them. */
#define NAMED(entry) (int)((entry)->name_bytes < 200 ? (entry)->name_bytes : 200), (entry)->name

/* Numbers that do not fit the usual fields are in one of the fields behind the name, in this order, those alone. */
static enum err read_extra(const u8 *extra, u32 left, u64 *const fields[3], struct err_msg *em)
{
	u32 missing = 0;

	for (u32 i = 0; i < 3; i++)
		missing += *fields[i] == IN_ZIP64 ? 8 : 0;
	while (missing && left >= 4) {
		const u32 id = u16_at(extra), bytes = u16_at(extra + 2);
		if (bytes > left - 4)
			break;
		if (id == EXTRA_ZIP64) {
			if (bytes < missing)
				break;
			const u8 *p = extra + 4;
			for (u32 i = 0; i < 3; i++)
				if (*fields[i] == IN_ZIP64) {
					*fields[i] = u64_at(p);
					p += 8;
				}
			return ERR_OK;
		}
		extra += 4 + bytes;
		left -= 4 + bytes;
	}
	return missing ? err_set(em, ERR_FORMAT, "its numbers of ZIP64 are missing") : ERR_OK;
}

/* The entry's own header against the directory's `central`. */
static enum err read_local(struct zip_entry *x, const struct archive *a, const u8 *central, struct err_msg *em)
{
	if (x->header > a->directory || a->directory - x->header < LOCAL_BYTES || u32_at(a->at + x->header) != LOCAL_MAGIC)
		return err_set(em, ERR_FORMAT, "its header should be at byte %llu, and is not there", (unsigned long long)x->header);
	const u8 *p = a->at + x->header;
	const u64 room = a->directory - x->header - LOCAL_BYTES, name = u16_at(p + 26), begin = name + u16_at(p + 28);
	if (name != x->name_bytes || begin > room || memcmp(p + LOCAL_BYTES, x->name, name) != 0)
		return err_set(em, ERR_FORMAT, "its header at byte %llu is another entry's by its name", (unsigned long long)x->header);
	if (u16_at(p + 8) != u16_at(central + 10) || ((u16_at(p + 6) ^ u16_at(central + 8)) & FLAG_ENCRYPTED))
		return err_set(em, ERR_FORMAT, "its header and the directory do not agree on how it is stored");
	const u32 told = u32_at(p + 22);
	if (!(u16_at(p + 6) & FLAG_SIZES_BEHIND) && told != x->bytes && told != IN_ZIP64)
		return err_set(em, ERR_FORMAT, "%u bytes by its header, %llu by the directory", told, (unsigned long long)x->bytes);
	if (x->bytes > room - begin)
		return err_set(em, ERR_FORMAT, "its %llu bytes begin at byte %llu, and all data ends at byte %llu: truncated, or the numbers are wrong",
			       (unsigned long long)x->bytes, (unsigned long long)(x->header + LOCAL_BYTES + begin), (unsigned long long)a->directory);
	x->data = p + LOCAL_BYTES + begin;
	return ERR_OK;
}

/* Entry at `p` of the directory, of which `left` bytes remain; *used: its length. */
static enum err read_entry(struct zip_entry *x, const struct archive *a, const u8 *p, u64 left, u64 *used, struct err_msg *em)
{
	if (left < CENTRAL_BYTES || u32_at(p) != CENTRAL_MAGIC)
		return err_set(em, ERR_FORMAT, "no entry at byte %llu of the directory, which announces more", (unsigned long long)(p - a->at) - a->directory);
	const u32 extra = u16_at(p + 30);
	u64 packed = u32_at(p + 20);
	*x = (struct zip_entry){.name = (const char *)p + CENTRAL_BYTES, .name_bytes = u16_at(p + 28), .bytes = u32_at(p + 24), .header = u32_at(p + 42)};
	*used = CENTRAL_BYTES + (u64)x->name_bytes + extra + u16_at(p + 32);
	if (*used > left)
		return err_set(em, ERR_FORMAT, "the directory ends amid an entry");
	for (u32 i = 0; i < x->name_bytes; i++) /* it is printed */
		if ((u8)x->name[i] < 0x20 || x->name[i] == 0x7f)
			return err_set(em, ERR_FORMAT, "there is a control character in the name of an entry");
	enum err e = read_extra(p + CENTRAL_BYTES + x->name_bytes, extra, (u64 *const[]){&x->bytes, &packed, &x->header}, em);
	if (!e && (u16_at(p + 8) & FLAG_ENCRYPTED))
		e = err_set(em, ERR_UNSUPPORTED, "it is encrypted; entries must be stored as they are");
	else if (!e && u16_at(p + 10) != 0)
		e = err_set(em, ERR_UNSUPPORTED, "it is compressed (method %u); entries must be stored as they are, as torch.save writes them", u16_at(p + 10));
	else if (!e && packed != x->bytes)
		e = err_set(em, ERR_FORMAT, "%llu bytes stored as %llu; both must be the same", (unsigned long long)x->bytes, (unsigned long long)packed);
	if (!e)
		e = read_local(x, a, p, em);
	if (e)
		err_prefix(em, "entry %.*s", NAMED(x));
	return e;
}

static int compare_places(const void *a, const void *b)
{
	const struct zip_entry *x = a, *y = b;

	return x->header < y->header ? -1 : x->header > y->header;
}

static int compare_names(const void *a, const void *b)
{
	const struct zip_entry *x = a, *y = b;
	const u32 shorter = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
	int order = memcmp(x->name, y->name, shorter);

	return order ? order : x->name_bytes < y->name_bytes ? -1 : x->name_bytes > y->name_bytes;
}

/* `at`: where the archive begins. */
static enum err check_apart(struct zip_map *z, const u8 *at, struct err_msg *em)
{
	if (z->count == 0)
		return ERR_OK;
	qsort(z->entries, z->count, sizeof(*z->entries), compare_places);
	for (u32 i = 1; i < z->count; i++) {
		const struct zip_entry *x = &z->entries[i - 1], *y = &z->entries[i];
		if (y->header < (u64)(x->data - at) + x->bytes)
			return err_set(em, ERR_FORMAT, "entry %.*s begins inside entry %.*s", NAMED(y), NAMED(x));
	}
	qsort(z->entries, z->count, sizeof(*z->entries), compare_names);
	for (u32 i = 1; i < z->count; i++)
		if (compare_names(&z->entries[i - 1], &z->entries[i]) == 0)
			return err_set(em, ERR_FORMAT, "entry %.*s is there twice", NAMED(&z->entries[i]));
	return ERR_OK;
}

enum err zip_map_read(struct zip_map *z, const void *archive, u64 bytes, struct err_msg *em)
{
	struct archive a = {.at = archive, .bytes = bytes};
	enum err e;

	*z = (struct zip_map){0};
	e = read_end(&a, em);
	if (e)
		return e;
	z->directory = a.at + a.directory;
	z->directory_bytes = a.bytes - a.directory;
	z->entries = calloc(a.count ? (size_t)a.count : 1, sizeof(*z->entries));
	if (!z->entries)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	u64 at = 0, used = 0;
	for (u64 i = 0; !e && i < a.count; i++, at += used)
		e = read_entry(&z->entries[i], &a, a.at + a.directory + at, a.directory_bytes - at, &used, em);
	if (e)
		return e;
	if (at != a.directory_bytes)
		return err_set(em, ERR_FORMAT, "%llu bytes behind the last entry of the directory", (unsigned long long)(a.directory_bytes - at));
	z->count = (u32)a.count;
	return check_apart(z, a.at, em);
}

void zip_map_fini(struct zip_map *z)
{
	free(z->entries);
	*z = (struct zip_map){0};
}

const struct zip_entry *zip_map_find(const struct zip_map *z, const char *name, size_t name_bytes)
{
	const struct zip_entry key = {.name = name, .name_bytes = (u32)name_bytes};

	if (z->count == 0 || name_bytes > 0xffff)
		return NULL;
	return bsearch(&key, z->entries, z->count, sizeof(key), compare_names);
}
