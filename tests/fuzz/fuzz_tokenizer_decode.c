/* Decoding of ids from outside, at once and as a stream behind a prompt: the first byte chooses the tokenizer and how
 * it decodes, the second the length of the prompt, ids follow two bytes each. */
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "fuzz.h"
#include "tests/unit/text/fixtures.h"

static const struct fixture fixtures[] = {
	FIXTURE_GPT2, FIXTURE_LLAMA, FIXTURE_METASPACE, FIXTURE_GEMMA, FIXTURE_WORDPIECE_DECODER, FIXTURE_PLAIN,
	{.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Metaspace\",\"replacement\":"
		    "\"\xe2\x96\x81\",\"prepend_scheme\":\"first\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\"a\","
		    "\"start\":2,\"stop\":2}]}"},
	{.decoder = "{\"type\":\"BPEDecoder\",\"suffix\":\"e\"}"},
};
enum { FIXTURE_COUNT = sizeof(fixtures) / sizeof(fixtures[0]) };

static u32 id_at(const uint8_t *data, size_t i)
{
	return (u32)(data[2 * i] | data[2 * i + 1] << 8) % 512;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct tokenizer *tokenizers[FIXTURE_COUNT];
	struct u32_vec ids = {0};
	struct buf whole = {0}, streamed = {0};
	struct text_stream s;
	if (bytes < 2)
		return 0;
	u32 kind = data[0] % 32 % FIXTURE_COUNT;
	bool skip = data[0] & 128, clean_up = data[0] & 64;
	if (tokenizers[kind] == NULL)
		tokenizers[kind] = fixture_load(&fixtures[kind]);
	tokenizer_set_clean_up(tokenizers[kind], clean_up);
	for (size_t i = 0; i < bytes / 2 - 1; i++)
		u32_vec_push(&ids, id_at(data + 2, i));
	size_t prompt = data[1] < ids.count ? data[1] : 0;
	text_stream_init(&s, tokenizers[kind], skip, ids.data, prompt);
	s.tight_added = prompt > 0 && (data[0] & 32);
	for (size_t i = prompt; i < ids.count; i++) {
		text_stream_push(&s, ids.data[i], &streamed);
		if (!utf8_valid(streamed.data, streamed.bytes))
			abort(); /* never half a character */
	}
	text_stream_end(&s, &streamed);
	tokenizer_decode(tokenizers[kind], ids.data, ids.count, skip, &whole);
	if (!utf8_valid(whole.data, whole.bytes))
		abort();
	if (prompt == 0 &&
	    (whole.bytes != streamed.bytes || (whole.bytes > 0 && memcmp(whole.data, streamed.data, whole.bytes) != 0)))
		abort();
	u32_vec_fini(&ids);
	buf_fini(&whole);
	buf_fini(&streamed);
	return 0;
}
