/* Pickles as data: what each instruction makes, and what is refused. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/model/pickle.h"

static const struct pickle_global GLOBALS[] = {
	{"collections", "OrderedDict", PICKLE_MAPPING, 1}, {"torch._utils", "_rebuild", PICKLE_CALLED, 2}, {"torch", "FloatStorage", PICKLE_NAMED, 3}};

static enum err read(struct pickle *p, struct arena *a, const char *data, size_t bytes, struct err_msg *em)
{
	return pickle_read(p, a, data, bytes, GLOBALS, COUNT_OF(GLOBALS), em);
}

static const struct pickle_value *good_bytes(struct arena *a, const char *data, size_t bytes)
{
	struct pickle p;
	struct err_msg em = {""};

	cr_assert_eq(read(&p, a, data, bytes, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(p.bytes, bytes);
	return p.value;
}

#define GOOD(text) good_bytes(&a, text, sizeof(text) - 1)

Test(pickle, values_are_those_of_python)
{
	struct arena a = {0};

	cr_assert_eq(GOOD("\x80\x02N.")->kind, PICKLE_NONE);
	cr_assert(GOOD("\x88.")->kind == PICKLE_BOOL && GOOD("\x88.")->integer == 1 && GOOD("\x89.")->integer == 0);
	cr_assert_eq(GOOD("K\xff.")->integer, 255);
	cr_assert_eq(GOOD("M\x01\x02.")->integer, 513);
	cr_assert_eq(GOOD("J\xff\xff\xff\xff.")->integer, -1);
	cr_assert_eq(GOOD("\x8a\0.")->integer, 0);
	cr_assert_eq(GOOD("\x8a\1\x80.")->integer, -128);
	cr_assert_eq(GOOD("\x8a\2\xff\0.")->integer, 255);
	cr_assert_eq(GOOD("\x8a\5\0\0\0\0\1.")->integer, 1ll << 32);
	cr_assert_eq(GOOD("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xff.")->integer, -1);
	cr_assert_eq(GOOD("\x8b\1\0\0\0\5.")->integer, 5);
	const struct pickle_value *big = GOOD("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.");
	cr_assert(big->kind == PICKLE_LONG && big->count == 10 && !memcmp(big->text, "\x6c\xfc", 2));
	cr_assert_eq(GOOD("G\0\0\0\0\0\0\0\0.")->kind, PICKLE_FLOAT);
	cr_assert(pickle_is_string(GOOD("X\3\0\0\0abc."), "abc"));
	cr_assert(pickle_is_string(GOOD("\x8c\3abc."), "abc"));
	cr_assert(pickle_is_string(GOOD("\x8d\3\0\0\0\0\0\0\0abc."), "abc"));
	cr_assert(pickle_is_string(GOOD("U\3abc."), "abc"));
	cr_assert(pickle_is_string(GOOD("T\3\0\0\0abc."), "abc"));
	cr_assert(!pickle_is_string(GOOD("X\3\0\0\0abc."), "ab") && !pickle_is_string(GOOD("X\2\0\0\0ab."), "abc"));
	cr_assert(GOOD("C\2ab.")->kind == PICKLE_BYTES && GOOD("B\2\0\0\0ab.")->count == 2);
	cr_assert_eq(GOOD("\x8e\1\0\0\0\0\0\0\0a.")->count, 1);
	cr_assert_eq(GOOD("\x96\1\0\0\0\0\0\0\0a.")->kind, PICKLE_BYTES);
	arena_fini(&a);
}

Test(pickle, collections_are_put_together)
{
	struct arena a = {0};

	cr_assert(GOOD(").")->kind == PICKLE_TUPLE && GOOD(").")->count == 0);
	cr_assert_eq(GOOD("(K\1K\2K\3K\4t.")->items[3]->integer, 4);
	cr_assert_eq(GOOD("K\1\x85.")->count, 1);
	cr_assert_eq(GOOD("K\1K\2\x86.")->items[1]->integer, 2);
	cr_assert_eq(GOOD("K\1K\2K\3\x87.")->items[2]->integer, 3);
	cr_assert_eq(GOOD("](K\1K\2eK\3a.")->items[2]->integer, 3);
	cr_assert_eq(GOOD("(K\1K\2l.")->kind, PICKLE_LIST);
	const struct pickle_value *dict = GOOD("\x80\4\x95\x13\0\0\0\0\0\0\0}\x94(\x8c\1a\x94K\1\x8c\1bh\1uh\1Ns.");
	cr_assert(dict->kind == PICKLE_DICT && dict->count == 6 && pickle_is_string(dict->items[3], "a"));
	cr_assert_eq(GOOD("(X\1\0\0\0aK\1d.")->count, 2);
	cr_assert_eq(GOOD("]q\0K\1ah\0K\2a0.")->count, 2, "the memo has the list itself");
	cr_assert_eq(GOOD("]r\2\0\0\0(K\1K\2\x31j\2\0\0\0\x86.")->count, 2);
	const struct pickle_value *own = GOOD("]q\0h\0a.");
	cr_assert(own->items[0] == own, "a list may be in itself");
	arena_fini(&a);
}

Test(pickle, calls_are_described_and_not_made)
{
	struct arena a = {0};
	struct pickle p;
	struct err_msg em;

	const struct pickle_value *v = GOOD("ctorch._utils\n_rebuild\n(K\1K\2tR.");
	cr_assert(v->kind == PICKLE_CALL && v->global->id == 2 && v->count == 2 && v->items[1]->integer == 2);
	cr_assert_eq(GOOD("\x8c\x0ctorch._utils\x8c\x08_rebuild\x93)\x81.")->global->id, 2);
	cr_assert(GOOD("ctorch\nFloatStorage\n.")->kind == PICKLE_GLOBAL);
	v = GOOD("ccollections\nOrderedDict\n)R(X\1\0\0\0aK\1u}X\1\0\0\0bK\2sb.");
	cr_assert(v->kind == PICKLE_DICT && v->count == 2, "attributes are passed over");
	v = GOOD("ccollections\nOrderedDict\n](](U\1aK\1eK\1K\2\x86\x65\x85R.");
	cr_assert(v->kind == PICKLE_DICT && v->count == 4 && v->items[3]->integer == 2, "as Python 2 writes them");
	static const char two[] = "(U\1aK\1tQ(U\1bK\2tQ\x86.";
	cr_assert_eq(read(&p, &a, two, sizeof(two) - 1, &em), ERR_OK);
	cr_assert(p.persistent == p.value->items[1] && p.persistent->before == p.value->items[0] && !p.value->items[0]->before);
	arena_fini(&a);
}

static void refused_bytes(enum err expected, const char *text, const char *data, size_t bytes)
{
	struct arena a = {0};
	struct pickle p;
	struct err_msg em = {""};
	char *copy = memcpy(malloc(bytes), data, bytes); /* so that a sanitizer sees its end */

	cr_assert_eq(read(&p, &a, copy, bytes, &em), expected, "%s: %s", text, em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	free(copy);
	arena_fini(&a);
}

#define REFUSED(e, text, data) refused_bytes(e, text, data, sizeof(data) - 1)

Test(pickle, other_names_are_refused_and_nothing_is_run)
{
	REFUSED(ERR_UNSUPPORTED, "byte 2 of the pickle: it wants posix.system, which weights do not need: nothing of the file was run", "\x80\2cposix\nsystem\nX\2\0\0\0id\x85R.");
	REFUSED(ERR_UNSUPPORTED, "it wants builtins.eval", "\x8c\x08" "builtins\x8c\x04" "eval\x93.");
	REFUSED(ERR_UNSUPPORTED, "it wants torch.FloatStorag,", "ctorch\nFloatStorag\n.");
	REFUSED(ERR_UNSUPPORTED, "it wants torch.FloatStorage?,", "ctorch\nFloatStorage\0\n.");
	REFUSED(ERR_UNSUPPORTED, "it calls torch.FloatStorage", "ctorch\nFloatStorage\n)R.");
	REFUSED(ERR_UNSUPPORTED, "it calls a string", "X\1\0\0\0a)R.");
	REFUSED(ERR_UNSUPPORTED, "with a list", "ctorch._utils\n_rebuild\n]R.");
	REFUSED(ERR_FORMAT, "something is named by an integer and a string", "K\1U\1a\x93.");
	REFUSED(ERR_UNSUPPORTED, "it gives attributes to a call", "ctorch._utils\n_rebuild\n)R}b.");
	REFUSED(ERR_UNSUPPORTED, "it adds to a call", "ctorch._utils\n_rebuild\n)RK\1K\2s.");
	REFUSED(ERR_FORMAT, "other than a list of pairs", "ccollections\nOrderedDict\nK\1\x85R.");
	REFUSED(ERR_FORMAT, "other than pairs", "ccollections\nOrderedDict\n](K\1e\x85R.");
	REFUSED(ERR_UNSUPPORTED, "a persistent id that is a string", "U\1aQ.");
	REFUSED(ERR_UNSUPPORTED, "the instruction 0x69, which", "i");
	REFUSED(ERR_UNSUPPORTED, "the instruction 0x92, which", "\x92");
	REFUSED(ERR_UNSUPPORTED, "the instruction 0x97, which", "\x97");
	REFUSED(ERR_UNSUPPORTED, "a pickle of protocol 6; those up to 5 are read", "\x80\6.");
}

Test(pickle, what_contradicts_itself_is_refused)
{
	REFUSED(ERR_FORMAT, "byte 0 of the pickle: it ends with 0 values", ".");
	REFUSED(ERR_FORMAT, "it ends with 2 values", "NN.");
	REFUSED(ERR_FORMAT, "it ends with 1 values", "(.");
	REFUSED(ERR_FORMAT, "takes more from its stack than there is", "K\1\x86.");
	REFUSED(ERR_FORMAT, "takes more from its stack than there is", "\x30.");
	REFUSED(ERR_FORMAT, "takes more from its stack than there is", ")R.");
	REFUSED(ERR_FORMAT, "takes more from its stack than there is", "q\0.");
	REFUSED(ERR_FORMAT, "a mark for a value", "(K\1\x86.");
	REFUSED(ERR_FORMAT, "a mark for a value", "(q\0.");
	REFUSED(ERR_FORMAT, "a mark that is not there", "K\1t.");
	REFUSED(ERR_FORMAT, "a mark that is not there", "\x31.");
	REFUSED(ERR_FORMAT, "it adds to nothing", "(K\1K\2u.");
	REFUSED(ERR_UNSUPPORTED, "it adds to a tuple; only a list", ")(K\1K\2e.");
	REFUSED(ERR_UNSUPPORTED, "it adds to a mark; only a dictionary", "(K\1K\2s.");
	REFUSED(ERR_FORMAT, "a key without a value", "}(K\1u.");
	REFUSED(ERR_FORMAT, "a key without a value", "(K\1d.");
	REFUSED(ERR_FORMAT, "place 1 of its memo, where nothing is", "Nq\0h\1.");
	REFUSED(ERR_FORMAT, "place 4294967295 of its memo", "j\xff\xff\xff\xff.");
	REFUSED(ERR_TOO_LONG, "place 4294967295 of the memo", "Nr\xff\xff\xff\xff.");
	REFUSED(ERR_FORMAT, "place 256 of the memo, in front of which", "Nr\0\1\0\0.");
	REFUSED(ERR_FORMAT, "truncated: it ends at byte 3", "\x80\2N");
	REFUSED(ERR_FORMAT, "truncated", "X\xff\xff\xff\xff" "abc.");
	REFUSED(ERR_FORMAT, "truncated", "\x8d\xff\xff\xff\xff\xff\xff\xff\xff" "abc.");
	REFUSED(ERR_FORMAT, "truncated", "\x8b\xff\xff\xff\xff" "abc.");
	REFUSED(ERR_FORMAT, "truncated", "\x95\xff\0\0\0\0\0\0\0N.");
	REFUSED(ERR_FORMAT, "truncated", "ctorch\nFloat");
}

/* Each copies what the one before has made. */
Test(pickle, memory_has_a_bound)
{
	enum { PAIRS = 5000, CALLS = 100 };
	static char data[8 + PAIRS * 2 + CALLS * 6 + 64];
	struct arena a = {.limit_bytes = 4 << 20};
	struct pickle p;
	struct err_msg em = {""};
	size_t n = 0;

#define PUT(text) (memcpy(data + n, text, sizeof(text) - 1), n += sizeof(text) - 1)
	PUT("NN\x86q\0]q\1(");
	for (int i = 0; i < PAIRS; i++)
		PUT("h\0");
	PUT("e0ccollections\nOrderedDict\nq\2(");
	for (int i = 0; i < CALLS; i++)
		PUT("h\2h\1\x85R");
	PUT("t.");
	cr_assert_lt(n, sizeof(data));
	cr_assert_eq(read(&p, &a, data, n, &em), ERR_TOO_LONG);
	cr_assert(strstr(em.text, "its values take more than"), "%s", em.text);
	arena_fini(&a);
}

Test(pickle, every_cut_is_refused)
{
	static const char whole[] = "\x80\2ccollections\nOrderedDict\nq\0)Rq\1(X\1\0\0\0actorch._utils\n_rebuild\n((X\7\0\0\0storagectorch\nFloatStorage\n"
				    "X\1\0\0\0" "0X\3\0\0\0cpuM\x01\1tQK\0K\2\x85K\1\x85\x89h\0)RtRX\1\0\0\0b\x8a\2\1\1u}X\1\0\0\0_G\0\0\0\0\0\0\0\0sb.";
	struct arena a = {0};
	struct pickle p;
	struct err_msg em;

	cr_assert_eq(read(&p, &a, whole, sizeof(whole) - 1, &em), ERR_OK, "%s", em.text);
	arena_fini(&a);
	for (size_t bytes = 1; bytes + 1 < sizeof(whole); bytes++)
		refused_bytes(ERR_FORMAT, "truncated: it ends at byte", whole, bytes);
}
