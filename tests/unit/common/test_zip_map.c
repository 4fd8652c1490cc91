/* Directories of ZIP archives: good ones in every form, and what lies. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/zip_map.h"

/* Where something else is written than what is right: bytes of the archive, counted from the begin of a part. */
struct lie {
	char part; /* 'l': the second entry's own header; 'd': its entry in the directory; 'e': the last record; '6': that of ZIP64 */
	i32 at;
	u32 bytes;
	u64 value;
	u32 times; /* one behind the other; 0: nothing is wrong */
};

static void put(struct buf *b, u64 value, u32 bytes)
{
	buf_append(b, &value, bytes);
}

struct entry {
	const char *name, *data;
	u32 bytes;
};

static const struct entry ENTRIES[] = {{"a/data.pkl", "pickle", 6}, {"a/data/0", "0123456789", 10}, {"a/version", "3\n", 2}};

enum { ENTRY_COUNT = 3 };

static void put_local(struct buf *b, const struct entry *x, bool zip64)
{
	put(b, 0x04034b50, 4);
	put(b, 20, 2);
	put(b, 0, 2 + 2 + 4); /* flags, method, time */
	put(b, 0, 4);	      /* sum */
	put(b, zip64 ? 0xffffffff : x->bytes, 4);
	put(b, zip64 ? 0xffffffff : x->bytes, 4);
	put(b, strlen(x->name), 2);
	put(b, 5, 2);
	buf_append_str(b, x->name);
	buf_append(b, "FB\1\0Z", 5); /* what moves the data to a multiple of something */
	buf_append(b, x->data, x->bytes);
}

static void put_central(struct buf *b, const struct entry *x, u32 header, bool zip64)
{
	put(b, 0x02014b50, 4);
	put(b, 20 | 20 << 16, 4);
	put(b, 0, 2 + 2 + 4); /* flags, method, time */
	put(b, 0, 4);	      /* sum */
	put(b, zip64 ? 0xffffffff : x->bytes, 4);
	put(b, zip64 ? 0xffffffff : x->bytes, 4);
	put(b, strlen(x->name), 2);
	put(b, zip64 ? 5 + 28 : 0, 2);
	put(b, 0, 8); /* comment, disk, attributes */
	put(b, 0, 2);
	put(b, zip64 ? 0xffffffff : header, 4);
	buf_append_str(b, x->name);
	if (!zip64)
		return;
	buf_append(b, "FB\1\0Z", 5); /* one of another kind first */
	put(b, 1 | 24 << 16, 4);
	put(b, x->bytes, 8);
	put(b, x->bytes, 8);
	put(b, header, 8);
}

static void put_end(struct buf *b, u32 count, size_t directory, size_t end, const char *comment)
{
	const bool zip64 = count == 0xffff;

	put(b, 0x06054b50, 4);
	put(b, 0, 4);
	put(b, count | count << 16, 4);
	put(b, zip64 ? 0xffffffff : end - directory, 4);
	put(b, zip64 ? 0xffffffff : directory, 4);
	put(b, strlen(comment), 2);
	buf_append_str(b, comment);
}

static void put_end64(struct buf *b, u64 directory, u64 end)
{
	put(b, 0x06064b50, 4);
	put(b, 44, 8);
	put(b, 45 | 45 << 16, 4);
	put(b, 0, 8); /* disks */
	put(b, ENTRY_COUNT, 8);
	put(b, ENTRY_COUNT, 8);
	put(b, end - directory, 8);
	put(b, directory, 8);
	put(b, 0x07064b50, 4);
	put(b, 0, 4);
	put(b, end, 8);
	put(b, 1, 4);
}

static void make(struct buf *b, bool zip64, const char *comment, struct lie lie)
{
	u32 headers[ENTRY_COUNT];
	size_t of_lie = 0;

	for (u32 i = 0; i < ENTRY_COUNT; i++) {
		headers[i] = (u32)b->bytes;
		put_local(b, &ENTRIES[i], zip64);
	}
	const size_t directory = b->bytes;
	for (u32 i = 0; i < ENTRY_COUNT; i++) {
		of_lie = lie.part == 'd' && i == 1 ? b->bytes : of_lie;
		put_central(b, &ENTRIES[i], headers[i], zip64);
	}
	const size_t end = b->bytes;
	if (zip64)
		put_end64(b, directory, end);
	const size_t last = b->bytes;
	put_end(b, zip64 ? 0xffff : ENTRY_COUNT, directory, end, comment);
	of_lie = lie.part == 'l' ? headers[1] : lie.part == 'e' ? last : lie.part == '6' ? end : of_lie;
	for (u32 i = 0; i < lie.times; i++)
		memcpy(b->data + of_lie + (size_t)lie.at + i * lie.bytes, &lie.value, lie.bytes);
}

static void good(bool zip64, const char *comment)
{
	struct buf b = {0};
	struct zip_map z;
	struct err_msg em = {""};

	make(&b, zip64, comment, (struct lie){0});
	cr_assert_eq(zip_map_read(&z, b.data, b.bytes, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(z.count, ENTRY_COUNT);
	for (u32 i = 0; i < ENTRY_COUNT; i++) {
		const struct zip_entry *x = zip_map_find(&z, ENTRIES[i].name, strlen(ENTRIES[i].name));
		cr_assert(x && x->bytes == strlen(ENTRIES[i].data) && !memcmp(x->data, ENTRIES[i].data, x->bytes));
	}
	cr_assert_null(zip_map_find(&z, "a/data/", 7));
	cr_assert_null(zip_map_find(&z, "a/data/00", 9));
	zip_map_fini(&z);
	buf_fini(&b);
}

Test(zip_map, entries_are_found_where_they_lie)
{
	good(false, "");
	good(true, "");
	good(false, "a comment");
	good(true, "with PK\5\6 in it");
}

static void refused(bool zip64, enum err expected, const char *text, struct lie lie)
{
	struct buf b = {0};
	struct zip_map z;
	struct err_msg em = {""};

	make(&b, zip64, "", lie);
	enum err e = zip_map_read(&z, b.data, b.bytes, &em);
	cr_assert_eq(e, expected, "%s instead of %s: %s", err_name(e), text, em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	zip_map_fini(&z);
	buf_fini(&b);
}

#define LIE(part, at, bytes, value) ((struct lie){part, at, bytes, value, 1})
#define LIE_TWICE(part, at, bytes, value) ((struct lie){part, at, bytes, value, 2})
Test(zip_map, what_lies_is_refused_by_name)
{
	refused(false, ERR_UNSUPPORTED, "entry a/data/0: it is compressed (method 8)", LIE('d', 10, 2, 8));
	refused(false, ERR_FORMAT, "there is a control character in the name of an entry", LIE('d', 46, 1, 27));
	refused(false, ERR_UNSUPPORTED, "entry a/data/0: it is encrypted", LIE('d', 8, 2, 1));
	refused(false, ERR_FORMAT, "entry a/data/0: 10 bytes stored as 9", LIE('d', 20, 4, 9));
	refused(false, ERR_FORMAT, "entry a/data/0: 10 bytes by its header, 11 by the directory", LIE_TWICE('d', 20, 4, 11));
	refused(false, ERR_FORMAT, "entry a/data/0: 7 bytes by its header", LIE('l', 22, 4, 7));
	refused(false, ERR_FORMAT, "entry a/data/0: its header and the directory do not agree", LIE('l', 8, 2, 8));
	refused(false, ERR_FORMAT, "entry a/data/0: its header at byte 51 is another entry's", LIE('l', 30, 1, 'b'));
	refused(false, ERR_FORMAT, "is another entry's by its name", LIE('l', 26, 2, 60000));
	refused(false, ERR_FORMAT, "is another entry's by its name", LIE('l', 28, 2, 60000));
	refused(false, ERR_FORMAT, "its header should be at byte 52, and is not there", LIE('d', 42, 4, 52));
	refused(false, ERR_FORMAT, "its header should be at byte 4294967294, and is not there", LIE('d', 42, 4, 0xfffffffe));
	refused(false, ERR_FORMAT, "its header at byte 0 is another entry's", LIE('d', 42, 4, 0));
	refused(false, ERR_FORMAT, "its numbers of ZIP64 are missing", LIE('d', 42, 4, 0xffffffff));
	refused(false, ERR_FORMAT, "no entry at byte 56 of the directory", LIE('d', 0, 1, 0));
	refused(false, ERR_FORMAT, "the directory ends amid an entry", LIE('d', 32, 2, 60000));
	refused(false, ERR_FORMAT, "no entry at byte 111", LIE('d', 30, 2, 1));
	refused(false, ERR_FORMAT, "truncated, or something stands behind it: a ZIP archive ends with the record", LIE('e', 0, 1, 0));
	refused(false, ERR_FORMAT, "truncated, or something stands behind it: a ZIP archive ends with the record", LIE('e', 20, 1, 1));
	refused(false, ERR_FORMAT, "bytes behind the last entry of the directory", LIE_TWICE('e', 8, 2, 2));
	refused(false, ERR_FORMAT, "4 entries are announced, and the directory has 165 bytes", LIE_TWICE('e', 8, 2, 4));
	refused(false, ERR_FORMAT, "60000 entries are announced", LIE_TWICE('e', 8, 2, 60000));
	refused(false, ERR_UNSUPPORTED, "an archive in several files", LIE('e', 4, 2, 1));
	refused(false, ERR_FORMAT, "the directory should be", LIE('e', 16, 4, 1));
	refused(false, ERR_FORMAT, "the directory should be", LIE('e', 12, 4, 0xfffffff0));
}

Test(zip_map, lies_of_zip64_are_refused)
{
	refused(true, ERR_FORMAT, "the record of ZIP64 should be at byte", LIE('e', -12, 8, 1ull << 63));
	refused(true, ERR_FORMAT, "the record of ZIP64 should be at byte", LIE('6', 0, 1, 0));
	refused(true, ERR_FORMAT, "the record of ZIP64 says to have", LIE('6', 4, 8, ~0ull));
	refused(true, ERR_FORMAT, "the directory should be", LIE('6', 48, 8, ~0ull));
	refused(true, ERR_FORMAT, "the directory should be", LIE('6', 40, 8, ~0ull));
	refused(true, ERR_TOO_LONG, "more than 1048576 entries", LIE_TWICE('6', 24, 8, 1 << 21));
	refused(true, ERR_UNSUPPORTED, "an archive in several files", LIE('6', 16, 4, 1));
	refused(true, ERR_FORMAT, "entry a/data/0: its 18446744073709551615 bytes begin", LIE_TWICE('d', 46 + 8 + 5 + 4, 8, ~0ull));
	refused(true, ERR_FORMAT, "entry a/data/0: its header should be at byte 18446744073709551615", LIE('d', 46 + 8 + 5 + 4 + 16, 8, ~0ull));
	refused(true, ERR_FORMAT, "entry a/data/0: its numbers of ZIP64 are missing", LIE('d', 46 + 8 + 5 + 2, 2, 23));
}

Test(zip_map, every_cut_is_refused)
{
	struct buf b = {0};
	struct err_msg em;

	for (int zip64 = 0; zip64 < 2; zip64++) {
		buf_clear(&b);
		make(&b, zip64, "some comment", (struct lie){0});
		for (size_t bytes = 0; bytes < b.bytes; bytes++) {
			struct zip_map z;
			char *copy = memcpy(malloc(bytes + 1), b.data, bytes); /* so that a sanitizer sees its end */
			copy = realloc(copy, bytes ? bytes : 1);
			cr_assert_eq(zip_map_read(&z, copy, bytes, &em), ERR_FORMAT, "%zu bytes", bytes);
			zip_map_fini(&z);
			free(copy);
		}
	}
	buf_fini(&b);
}

static void two_refused(const char *text, const struct entry *x, const struct entry *y, bool inside)
{
	struct buf b = {0};
	struct zip_map z;
	struct err_msg em = {""};

	put_local(&b, x, false);
	const u32 second = (u32)(inside ? b.bytes - x->bytes : b.bytes);
	if (!inside)
		put_local(&b, y, false);
	const size_t directory = b.bytes;
	put_central(&b, x, 0, false);
	put_central(&b, y, second, false);
	put_end(&b, 2, directory, b.bytes, "");
	cr_assert_eq(zip_map_read(&z, b.data, b.bytes, &em), ERR_FORMAT);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	zip_map_fini(&z);
	buf_fini(&b);
}

Test(zip_map, entries_lie_apart_and_have_names_of_their_own)
{
	const struct entry y = {"y", "Y", 1};
	struct buf inner = {0};

	put_local(&inner, &y, false);
	two_refused("entry y begins inside entry x", &(struct entry){"x", inner.data, (u32)inner.bytes}, &y, true);
	two_refused("entry y is there twice", &y, &(struct entry){"y", "other", 5}, false);
	buf_fini(&inner);
}
