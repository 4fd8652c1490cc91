/* Encoding of text from outside, with several kinds of tokenizers: the first byte chooses. Invalid UTF-8 is refused,
 * everything else encodes, and byte-level tokenizers give back every byte. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "fuzz.h"
#include "tests/unit/text/fixtures.h"

static const struct fixture fixtures[] = {
	FIXTURE_GPT2,
	FIXTURE_LLAMA,
	FIXTURE_METASPACE,
	FIXTURE_GEMMA,
	FIXTURE_WORDPIECE_DECODER,
	{.byte_level = true,
	 .normalizer = "{\"type\":\"NFC\"}",
	 .added_tokens = "[{\"id\":266,\"content\":\"<|a|>\",\"special\":true,\"lstrip\":true},{\"id\":267,\"content\":"
			 "\"<|ab\",\"single_word\":true,\"normalized\":true},{\"id\":268,\"content\":\"  \",\"rstrip\":true}]",
	 .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":"
			  "\"Split\",\"pattern\":{\"Regex\":\"\\\\s+(?!\\\\S)|\\\\w+|[^\\\\s\\\\w]\"},\"behavior\":\"MergedWithNext\","
			  "\"invert\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}]}",
	 .decoder = "{\"type\":\"ByteLevel\"}"},
	{.byte_level = true,
	 .pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"},"
			  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false},{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
			  "\"behavior\":\"Removed\",\"invert\":false}]}",
	 .decoder = "{\"type\":\"ByteLevel\"}"},
};
enum { FIXTURE_COUNT = sizeof(fixtures) / sizeof(fixtures[0]) };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct tokenizer *tokenizers[FIXTURE_COUNT];
	static struct text_scratch *scratch;
	struct u32_vec ids = {0};
	struct buf decoded = {0};
	struct err_msg em;
	if (bytes == 0)
		return 0;
	u32 kind = data[0] % FIXTURE_COUNT;
	if (scratch == NULL && text_scratch_create(&scratch) != ERR_OK)
		return 0;
	if (tokenizers[kind] == NULL)
		tokenizers[kind] = fixture_load(&fixtures[kind]);
	const char *text = (const char *)data + 1;
	enum err e = tokenizer_encode(tokenizers[kind], scratch, text, bytes - 1, 0, &ids, &em);
	if ((e == ERR_OK) != utf8_valid(text, bytes - 1))
		abort();
	for (size_t i = 0; i < ids.count; i++)
		if (ids.data[i] >= tokenizer_vocab_size(tokenizers[kind]))
			abort();
	tokenizer_decode(tokenizers[kind], ids.data, ids.count, false, &decoded);
	if (e == ERR_OK && kind == 0 &&
	    (decoded.bytes != bytes - 1 || (bytes > 1 && memcmp(decoded.data, text, bytes - 1) != 0)))
		abort();
	u32_vec_fini(&ids);
	buf_fini(&decoded);
	return 0;
}
