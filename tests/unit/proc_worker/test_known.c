/* config.json of well-known checkpoints, field by field as the Hub has them (known_configs.json): those of families that are
 * there are read, the others refused with words that help. What is called "shape of" one was not compared with its file: it has
 * the fields that the family's configuration class of transformers reads, and sizes like the checkpoint's. */
#include <criterion/criterion.h>
#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "proc_worker/model/config.h"

static json_val open_known(struct json_doc **doc)
{
	struct err_msg em;

	cr_assert_eq(json_parse_file(doc, SOURCE_ROOT "/tests/unit/proc_worker/known_configs.json", &em), ERR_OK, "%s", em.text);
	return json_root(*doc);
}

/* The text of `v` again. */
static const char *text_of(json_val v, struct buf *out)
{
	struct json_writer w;

	out->bytes = 0;
	json_begin(&w, out);
	json_write_value(&w, v);
	buf_append_char(out, 0);
	return out->data;
}

Test(known, checkpoints_of_known_families_are_read_or_refused_with_the_reason)
{
	static struct model_config c;
	struct json_doc *doc;
	struct buf text = {0};
	u32 read = 0, refused = 0;

	for (struct json_iter it = json_iterate(open_known(&doc)); json_next(&it);) {
		struct err_msg em = {""};
		json_val words = json_get(it.value, "refused");
		const char *config = text_of(json_get(it.value, "config"), &text);
		enum err e = model_config_parse(&c, config, strlen(config), &em);
		if (!json_present(words)) {
			cr_expect_eq(e, ERR_OK, "%s: %s", it.key, em.text);
			read++;
			continue;
		}
		cr_expect_neq(e, ERR_OK, "%s is read", it.key);
		for (struct json_iter w = json_iterate(words); json_next(&w); refused++)
			cr_expect(strstr(em.text, json_cstr(w.value, "?")), "%s: '%s' is not in '%s'", it.key,
				  json_cstr(w.value, "?"), em.text);
	}
	cr_assert(read > 60 && refused > 5, "%u, %u", read, refused);
	buf_fini(&text);
	json_free(&doc);
}
