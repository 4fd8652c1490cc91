#include <criterion/criterion.h>
#include <string.h>

#include "text/normalize_priv.h"

static const char *normalized(const char *json, const char *text, size_t *origin)
{
	static struct buf work[2], out;
	struct json_doc *doc;
	struct err_msg em = {.text = ""};
	struct normalizer n;
	struct regex_scratch s;
	cr_assert(json_parse(&doc, json, strlen(json), &em) == ERR_OK, "%s", em.text);
	cr_assert(normalizer_load(&n, json_root(doc), &em) == ERR_OK, "%s", em.text);
	cr_assert(regex_scratch_init(&s) == ERR_OK);
	struct norm_text t = {.text = text, .bytes = strlen(text), .origin = origin != NULL ? *origin : 0};
	cr_assert(normalizer_run(&n, &s, work, &t) == ERR_OK);
	buf_clear(&out);
	buf_append(&out, t.text, t.bytes);
	if (origin != NULL)
		*origin = t.origin;
	regex_scratch_fini(&s);
	normalizer_fini(&n);
	json_free(&doc);
	return buf_cstr(&out);
}

static void expect(const char *json, const char *text, const char *wanted)
{
	cr_assert_str_eq(normalized(json, text, NULL), wanted, "%s of %s", json, text);
}

Test(normalize, normal_forms_compose_across_the_ascii_short_cut)
{
	expect("{\"type\":\"NFC\"}", "plain ascii", "plain ascii");
	expect("{\"type\":\"NFC\"}", "xe\xcc\x81y", "x\xc3\xa9y");
	expect("{\"type\":\"NFD\"}", "\xc3\xa9", "e\xcc\x81");
	expect("{\"type\":\"NFKC\"}", "\xef\xac\x81 \xc2\xbd", "fi 1\xe2\x81\x84" "2");
	expect("{\"type\":\"NFKD\"}", "\xef\xbd\xb6\xef\xbe\x9e", "\xe3\x82\xab\xe3\x82\x99");
	expect("{\"type\":\"NFC\"}", "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c");
	/* U+11A7 is no final consonant and stays, behind one syllable and with another behind it */
	expect("{\"type\":\"NFC\"}", "\xed\x93\xa8\xe1\x86\xa7", "\xed\x93\xa8\xe1\x86\xa7");
	expect("{\"type\":\"NFKC\"}", "\xe1\x86\xa7\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xa7\xcc\x81\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab",
	       "\xe1\x86\xa7\xed\x95\x98\xe1\x86\xa7\xcc\x81\xed\x95\x9c");
}

Test(normalize, strings_are_prepended_replaced_stripped)
{
	expect("{\"type\":\"Prepend\",\"prepend\":\"_\"}", "a", "_a");
	expect("{\"type\":\"Prepend\",\"prepend\":\"_\"}", "", "");
	expect("{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"__\"}", " a b", "__a__b");
	expect("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}", "a    b c", "a b c");
	expect("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", " \xc2\xa0x \n", "x");
	expect("{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true}", " x ", " x");
	expect("{\"type\":\"Lowercase\"}", "A\xc3\x89\xc4\xb0", "a\xc3\xa9i\xcc\x87");
	expect("{\"type\":\"StripAccents\"}", "e\xcc\x81", "e");
}

Test(normalize, sequences_run_in_order)
{
	expect("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"},{\"type\":\"Lowercase\"},"
	       "{\"type\":\"Prepend\",\"prepend\":\">\"}]}",
	       "\xc3\x89t\xc3\xa9", ">ete");
}

Test(normalize, bert_cleans_and_separates_ideographs)
{
	expect("{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,\"strip_accents\":null,\"lowercase\":true}",
	       "\xc3\x89\t\x01\xe4\xbd\xa0", "e  \xe4\xbd\xa0 ");
}

Test(normalize, the_place_of_the_first_character_is_kept)
{
	size_t origin = 1;
	(void)normalized("{\"type\":\"Prepend\",\"prepend\":\"__\"}", "ab", &origin);
	cr_assert_eq(origin, 3, "what is put in front belongs to the first character");
	origin = 1;
	(void)normalized("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"^..\"},\"content\":\"x\"}", "abc", &origin);
	cr_assert_eq(origin, 0, "what replaces two characters belongs to the second");
	origin = 1;
	(void)normalized("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", " a", &origin);
	cr_assert_eq(origin, 0);
}

Test(normalize, what_is_not_known_is_named)
{
	struct json_doc *doc;
	struct err_msg em;
	struct normalizer n;
	cr_assert(json_parse(&doc, "{\"type\":\"Uppercase\"}", 20, &em) == ERR_OK);
	cr_assert_eq(normalizer_load(&n, json_root(doc), &em), ERR_UNSUPPORTED);
	cr_assert_not_null(strstr(em.text, "Uppercase"), "%s", em.text);
	json_free(&doc);
}
