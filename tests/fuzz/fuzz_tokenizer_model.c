/* Reading of tokenizer.model and tiktoken files from outside: what converts must load as tokenizer.json or be refused
 * with a reason. The first byte chooses the settings of tokenizer_config.json. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "text/convert_priv.h"
#include "text/text.h"

static const char *const configs[] = {
	"{}",
	("{\"legacy\":true,\"add_bos_token\":true,\"add_eos_token\":true,\"bos_token\":\"a\",\"eos_token\":{\"content\":\"b\"},"
	"\"added_tokens_decoder\":{\"5\":{\"content\":\"<x>\",\"special\":true},\"7\":{\"content\":\"b\",\"lstrip\":true}}}"),
	"{\"add_bos_token\":false,\"add_prefix_space\":false,\"tokenizer_class\":\"T5Tokenizer\",\"add_eos_token\":false}",
};

static void try_text(const struct tokenizer *t)
{
	static const char text[] = " hello  \xe4\xbd\xa0 a\xcc\x81 <x>\tb ";
	struct text_scratch *s = NULL;
	struct u32_vec ids = {0};
	struct buf decoded = {0};
	struct err_msg em;
	if (text_scratch_create(&s) != ERR_OK)
		return;
	if (tokenizer_encode(t, s, text, sizeof(text) - 1, TEXT_ADD_SPECIAL, &ids, &em) == ERR_OK)
		tokenizer_decode(t, ids.data, ids.count, false, &decoded);
	u32_vec_fini(&ids);
	buf_fini(&decoded);
	text_scratch_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct json_doc *parsed[COUNT_OF(configs)];
	struct tokenizer *t = NULL;
	struct buf json = {0};
	struct err_msg em = {.text = ""};
	if (bytes == 0)
		return 0;
	u32 kind = data[0] % COUNT_OF(configs);
	if (parsed[kind] == NULL && json_parse(&parsed[kind], configs[kind], strlen(configs[kind]), &em) != ERR_OK)
		abort();
	json_val config = json_root(parsed[kind]);
	const char *model = (const char *)data + 1;
	enum err e = convert_is_tiktoken(model, bytes - 1)
			     ? convert_tiktoken(&json, model, bytes - 1, data[0] & 128, config, &em)
			     : convert_sentencepiece(&json, model, bytes - 1, config, &em);
	if (e == ERR_OK)
		e = tokenizer_parse(&t, buf_cstr(&json), json.bytes, &em);
	if (e == ERR_OK)
		try_text(t);
	else if (em.text[0] == '\0')
		abort(); /* every refusal says why */
	tokenizer_free(&t);
	buf_fini(&json);
	return 0;
}
