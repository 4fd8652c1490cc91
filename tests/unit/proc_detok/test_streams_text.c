/* Streams over real tokenizers: the deltas of any text are what decoding it at once gives. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/finish.h"
#include "common/utf8.h"
#include "proc_detok/streams.h"

static const char *const texts[] = {
	"The quick brown fox jumps over the lazy dog.",
	"  leading and trailing  spaces \n\n and\ttabs  ",
	"na\xc3\xafve caf\xc3\xa9 \xe2\x80\x94 \xe2\x80\x9cquoted\xe2\x80\x9d \xe2\x82\xac"
	"100",
	"\xe6\xbc\xa2\xe5\xad\x97\xe3\x81\x8b\xe3\x81\xaa \xed\x95\x9c\xea\xb8\x80 "
	"\xd0\x9a\xd0\xb8\xd1\x80\xd0\xb8\xd0\xbb\xd0\xbb",
	"\xf0\x9f\x98\x80\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 "
	"\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa!",
	"e\xcc\x81 \xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8\xe0\xa5\x8d\xe0\xa4\xa6\xe0\xa5\x80 \xef\xbf\xbd "
	"\xf0\x9d\x94\x98",
	"",
};

static struct streams *open_streams(const struct tokenizer *t)
{
	struct streams_config config = {.tokenizer = t, .streams_max = 4, .clients_max = 2, .early_max = 16};
	struct ipc_attach attach = {.client_id = 1};
	struct streams *ss;
	cr_assert_eq(streams_create(&ss, &config), ERR_OK);
	cr_assert_eq(streams_client_ready(ss, &attach), ERR_OK);
	return ss;
}

/* Chunks until there are no more, appended to `text`; 1 when the end came. */
static bool drain(struct streams *ss, struct buf *text)
{
	struct ipc_chunk c;
	bool ended = false;
	while (streams_next_chunk(ss, &c)) {
		cr_assert(utf8_valid((const char *)c.text, c.text_count));
		if (c.text_count > 0)
			buf_append(text, c.text, c.text_count);
		ended = ended || c.finish[0] != FINISH_NONE;
	}
	return ended;
}

/* The ids [prompt, count) one by one behind the prompt's ids. */
static void check_ids(const struct tokenizer *t, const u32 *ids, u32 prompt, u32 count, const char *name)
{
	struct streams *ss = open_streams(t);
	struct buf got = {0}, want = {0}, before = {0};
	u64 seq = 1;
	struct ipc_open open = {.seq = 1,
				.client_id = 1,
				.req_id = 1,
				.prompt_count = prompt,
				.prompt_tail = ids,
				.prompt_tail_count = prompt,
				.output_max = count - prompt,
				.flags = SAMPLING_SKIP_SPECIAL};
	streams_open(ss, &open, 1, 0);
	bool ended = false;
	for (u32 i = prompt; i < count; i++) {
		u32 position = i - prompt;
		struct ipc_result r = {.seq = &seq,
				       .seq_count = 1,
				       .position = &position,
				       .position_count = 1,
				       .token = &ids[i],
				       .token_count = 1};
		cr_assert_not(ended);
		streams_result(ss, &r, 1, 0);
		ended = drain(ss, &got);
	}
	cr_assert(ended);
	tokenizer_decode(t, ids, count, true, &want);
	tokenizer_decode(t, ids, prompt, true, &before);
	/* where the prompt ends on whole characters, the output is what the whole has more */
	if (before.bytes <= want.bytes &&
	    (before.bytes == 0 || memcmp(want.data, before.data, before.bytes) == 0)) {
		cr_assert_eq(got.bytes, want.bytes - before.bytes, "%s: '%s' behind '%s' of '%s'", name,
			     buf_cstr(&got), buf_cstr(&before), buf_cstr(&want));
		if (got.bytes > 0)
			cr_assert_eq(memcmp(got.data, want.data + before.bytes, got.bytes), 0);
	} else {
		/* no byte of the prompt leaks: the output can only be shorter than the whole */
		cr_assert_lt(got.bytes, want.bytes + 3);
	}
	buf_fini(&got);
	buf_fini(&want);
	buf_fini(&before);
	streams_destroy(&ss);
}

static void check_model(const char *dir)
{
	struct tokenizer *t;
	struct text_scratch *scratch;
	struct err_msg em = {.text = ""};
	cr_assert_eq(tokenizer_load(&t, dir, &em), ERR_OK, "%s: %s", dir, em.text);
	cr_assert_eq(text_scratch_create(&scratch), ERR_OK);
	for (u32 i = 0; i < COUNT_OF(texts); i++) {
		struct u32_vec ids = {0};
		cr_assert_eq(
			tokenizer_encode(t, scratch, texts[i], strlen(texts[i]), TEXT_ADD_SPECIAL, &ids, &em),
			ERR_OK, "%s", em.text);
		/* every cut between prompt and output, those inside characters too */
		for (u32 prompt = 1; prompt < ids.count && prompt < 12; prompt++)
			check_ids(t, ids.data, prompt, (u32)ids.count, dir);
		u32_vec_fini(&ids);
	}
	text_scratch_free(&scratch);
	tokenizer_free(&t);
}

Test(streams_text, deltas_are_the_text_decoded_at_once)
{
	check_model("demo");
}

Test(streams_text, the_same_with_other_families_of_tokenizers)
{
	static const char *const families[] = {"gpt2",	      "llama2",	       "llama3", "qwen2",
					       "gemma-style", "mistral-style", "phi3",	 "starcoder2"};
	u32 checked = 0;
	for (u32 i = 0; i < COUNT_OF(families); i++) {
		char dir[128], file[160];
		snprintf(dir, sizeof(dir), "../shared/data/tokenizers/%s", families[i]);
		snprintf(file, sizeof(file), "%s/tokenizer.json", dir);
		if (access(file, R_OK) != 0)
			continue;
		check_model(dir);
		checked++;
	}
	if (checked == 0)
		cr_skip_test("no tokenizers in ../shared/data");
}
