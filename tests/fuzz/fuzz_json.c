/* Reading of JSON from outside. What is read is written and must read back with the same text. */
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/utf8.h"
#include "fuzz.h"

static void write_whole(const struct json_doc *doc, struct buf *out)
{
	struct json_writer w;

	json_begin(&w, out);
	json_write_value(&w, json_root(doc));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct json_doc *doc = NULL, *again = NULL;
	struct buf first = {0}, second = {0};
	struct err_msg em;

	if (json_parse(&doc, (const char *)data, bytes, &em) == ERR_OK) {
		write_whole(doc, &first);
		if (!utf8_valid(first.data, first.bytes) ||
		    json_parse(&again, first.data, first.bytes, &em) != ERR_OK)
			abort();
		write_whole(again, &second);
		if (first.bytes != second.bytes || memcmp(first.data, second.data, first.bytes) != 0)
			abort();
	}
	buf_fini(&first);
	buf_fini(&second);
	json_free(&doc);
	json_free(&again);
	return 0;
}
