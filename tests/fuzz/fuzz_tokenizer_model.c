/* Reading of tokenizer.model, tiktoken files, tekken.json, and vocab.json with the files beside it, from outside: what converts
 * must load as tokenizer.json or be refused with a reason. The first byte chooses the kind and the settings of
 * tokenizer_config.json. */
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
	"{\"tokenizer_class\":\"Qwen2Tokenizer\",\"add_eos_token\":true,\"additional_special_tokens\":[\"<x>\",{\"content\":\"<y>\"}]}",
	"{\"tokenizer_class\":\"RobertaTokenizer\",\"add_prefix_space\":true,\"image_token\":\"<x>\",\"mask_token\":{\"content\":\"c\",\"lstrip\":true}}",
};

enum { KIND_TEKKEN = 0x20, KIND_VOCAB = 0x40, QWEN = 0x80, VOCAB_PARTS = 4 };

/* vocab.json, merges.txt, special_tokens_map.json and added_tokens.json, with a NUL between. */
static enum err convert_parts(struct buf *json, const char *data, size_t bytes, json_val config, struct err_msg *em)
{
	struct convert_vocab_files f = {.config = config};
	struct convert_names names;
	struct json_doc *docs[VOCAB_PARTS] = {NULL};
	const char *parts[VOCAB_PARTS] = {"", "", "", ""}, *end = data + bytes;
	size_t sizes[VOCAB_PARTS] = {0};
	struct err_msg ignored;
	for (int i = 0; i < VOCAB_PARTS && data < end; i++) {
		const char *stop = i < VOCAB_PARTS - 1 ? memchr(data, '\0', (size_t)(end - data)) : NULL;
		parts[i] = data;
		sizes[i] = (size_t)((stop != NULL ? stop : end) - data);
		data += sizes[i] + (stop != NULL);
	}
	for (int i = 2; i < VOCAB_PARTS; i++)
		if (json_parse(&docs[i], parts[i], sizes[i], &ignored) != ERR_OK)
			docs[i] = NULL;
	f.vocab = parts[0];
	f.vocab_bytes = sizes[0];
	f.merges = parts[1];
	f.merges_bytes = sizes[1];
	f.map = docs[2] != NULL ? json_root(docs[2]) : (json_val){NULL};
	f.added = docs[3] != NULL ? json_root(docs[3]) : (json_val){NULL};
	enum err e = convert_vocab_merges(json, &f, &names, em);
	free(names.bos);
	free(names.eos);
	json_free(&docs[2]);
	json_free(&docs[3]);
	return e;
}

/* A tekken.json begins with the 256 bytes, which would be most of a short input: the first \x01 stands for them. */
static enum err convert_expanded(struct buf *json, const char *data, size_t bytes, json_val config, struct err_msg *em)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *mark = memchr(data, 1, bytes);
	size_t before = mark != NULL ? (size_t)(mark - data) : bytes;
	struct buf text = {0};
	buf_append(&text, data, before);
	for (u32 b = 0; mark != NULL && b < 256; b++)
		buf_printf(&text, "{\"rank\":%u,\"token_bytes\":\"%c%c==\"},", b, digits[b >> 2], digits[(b & 3) << 4]);
	if (mark != NULL)
		buf_append(&text, mark + 1, bytes - before - 1);
	enum err e = convert_tekken(json, buf_cstr(&text), text.bytes, config, em);
	buf_fini(&text);
	return e;
}

static enum err convert(struct buf *json, u8 kind, const char *model, size_t bytes, json_val config, struct err_msg *em)
{
	if (kind & KIND_TEKKEN)
		return convert_expanded(json, model, bytes, config, em);
	if (kind & KIND_VOCAB)
		return convert_parts(json, model, bytes, config, em);
	return convert_is_tiktoken(model, bytes) ? convert_tiktoken(json, model, bytes, kind & QWEN, config, em)
						 : convert_sentencepiece(json, model, bytes, config, em);
}

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
	u32 chosen = data[0] & 0x1f;
	chosen = chosen % COUNT_OF(configs);
	if (parsed[chosen] == NULL && json_parse(&parsed[chosen], configs[chosen], strlen(configs[chosen]), &em) != ERR_OK)
		abort();
	json_val config = json_root(parsed[chosen]);
	enum err e = convert(&json, data[0], (const char *)data + 1, bytes - 1, config, &em);
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
