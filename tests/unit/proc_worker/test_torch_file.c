/* Files of torch.save: what their dictionaries say against what is there. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "proc_worker/model/torch_file.h"

#define MAGIC "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
#define PROTOCOL "\x80\2M\xe9\3."
#define MACHINE "}X\x0d\0\0\0little_endian\x88s."
#define STORAGE(type, key, elements) "(X\7\0\0\0storagectorch\n" type "\nX\1\0\0\0" key "X\3\0\0\0cpuK" elements "NtQ"
#define TENSOR(storage, offset, shape, strides) "ctorch._utils\n_rebuild_tensor_v2\n(" storage "K" offset shape strides "\x89}tR"
#define NAMED(name, value) "X\1\0\0\0" name value "s"
#define FLOATS TENSOR(STORAGE("FloatStorage", "0", "\6"), "\0", "K\2K\3\x86", "K\3K\1\x86")
#define KEYS "](X\1\0\0\0" "0e."
#define SIX "\6\0\0\0\0\0\0\0" "AAAABBBBCCCCDDDDEEEEFFFF"

static enum err read_bytes(struct st_tensor **tensors, u32 *count, struct arena *arena, const char *data, size_t bytes, struct err_msg *em)
{
	u64 identity;

	return torch_file_read(tensors, count, &identity, "m.bin", data, bytes, arena, em);
}

static void refused_bytes(enum err expected, const char *text, const char *data, size_t bytes)
{
	struct err_msg em = {""};
	char *copy = memcpy(malloc(bytes + 1), data, bytes);

	copy = realloc(copy, bytes ? bytes : 1); /* so that a sanitizer sees its end */
	cr_assert_eq(torch_file_check(copy, bytes, &em), expected, "%zu bytes, %s: %s", bytes, text, em.text);
	cr_assert(!strncmp(em.text, "file: ", 6) && strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	free(copy);
}

#define REFUSED(e, text, data) refused_bytes(e, text, data, sizeof(data) - 1)
/* Of one dictionary `items`, and storages. */
#define WEIGHTS_REFUSED(e, text, items, rest) REFUSED(e, text, MAGIC PROTOCOL MACHINE "}" items "." rest)

Test(torch_file, tensors_lie_where_the_file_has_them)
{
	static const char file[] = MAGIC PROTOCOL MACHINE "}" NAMED("a", FLOATS) NAMED("n", "K\5")
		NAMED("b", "ctorch._utils\n_rebuild_parameter\n(" TENSOR(STORAGE("FloatStorage", "0", "\6"), "\4", "K\2\x85", "K\1\x85") "\x88}tR")
		NAMED("s", TENSOR(STORAGE("HalfStorage", "1", "\2"), "\1", ")", ")"))
		NAMED("e", TENSOR(STORAGE("HalfStorage", "1", "\2"), "\2", "K\0K\2\x86", "K\2K\1\x86"))
		"." "](X\1\0\0\0" "1X\1\0\0\0" "0e.\2\0\0\0\0\0\0\0aabb" SIX;
	struct arena arena = {0};
	struct st_tensor *t;
	struct err_msg em = {""};
	u32 count;

	cr_assert_eq(read_bytes(&t, &count, &arena, file, sizeof(file) - 1, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(count, 4);
	cr_assert(!strcmp(t[0].name, "a") && t[0].dims == 2 && t[0].shape[0] == 2 && t[0].shape[1] == 3 && t[0].bytes == 24);
	cr_assert(t[0].usable && t[0].dtype == KERN_F32 && !strcmp(t[0].dtype_name, "F32") && !strcmp(t[0].file, "m.bin"));
	cr_assert(!memcmp(t[0].data, "AAAABBBB", 8) && (const char *)t[0].data + 24 == file + sizeof(file) - 1);
	cr_assert(!strcmp(t[1].name, "b") && !memcmp(t[1].data, "EEEEFFFF", 8) && t[1].bytes == 8);
	cr_assert(t[2].dims == 0 && t[2].bytes == 2 && !memcmp(t[2].data, "bb", 2) && t[2].dtype == KERN_F16);
	cr_assert(t[3].bytes == 0 && t[3].shape[1] == 2);
	free(t);
	arena_fini(&arena);
}

Test(torch_file, dictionaries_that_lie_are_refused_by_tensor)
{
	WEIGHTS_REFUSED(ERR_FORMAT, "tensor a: F32 of [2, 3] from element 1 on does not fit its storage of 24 bytes",
			NAMED("a", TENSOR(STORAGE("FloatStorage", "0", "\6"), "\1", "K\2K\3\x86", "K\3K\1\x86")), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "from element 255 on does not fit", NAMED("a", TENSOR(STORAGE("FloatStorage", "0", "\6"), "\xff", ")", ")")), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "more elements than can be counted",
			NAMED("a", TENSOR(STORAGE("FloatStorage", "0", "\6"), "\0", "\x8a\x08\0\0\0\0\0\0\0\x40K\5\x86", "K\1K\1\x86")), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "does not fit its storage",
			NAMED("a", TENSOR(STORAGE("FloatStorage", "0", "\6"), "\0", "\x8a\x08\0\0\0\0\0\0\0\x40\x85", "K\1\x85")), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "its shape is [2, 3], and its strides are [3]", NAMED("a", TENSOR(STORAGE("FloatStorage", "0", "\6"), "\0", "K\2K\3\x86", "K\3\x85")), KEYS SIX);
	WEIGHTS_REFUSED(ERR_UNSUPPORTED, "tensor a: it is a view with something said of its values",
			NAMED("a", "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE("FloatStorage", "0", "\6") "K\0K\2K\3\x86K\3K\1\x86\x89}}X\3\0\0\0neg\x88stR"), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "the file ends in front of storage 0", /* an empty one says nothing */
			NAMED("a", "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE("FloatStorage", "0", "\6") "K\0K\2K\3\x86K\3K\1\x86\x89}}tR"), KEYS "\7");
	WEIGHTS_REFUSED(ERR_FORMAT, "its shape holds something other than a count",
			NAMED("a", TENSOR(STORAGE("FloatStorage", "0", "\6"), "\0", "J\xff\xff\xff\xff\x85", "K\1\x85")), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "its shape must be a tuple", NAMED("a", TENSOR(STORAGE("FloatStorage", "0", "\6"), "\0", "]", ")")), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "tensor a: it is not made of (storage,", NAMED("a", TENSOR("N", "\0", ")", ")")), "].");
	WEIGHTS_REFUSED(ERR_FORMAT, "tensor a: it is not made of (storage,", NAMED("a", "ctorch._utils\n_rebuild_tensor_v2\n)R"), "].");
	WEIGHTS_REFUSED(ERR_FORMAT, "the id of a storage is not", NAMED("a", TENSOR("(X\1\0\0\0atQ", "\0", ")", ")")), "].");
	WEIGHTS_REFUSED(ERR_UNSUPPORTED, "a storage that is a part of another",
			NAMED("a", TENSOR("(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" "0X\3\0\0\0cpuK\6)tQ", "\0", ")", ")")), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "there is a control character in its name", NAMED("\0", FLOATS), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "there is a control character in its name", NAMED("\33", FLOATS), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "its name is no UTF-8", NAMED("\xff", FLOATS), KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "its name has 0 bytes", "U\0" FLOATS "s", KEYS SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "no tensors: none of the 1 values", NAMED("a", "K\1"), "].");
	REFUSED(ERR_FORMAT, "it holds a list; it must be a dictionary of tensors", MAGIC PROTOCOL MACHINE "].].");
}

Test(torch_file, tensors_that_do_not_lie_row_by_row_say_so_to_whoever_wants_them)
{
	static const char file[] = MAGIC PROTOCOL MACHINE "}" NAMED("a", TENSOR(STORAGE("FloatStorage", "0", "\6"), "\0", "K\2K\3\x86", "K\1K\2\x86"))
		/* one row that is there nine times, more than its storage has */
		NAMED("b", TENSOR(STORAGE("FloatStorage", "0", "\6"), "\0", "K\x09K\3\x86", "K\0K\1\x86")) "." KEYS SIX;
	struct arena arena = {0};
	struct err_msg em = {""};
	struct st_tensor *t;
	u32 count;

	cr_assert_eq(read_bytes(&t, &count, &arena, file, sizeof(file) - 1, &em), ERR_OK, "%s", em.text);
	cr_assert(count == 2 && !t[1].usable && t[1].bytes == 0 && t[1].shape[0] == 9 && !t[0].usable && t[0].bytes == 0 && t[0].dims == 2);
	cr_assert_str_eq(t[0].dtype_name, "F32, not row by row (strides [1, 2]); save the weights again, with .contiguous() of every tensor");
	free(t);
	arena_fini(&arena);
}

Test(torch_file, storages_that_lie_are_refused)
{
	WEIGHTS_REFUSED(ERR_FORMAT, "storage 0 has 7 elements; its tensors say 6", NAMED("a", FLOATS), KEYS "\7\0\0\0\0\0\0\0AAAABBBBCCCCDDDDEEEEFFFFGGGG");
	WEIGHTS_REFUSED(ERR_FORMAT, "truncated: storage 0 has 24 bytes, and 5 are left", NAMED("a", FLOATS), KEYS "\6\0\0\0\0\0\0\0AAAAB");
	WEIGHTS_REFUSED(ERR_FORMAT, "truncated: the file ends in front of storage 0", NAMED("a", FLOATS), KEYS "\6");
	WEIGHTS_REFUSED(ERR_FORMAT, "2 bytes behind the last storage", NAMED("a", FLOATS), KEYS SIX "xx");
	WEIGHTS_REFUSED(ERR_FORMAT, "there is a storage 1, which no tensor has", NAMED("a", FLOATS), "](X\1\0\0\0" "1e." SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "storage 0 is there twice", NAMED("a", FLOATS), "](X\1\0\0\0" "0X\1\0\0\0" "0e." SIX SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "tensor a: the file has no storage 0", NAMED("a", FLOATS), "].");
	WEIGHTS_REFUSED(ERR_FORMAT, "the storages' keys: a tuple; it must be a list", NAMED("a", FLOATS), ").");
	WEIGHTS_REFUSED(ERR_FORMAT, "a storage's key is an integer", NAMED("a", FLOATS), "](K\1e." SIX);
	WEIGHTS_REFUSED(ERR_FORMAT, "storage 0 is 6 elements of",
			NAMED("a", FLOATS) NAMED("b", TENSOR(STORAGE("IntStorage", "0", "\6"), "\0", ")", ")")), KEYS SIX);
}

Test(torch_file, what_is_no_file_of_torch_save_is_refused)
{
	REFUSED(ERR_FORMAT, "this is no file of torch.save: it begins neither", "{\"a\": 1}");
	REFUSED(ERR_FORMAT, "(truncated)", "");
	REFUSED(ERR_FORMAT, "(truncated)", "PK\3");
	REFUSED(ERR_FORMAT, "a pointer of Git LFS", "version https://");
	REFUSED(ERR_FORMAT, "pickle 1 (magic number): a pickle, but not one of torch.save: it begins with a dictionary", "\x80\2}.");
	REFUSED(ERR_UNSUPPORTED, "pickle 2 (protocol): another protocol than 1001", MAGIC "K\1.");
	REFUSED(ERR_UNSUPPORTED, "pickle 3 (machine): a file of a big-endian machine", MAGIC PROTOCOL "}X\x0d\0\0\0little_endian\x89s.");
	REFUSED(ERR_UNSUPPORTED, "pickle 4 (weights): byte 1 of the pickle: it wants torch.load, which", MAGIC PROTOCOL MACHINE "}ctorch\nload\n.");
	REFUSED(ERR_FORMAT, "truncated, or something stands behind it: a ZIP archive ends with", "PK\3\4and nothing else, which is short");
}

/* ---------------------------------------------------------------- whole files, of the fuzzer's corpus */

static void read_seed(struct buf *b, const char *name)
{
	char path[512], part[4096];
	size_t n;

	snprintf(path, sizeof(path), SOURCE_ROOT "/tests/fuzz/corpus/torch_file/%s", name);
	FILE *f = fopen(path, "rb");
	cr_assert(f, "%s", path);
	while ((n = fread(part, 1, sizeof(part), f)) > 0)
		buf_append(b, part, n);
	fclose(f);
}

static const char *const SEEDS[] = {"zip", "zip_protocol_4", "older", "older_protocol_5"};

Test(torch_file, every_cut_is_refused)
{
	for (size_t s = 0; s < COUNT_OF(SEEDS); s++) {
		struct buf b = {0};
		struct err_msg em = {""};
		read_seed(&b, SEEDS[s]);
		cr_assert_eq(torch_file_check(b.data, b.bytes, &em), ERR_OK, "%s: %s", SEEDS[s], em.text);
		for (size_t bytes = 0; bytes < b.bytes; bytes++)
			refused_bytes(ERR_FORMAT, "truncated", b.data, bytes);
		buf_fini(&b);
	}
}

/* Whatever a byte becomes, tensors lie in the file, or it is refused. */
Test(torch_file, no_changed_byte_leads_out_of_the_file)
{
	static const u8 changes[] = {0xff, 0x80, 0x01, 0x00, '.', '(', 'R'};

	for (size_t s = 0; s < COUNT_OF(SEEDS); s++) {
		struct buf b = {0};
		read_seed(&b, SEEDS[s]);
		for (size_t at = 0; at < b.bytes; at++)
			for (size_t i = 0; i < COUNT_OF(changes); i++) {
				struct arena arena = {0};
				struct st_tensor *t = NULL;
				struct err_msg em;
				u32 count;
				const char was = b.data[at];
				b.data[at] = (char)changes[i];
				enum err e = read_bytes(&t, &count, &arena, b.data, b.bytes, &em);
				for (u32 k = 0; !e && k < count; k++) {
					const char *data = t[k].data;
					cr_assert(data >= b.data && t[k].bytes <= (size_t)(b.data + b.bytes - data));
				}
				b.data[at] = was;
				free(t);
				arena_fini(&arena);
			}
		buf_fini(&b);
	}
}
