/* Every published vector: ids, decoded text, and streams over random splits, for each tokenizer family. */
#include <criterion/criterion.h>

#include "text/text.h"
#include "vectors.h"

struct checker {
	struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	unsigned checks;
	unsigned failures;
};

static void check_ids(struct checker *c, json_val line, const char *key, u32 flags, struct u32_vec *ids)
{
	struct err_msg em = {{0}};
	const char *text = "";
	size_t bytes = 0, i = 0;
	json_val want = json_get(line, key);
	if (!json_present(want))
		return;
	u32_vec_clear(ids);
	cr_assert(json_string(json_get(line, "text"), &text, &bytes));
	cr_assert(tokenizer_encode(c->tokenizer, c->scratch, text, bytes, flags, ids, &em) == ERR_OK, "%s", em.text);
	bool same = ids->count == json_count(want);
	for (struct json_iter it = json_iterate(want); same && json_next(&it); i++) {
		uint64_t id = 0;
		same = json_uint(it.value, &id) && id == ids->data[i];
	}
	c->checks++;
	c->failures += !same;
	if (!same && c->failures < 10)
		fprintf(stderr, "%s differ for \"%.80s\" (%zu instead of %zu)\n", key, text, ids->count,
			json_count(want));
}

static void check_text(struct checker *c, json_val line, const char *key, const struct u32_vec *ids, bool skip)
{
	struct buf whole = {0}, streamed = {0};
	const char *want = "";
	size_t bytes = 0;
	if (!json_string(json_get(line, key), &want, &bytes))
		return; /* not every file has every field */
	tokenizer_decode(c->tokenizer, ids->data, ids->count, skip, &whole);
	struct text_stream s;
	text_stream_init(&s, c->tokenizer, skip, NULL, 0);
	for (size_t i = 0; i < ids->count; i++)
		text_stream_push(&s, ids->data[i], &streamed);
	text_stream_end(&s, &streamed);
	bool same = whole.bytes == bytes && memcmp(buf_cstr(&whole), want, bytes) == 0 && streamed.bytes == bytes &&
		    memcmp(buf_cstr(&streamed), want, bytes) == 0;
	c->checks++;
	c->failures += !same;
	if (!same && c->failures < 10)
		fprintf(stderr, "%s: \"%.80s\" instead of \"%.80s\"\n", key, buf_cstr(&whole), want);
	buf_fini(&whole);
	buf_fini(&streamed);
}

static void check_family(const char *model, const char *vectors)
{
	char path[4096];
	struct vectors v;
	if (!vectors_path(path, sizeof(path), model) || !vectors_open(&v, vectors))
		cr_skip_test("no %s", model);
	struct checker c = {0};
	struct err_msg em = {{0}};
	cr_assert(tokenizer_load(&c.tokenizer, path, &em) == ERR_OK, "%s", em.text);
	cr_assert(text_scratch_create(&c.scratch) == ERR_OK);
	struct u32_vec ids = {0};
	json_val line;
	while (vectors_next(&v, &line)) {
		check_ids(&c, line, "ids", 0, &ids);
		check_text(&c, line, "decoded", &ids, false);
		check_ids(&c, line, "ids_special", TEXT_ADD_SPECIAL, &ids);
		check_text(&c, line, "decoded_skip_special", &ids, true);
	}
	vectors_close(&v);
	u32_vec_fini(&ids);
	text_scratch_free(&c.scratch);
	tokenizer_free(&c.tokenizer);
	cr_assert(c.checks > 0 && c.failures == 0, "%u of %u checks failed", c.failures, c.checks);
}

Test(vectors, demo)
{
	check_family("demo", "demo_vectors.jsonl");
}
#define FAMILY(test, name)                                                                                   \
	Test(vectors, test)                                                                                  \
	{                                                                                                    \
		check_family("tokenizers/" name, "tokenizers/" name "/vectors.jsonl");                       \
	}
FAMILY(llama3, "llama3")
FAMILY(qwen2, "qwen2")
FAMILY(gpt2, "gpt2")
FAMILY(starcoder2, "starcoder2")
FAMILY(llama2, "llama2")
FAMILY(phi3, "phi3")
FAMILY(mistral_style, "mistral-style")
FAMILY(gemma_style, "gemma-style")

/* Small tokenizers in the shape of further families, and without tokenizer.json (make_models.py). */
#define KEPT(test, name)                                                                                     \
	Test(vectors, test)                                                                                  \
	{                                                                                                    \
		check_family("tests/unit/text/models/" name, "tests/unit/text/models/" name "/vectors.jsonl"); \
	}
KEPT(bert, "bert")
KEPT(bloom, "bloom")
KEPT(clip, "clip")
KEPT(deepseek_v3, "deepseek-v3")
KEPT(falcon, "falcon")
KEPT(gemma, "gemma")
KEPT(gpt_neox, "gpt-neox")
KEPT(mistral, "mistral")
KEPT(sentencepiece_bpe, "sentencepiece-bpe")
KEPT(sentencepiece_unigram, "sentencepiece-unigram")
KEPT(tiktoken, "tiktoken")
KEPT(opt, "opt")
KEPT(qwen_vocab, "qwen-vocab")
KEPT(tekken, "tekken")
