/* Chat templates from outside: every source is parsed or refused with a reason, and renders within its limits. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "fuzz.h"
#include "text/text.h"

static const char request_json[] =
	"{\"messages\":[{\"role\":\"system\",\"content\":\"Be  kind. \"},{\"role\":\"user\",\"content\":\"h\xc3\xa9llo\\n\"},"
	"{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a<b>\"}],\"tool_calls\":[{\"n\":1.5}]}],"
	"\"tools\":[{\"name\":\"f\",\"parameters\":{\"x\":[1,true,null]}}],\"extra\":{\"n\":7,\"s\":\" ab \",\"l\":[3,1,2]}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct chat_template *t = NULL;
	struct json_doc *doc = NULL;
	struct err_msg em = {.text = ""};
	struct buf out = {0};
	enum err e = chat_template_parse(&t, (const char *)data, bytes, &em);
	if (e == ERR_OK && json_parse(&doc, request_json, sizeof(request_json) - 1, &em) == ERR_OK) {
		json_val root = json_root(doc);
		struct chat_request r = {.messages = json_get(root, "messages"),
					 .tools = json_get(root, "tools"),
					 .kwargs = json_get(root, "extra"),
					 .add_generation_prompt = true,
					 .template_from_client = true,
					 .now_s = 1736944496,
					 .bos_token = "<s>"};
		em.text[0] = '\0';
		e = chat_template_render(t, &r, &out, &em);
		if (!utf8_valid(out.data, out.bytes))
			abort();
	}
	if (e != ERR_OK && em.text[0] == '\0' && memmem(data, bytes, "raise", 5) == NULL)
		abort(); /* only a template's own exception may have an empty text */
	buf_fini(&out);
	json_free(&doc);
	chat_template_free(&t);
	return 0;
}
