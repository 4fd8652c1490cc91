#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/gguf.h"

enum { U8 = 0, U16 = 2, U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9, U64 = 10 };

static struct {
	char bytes[1 << 16];
	size_t used;
} file;
static struct gguf *g;
static struct err_msg em;
static char folder[] = "/tmp/test_ggufXXXXXX";

static void put(const void *from, size_t bytes)
{
	cr_assert_leq(file.used + bytes, sizeof(file.bytes));
	memcpy(file.bytes + file.used, from, bytes);
	file.used += bytes;
}

static void put_u32(u32 x)
{
	put(&x, sizeof(x));
}

static void put_u64(u64 x)
{
	put(&x, sizeof(x));
}

static void put_text(const char *text)
{
	put_u64(strlen(text));
	put(text, strlen(text));
}

static void put_start(u32 version, u64 tensors, u64 values)
{
	file.used = 0;
	put("GGUF", 4);
	put_u32(version);
	put_u64(tensors);
	put_u64(values);
}

static void put_key(const char *key, u32 kind)
{
	put_text(key);
	put_u32(kind);
}

static void put_int(const char *key, u32 value)
{
	put_key(key, U32);
	put_u32(value);
}

static void put_array(const char *key, u32 kind, u64 count)
{
	put_key(key, ARRAY);
	put_u32(kind);
	put_u64(count);
}

/* As the file has it: columns first. */
static void put_tensor(const char *name, u32 type, u64 columns, u64 rows, u64 offset)
{
	put_text(name);
	put_u32(2);
	put_u64(columns);
	put_u64(rows);
	put_u32(type);
	put_u64(offset);
}

static void put_data(size_t bytes)
{
	while (file.used % 32)
		put("", 1);
	for (size_t i = 0; i < bytes; i++)
		put(&(char){(char)i}, 1);
}

static void set_up(void)
{
	cr_assert(mkdtemp(folder));
}

static void tear_down(void)
{
	char command[64];

	gguf_close(&g);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	cr_assert_eq(system(command), 0);
}

TestSuite(gguf, .init = set_up, .fini = tear_down);

static const char *path_of(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void save(const char *name)
{
	FILE *f = fopen(path_of(name), "w");

	cr_assert(f);
	cr_assert_eq(fwrite(file.bytes, 1, file.used, f), file.used);
	cr_assert_eq(fclose(f), 0);
}

static enum err open_saved(void)
{
	save("m.gguf");
	gguf_close(&g);
	return gguf_open(&g, path_of("m.gguf"), &em);
}

static void expect_refused(enum err wanted, const char *says)
{
	enum err e = open_saved();

	cr_assert_eq(e, wanted, "%d: %s", e, em.text);
	cr_assert_null(g);
	cr_assert(strstr(em.text, says), "%s", em.text);
	cr_assert_eq(gguf_check(file.bytes, file.used, &em), wanted);
}

static void put_model(void)
{
	put_start(3, 2, 7);
	put_int("a.int", 42);
	put_key("a.string", STRING);
	put_text("llama");
	put_key("a.float", F32);
	put(&(float){0.5f}, 4);
	put_key("a.bool", BOOL);
	put("\1", 1);
	put_array("a.strings", STRING, 3);
	put_text("x");
	put_text("");
	put_text("yz");
	put_array("a.ints", I32, 2);
	put(&(i32){-7}, 4);
	put_u32(8);
	put_array("a.nested", ARRAY, 1);
	put_u32(U8);
	put_u64(2);
	put("ab", 2);
	put_tensor("one", GGUF_F32, 4, 2, 0);
	put_tensor("a.quantized", GGUF_Q8_0, 64, 3, 32);
	put_data(32 + 2 * 34 * 3);
}

static void expect_text(const char *text, size_t bytes, const char *wanted)
{
	cr_assert_eq(bytes, strlen(wanted));
	cr_assert_eq(memcmp(text, wanted, bytes), 0);
}

Test(gguf, values_are_read_by_their_kinds)
{
	const char *text;
	size_t bytes;
	double x = 9;
	bool truth = false;
	i64 n = 9;

	put_model();
	cr_assert_eq(open_saved(), ERR_OK, "%s", em.text);
	cr_assert(gguf_int(g, "a.int", &n));
	cr_assert_eq(n, 42);
	cr_assert(gguf_float(g, "a.int", &x));
	cr_assert_eq(x, 42);
	cr_assert(gguf_float(g, "a.float", &x));
	cr_assert_eq(x, 0.5);
	cr_assert(gguf_bool(g, "a.bool", &truth));
	cr_assert(truth);
	cr_assert(gguf_string(g, "a.string", &text, &bytes));
	expect_text(text, bytes, "llama");
	cr_assert(gguf_has(g, "a.nested"));
	cr_assert_not(gguf_has(g, "a"));
	cr_assert_not(gguf_int(g, "a.float", &n));
	cr_assert_not(gguf_int(g, "a.bool", &n));
	cr_assert_not(gguf_int(g, "a.ints", &n));
	cr_assert_not(gguf_string(g, "a.int", &text, &bytes));
	cr_assert_eq(n, 42);
}

Test(gguf, elements_of_arrays_are_read_in_any_order)
{
	const char *text;
	size_t bytes;
	double x;
	u64 count;
	i64 n;

	put_model();
	cr_assert_eq(open_saved(), ERR_OK, "%s", em.text);
	cr_assert(gguf_array(g, "a.strings", &count));
	cr_assert_eq(count, 3);
	for (u64 i = 0; i < 6; i++) { /* twice in order, and once backwards */
		static const char *const texts[] = {"x", "", "yz"};
		cr_assert(gguf_array_string(g, "a.strings", i % 3, &text, &bytes));
		expect_text(text, bytes, texts[i % 3]);
		cr_assert(gguf_array_string(g, "a.strings", 2 - i % 3, &text, &bytes));
		expect_text(text, bytes, texts[2 - i % 3]);
	}
	cr_assert_not(gguf_array_string(g, "a.strings", 3, &text, &bytes));
	cr_assert_not(gguf_array_int(g, "a.strings", 0, &n));
	cr_assert(gguf_array_int(g, "a.ints", 0, &n));
	cr_assert_eq(n, -7);
	cr_assert(gguf_array_float(g, "a.ints", 1, &x));
	cr_assert_eq(x, 8);
	cr_assert_not(gguf_array_int(g, "a.ints", 2, &n));
	cr_assert_not(gguf_array_int(g, "a.nested", 0, &n));
	cr_assert_not(gguf_array(g, "a.int", &count));
}

Test(gguf, tensors_have_rows_first)
{
	put_model();
	cr_assert_eq(open_saved(), ERR_OK, "%s", em.text);
	cr_assert_eq(gguf_tensor_count(g), 2);
	cr_assert_str_eq(gguf_tensor_at(g, 0)->name, "one");
	const struct gguf_tensor *t = gguf_tensor_find(g, "a.quantized");
	cr_assert_eq(t, gguf_tensor_at(g, 1));
	cr_assert_eq(t->dims, 2);
	cr_assert_eq(t->shape[0], 3);
	cr_assert_eq(t->shape[1], 64);
	cr_assert_eq(t->bytes, 6 * 34);
	cr_assert_eq(*(const char *)t->data, 32);
	cr_assert_str_eq(t->file, "m.gguf");
	cr_assert_str_eq(gguf_type_name(t->type), "Q8_0");
	cr_assert_null(gguf_tensor_find(g, "two"));
}

Test(gguf, a_file_cut_off_anywhere_is_refused)
{
	put_model();
	for (size_t bytes = file.used; bytes-- > 0;)
		cr_assert_neq(gguf_check(file.bytes, bytes, &em), ERR_OK, "%zu", bytes);
	cr_assert_eq(gguf_check(file.bytes, file.used, &em), ERR_OK, "%s", em.text);
}

Test(gguf, other_files_are_told_apart)
{
	put_start(1, 0, 0);
	expect_refused(ERR_UNSUPPORTED, "version 1");
	put_start(3u << 24, 0, 0);
	expect_refused(ERR_UNSUPPORTED, "big-endian");
	file.used = 0;
	put("ggjt....................", 24);
	expect_refused(ERR_FORMAT, "no GGUF file");
	file.used = 0;
	put("version https://git-lfs.github.com/spec/v1", 42);
	expect_refused(ERR_FORMAT, "git lfs pull");
	cr_assert_eq(gguf_open(&g, path_of("none.gguf"), &em), ERR_NOT_FOUND);
	put_start(2, 0, 0);
	cr_assert_eq(open_saved(), ERR_OK, "%s", em.text);
}

Test(gguf, values_that_lie_are_refused)
{
	put_start(3, 0, UINT64_MAX);
	expect_refused(ERR_TOO_LONG, "named values");
	put_start(3, 0, 2);
	put_int("k", 1);
	put_int("k", 1);
	expect_refused(ERR_FORMAT, "two values");
	static const char *const no_names[] = {"", "a\nb", "\xff", "\x7f"};
	for (size_t i = 0; i < COUNT_OF(no_names); i++) {
		put_start(3, 0, 1);
		put_int(no_names[i], 1);
		expect_refused(ERR_FORMAT, "that is none");
	}
	put_start(3, 0, 1);
	put_key("k", 13);
	put_u64(0);
	expect_refused(ERR_FORMAT, "kind 13");
	put_start(3, 0, 1);
	put_array("k", U64, UINT64_MAX / 8 + 2); /* 8 of bytes, where products are not checked */
	put_u64(0);
	expect_refused(ERR_FORMAT, "m.gguf: k: truncated");
	put_start(3, 0, 1);
	put_key("k", STRING);
	put_u64(UINT64_MAX);
	expect_refused(ERR_FORMAT, "truncated");
	put_start(3, 0, 1);
	put_key("k", BOOL);
	put("\2", 1);
	expect_refused(ERR_FORMAT, "truth value");
	put_start(3, 0, 1);
	put_key("k", ARRAY);
	for (u32 i = 0; i < 8; i++) {
		put_u32(ARRAY);
		put_u64(1);
	}
	expect_refused(ERR_FORMAT, "arrays in arrays");
	put_start(3, 0, 1);
	put_int("general.alignment", 24);
	expect_refused(ERR_FORMAT, "power of two");
}

Test(gguf, tensors_that_lie_are_refused)
{
	put_start(3, UINT64_MAX, 0);
	expect_refused(ERR_FORMAT, "are announced");
	put_start(3, 2, 0);
	put_tensor("t", GGUF_F32, 4, 2, 0);
	put_tensor("t", GGUF_F32, 4, 2, 32);
	put_data(64);
	expect_refused(ERR_FORMAT, "tensor t is there twice");
	put_start(3, 2, 0);
	put_tensor("t", GGUF_F32, 4, 4, 0);
	put_tensor("u", GGUF_F32, 4, 2, 32);
	put_data(96);
	expect_refused(ERR_FORMAT, "tensor u: its data begins at byte 32");
	put_start(3, 1, 0);
	put_tensor("t", GGUF_F32, 4, 2, 8);
	put_data(64);
	expect_refused(ERR_FORMAT, "alignment");
	put_start(3, 1, 0);
	put_tensor("t", GGUF_F32, 4, 2, UINT64_MAX - 31);
	put_data(64);
	expect_refused(ERR_FORMAT, "truncated");
	put_start(3, 1, 0);
	put_tensor("t", GGUF_F32, (u64)1 << 40, (u64)1 << 40, 0);
	put_data(64);
	expect_refused(ERR_FORMAT, "can be counted");
	put_start(3, 1, 0);
	put_tensor("t", GGUF_Q4_K, 128, 2, 0);
	put_data(1024);
	expect_refused(ERR_FORMAT, "blocks of 256");
}

Test(gguf, types_that_are_not_known_have_no_size)
{
	u32 elements, bytes;

	put_start(3, 1, 0);
	put_tensor("t", 99, 4, 2, 0);
	put_data(64);
	cr_assert_eq(open_saved(), ERR_OK, "%s", em.text);
	cr_assert_null(gguf_tensor_at(g, 0)->data);
	cr_assert_str_eq(gguf_type_name(99), "type 99");
	cr_assert_not(gguf_type_block(99, &elements, &bytes));
	cr_assert(gguf_type_block(GGUF_Q6_K, &elements, &bytes));
	cr_assert_eq(elements, 256);
	cr_assert_eq(bytes, 210);
}

static void save_split(const char *name, u32 number, u32 count, const char *tensor)
{
	put_start(3, 1, 3);
	put_int("split.no", number);
	put_int("split.count", count);
	put_int("split.tensors.count", 2);
	put_tensor(tensor, GGUF_F32, 4, 2, 0);
	put_data(32);
	save(name);
}

Test(gguf, several_files_are_one_model)
{
	char link[128];

	save_split("m-00001-of-00002.gguf", 0, 2, "one");
	save_split("m-00002-of-00002.gguf", 1, 2, "two");
	cr_assert_eq(gguf_open(&g, path_of("m-00001-of-00002.gguf"), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(gguf_tensor_count(g), 2);
	cr_assert_str_eq(gguf_tensor_find(g, "two")->file, "m-00002-of-00002.gguf");
	gguf_close(&g);
	snprintf(link, sizeof(link), "%s", path_of("model.gguf"));
	cr_assert_eq(symlink(path_of("m-00001-of-00002.gguf"), link), 0);
	cr_assert_eq(gguf_open(&g, link, &em), ERR_OK, "%s", em.text);
	u64 identity = gguf_identity(g);
	gguf_close(&g);
	save_split("m-00002-of-00002.gguf", 1, 2, "three");
	cr_assert_eq(gguf_open(&g, link, &em), ERR_OK, "%s", em.text);
	cr_assert_neq(gguf_identity(g), identity);
}

Test(gguf, files_of_a_model_that_do_not_fit_are_refused)
{
	save_split("m-00001-of-00002.gguf", 0, 2, "one");
	cr_assert_eq(gguf_open(&g, path_of("m-00001-of-00002.gguf"), &em), ERR_NOT_FOUND);
	cr_assert(strstr(em.text, "m-00002-of-00002.gguf"), "%s", em.text);
	save_split("m-00002-of-00002.gguf", 0, 2, "two");
	cr_assert_eq(gguf_open(&g, path_of("m-00001-of-00002.gguf"), &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "file 2 of 2 was expected"), "%s", em.text);
	save_split("m-00002-of-00002.gguf", 1, 2, "one");
	cr_assert_eq(gguf_open(&g, path_of("m-00001-of-00002.gguf"), &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "twice"), "%s", em.text);
	cr_assert_eq(gguf_open(&g, path_of("m-00002-of-00002.gguf"), &em), ERR_INVALID);
	cr_assert(strstr(em.text, "give the first one"), "%s", em.text);
	save_split("m.gguf", 0, 2, "one");
	cr_assert_eq(gguf_open(&g, path_of("m.gguf"), &em), ERR_INVALID);
	cr_assert(strstr(em.text, "cannot be found"), "%s", em.text);
	save_split("m-00001-of-00003.gguf", 0, 3, "one");
	save_split("m-00002-of-00003.gguf", 1, 3, "two");
	save_split("m-00003-of-00003.gguf", 2, 3, "three");
	cr_assert_eq(gguf_open(&g, path_of("m-00001-of-00003.gguf"), &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "by split.tensors.count they should have 2"), "%s", em.text);
}
