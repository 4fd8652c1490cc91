/* Reading of tokenizer.json from outside. What loads must encode and decode without harm, and a stream must say what
 * whole decoding says. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "text/text.h"

static const char *const texts[] = {"", " hello the  hello", "a\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80 <s>x</s>\n\n12", "aaaaaaa"};

static void try_text(const struct tokenizer *t, struct text_scratch *s, const char *text)
{
	struct u32_vec ids = {0};
	struct buf whole = {0}, streamed = {0};
	struct text_stream stream;
	struct err_msg em;
	enum err e = tokenizer_encode(t, s, text, strlen(text), TEXT_ADD_SPECIAL, &ids, &em);
	for (u32 id = 0; e == ERR_OK && id < 300; id++)
		u32_vec_push(&ids, id);
	tokenizer_decode(t, ids.data, ids.count, false, &whole);
	text_stream_init(&stream, t, false, NULL, 0);
	for (size_t i = 0; i < ids.count; i++)
		text_stream_push(&stream, ids.data[i], &streamed);
	text_stream_end(&stream, &streamed);
	if (whole.bytes != streamed.bytes || (whole.bytes > 0 && memcmp(whole.data, streamed.data, whole.bytes) != 0))
		abort();
	u32_vec_fini(&ids);
	buf_fini(&whole);
	buf_fini(&streamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct tokenizer *t = NULL;
	struct text_scratch *s = NULL;
	struct err_msg em = {.text = ""};
	if (tokenizer_parse(&t, (const char *)data, bytes, &em) != ERR_OK) {
		if (em.text[0] == '\0')
			abort(); /* every refusal says why */
		return 0;
	}
	if (text_scratch_create(&s) == ERR_OK)
		for (size_t i = 0; i < COUNT_OF(texts); i++)
			try_text(t, s, texts[i]);
	text_scratch_free(&s);
	tokenizer_free(&t);
	return 0;
}
