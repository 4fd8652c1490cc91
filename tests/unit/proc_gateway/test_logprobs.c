/* Log-probabilities in the forms of the API, over the bundled tokenizer. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "common/json.h"
#include "proc_gateway/logprobs.h"

static struct tokenizer *tokenizer;

static void load(void)
{
	struct err_msg em;
	cr_assert_eq(tokenizer_load(&tokenizer, DEMO_DIR, &em), ERR_OK, "%s", em.text);
}

TestSuite(logprobs, .init = load);

static size_t encode(const char *text, u32 *ids, size_t max)
{
	struct text_scratch *scratch;
	struct u32_vec v = {0};
	struct err_msg em;
	cr_assert_eq(text_scratch_create(&scratch), ERR_OK);
	cr_assert_eq(tokenizer_encode(tokenizer, scratch, text, strlen(text), 0, &v, &em), ERR_OK);
	cr_assert_leq(v.count, max);
	memcpy(ids, v.data, v.count * sizeof(*ids));
	size_t count = v.count;
	u32_vec_fini(&v);
	text_scratch_free(&scratch);
	return count;
}

static u32 one_token(const char *text)
{
	u32 ids[16];
	cr_assert_eq(encode(text, ids, 16), 1, "'%s' is not one token", text);
	return ids[0];
}

static struct json_doc *take(struct logprobs_writer *w)
{
	struct buf out = {0};
	struct json_doc *doc;
	struct err_msg em;
	logprobs_take(w, &out);
	cr_assert_eq(json_parse(&doc, out.data, out.bytes, &em), ERR_OK, "%s: %s", buf_cstr(&out), em.text);
	buf_fini(&out);
	return doc;
}

static double number_at(json_val list, size_t index)
{
	double value = NAN;
	json_double(json_at(list, index), &value);
	return value;
}

Test(logprobs, completions_have_parallel_arrays_with_the_token_always_listed)
{
	struct logprobs_writer w = {.tokenizer = tokenizer, .form = LOGPROBS_COMPLETIONS, .top = 2};
	u32 the = one_token("the"), and = one_token("and"), of = one_token(" of");
	u32 outside[] = {the, and, of}, inside[] = {and, and, of};
	f32 values[] = {-2.5f, -0.5f, -1.5f}, best[] = {-0.5f, -0.5f, -1.5f};
	logprobs_add(&w, &(struct token_logprobs){
				 .token = the, .rank = 3, .count = 3, .ids = outside, .values = values});
	logprobs_add(&w, &(struct token_logprobs){
				 .token = and, .rank = 1, .count = 3, .ids = inside, .values = best});
	struct json_doc *doc = take(&w);
	json_val root = json_root(doc);
	cr_assert(json_string_equals(json_at(json_get(root, "tokens"), 0), "the"));
	cr_assert_float_eq(number_at(json_get(root, "token_logprobs"), 0), -2.5, 0);
	json_val top = json_get(root, "top_logprobs");
	cr_assert_eq(json_count(json_at(top, 0)), 3, "outside the best: n + 1 entries");
	cr_assert_eq(json_count(json_at(top, 1)), 2, "inside the best: n entries");
	double value = 0;
	cr_assert(json_double(json_get(json_at(top, 0), "the"), &value));
	cr_assert_float_eq(value, -2.5, 0);
	cr_assert_float_eq(number_at(json_get(root, "text_offset"), 1), 3, 0);
	json_free(&doc);
	logprobs_fini(&w);
}

Test(logprobs, text_offset_counts_characters_also_where_tokens_are_parts_of_them)
{
	struct logprobs_writer w = {.tokenizer = tokenizer, .form = LOGPROBS_COMPLETIONS, .top = 0};
	const char *text = "a\xc3\xa9 \xe6\x9d\xb1\xe4\xba\xac\xf0\x9f\x99\x82z";
	u32 ids[64];
	size_t count = encode(text, ids, 64);
	f32 zero = -0.0f;
	for (size_t i = 0; i < count; i++)
		logprobs_add(&w, &(struct token_logprobs){
					 .token = ids[i], .count = 1, .ids = &ids[i], .values = &zero});
	struct json_doc *doc = take(&w);
	json_val offsets = json_get(json_root(doc), "text_offset");
	cr_assert_eq(json_count(offsets), count);
	struct buf before = {0};
	for (size_t i = 0; i < count; i++) {
		/* the number of characters that end at or before the token's first byte */
		double want = 0;
		for (size_t k = 0; k < before.bytes; k++) {
			bool starts = ((unsigned char)before.data[k] & 0xc0) != 0x80;
			unsigned char c = (unsigned char)before.data[k];
			size_t bytes = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
			if (starts && k + bytes <= before.bytes)
				want++;
		}
		cr_expect_float_eq(number_at(offsets, i), want, 0, "token %zu", i);
		tokenizer_token_bytes(tokenizer, ids[i], &before);
	}
	cr_assert_eq(before.bytes, strlen(text));
	cr_assert_eq(json_type(json_get(json_root(doc), "top_logprobs")), JSON_NULL);
	buf_fini(&before);
	json_free(&doc);
	logprobs_fini(&w);
}

Test(logprobs, chats_list_tokens_with_bytes_and_exactly_the_best)
{
	struct logprobs_writer w = {.tokenizer = tokenizer, .form = LOGPROBS_CHAT, .top = 1};
	u32 the = one_token("the"), and = one_token("and");
	u32 ids[] = {the, and, the};
	f32 values[] = {-2.0f, -1.0f, -2.0f};
	logprobs_add(&w, &(struct token_logprobs){
				 .token = the, .rank = 2, .count = 3, .ids = ids, .values = values});
	struct json_doc *doc = take(&w);
	json_val entry = json_at(json_get(json_root(doc), "content"), 0);
	cr_assert(json_string_equals(json_get(entry, "token"), "the"));
	cr_assert_eq(json_count(json_get(entry, "bytes")), 3);
	cr_assert_float_eq(number_at(json_get(entry, "bytes"), 0), 't', 0);
	cr_assert_eq(json_count(json_get(entry, "top_logprobs")), 1);
	cr_assert(json_string_equals(json_get(json_at(json_get(entry, "top_logprobs"), 0), "token"), "and"));
	json_free(&doc);
	logprobs_fini(&w);
}

Test(logprobs, the_list_of_llama_server_has_ids)
{
	struct logprobs_writer w = {.tokenizer = tokenizer, .form = LOGPROBS_LLAMA, .top = 1};
	u32 the = one_token("the"), and = one_token("and");
	u32 ids[] = {the, and};
	f32 values[] = {-2.0f, -1.0f};
	logprobs_add(&w, &(struct token_logprobs){.token = the, .rank = 2, .count = 2, .ids = ids, .values = values});
	struct json_doc *doc = take(&w);
	json_val entry = json_at(json_root(doc), 0), best = json_at(json_get(entry, "top_logprobs"), 0);
	cr_assert_eq(json_count(json_root(doc)), 1);
	u64 id = 0, best_id = 0;
	cr_assert(json_uint(json_get(entry, "id"), &id) && json_uint(json_get(best, "id"), &best_id));
	cr_assert(id == the && best_id == and);
	cr_assert(json_string_equals(json_get(entry, "token"), "the") && json_string_equals(json_get(best, "token"), "and"));
	json_free(&doc);
	logprobs_fini(&w);
}

Test(logprobs, what_was_taken_is_not_written_again_and_nothing_gives_null)
{
	struct logprobs_writer w = {.tokenizer = tokenizer, .form = LOGPROBS_CHAT};
	u32 the = one_token("the");
	f32 value = -1;
	struct json_doc *doc = take(&w);
	cr_assert_eq(json_type(json_root(doc)), JSON_NULL);
	json_free(&doc);
	for (int i = 0; i < 2; i++) {
		logprobs_add(&w, &(struct token_logprobs){
					 .token = the, .count = 1, .ids = &the, .values = &value});
		doc = take(&w);
		cr_assert_eq(json_count(json_get(json_root(doc), "content")), 1);
		json_free(&doc);
	}
	logprobs_fini(&w);
}

Test(logprobs, impossible_values_are_numbers_that_json_has)
{
	struct logprobs_writer w = {.tokenizer = tokenizer, .form = LOGPROBS_COMPLETIONS};
	u32 the = one_token("the");
	f32 values[] = {-INFINITY, NAN, -0.0f, 1e-7f};
	for (int i = 0; i < 4; i++)
		logprobs_add(&w, &(struct token_logprobs){
					 .token = the, .count = 1, .ids = &the, .values = &values[i]});
	struct json_doc *doc = take(&w);
	json_val list = json_get(json_root(doc), "token_logprobs");
	cr_assert_float_eq(number_at(list, 0), -9999, 0);
	cr_assert_float_eq(number_at(list, 1), -9999, 0);
	cr_assert_float_eq(number_at(list, 2), 0, 0);
	cr_assert_float_eq(number_at(list, 3), 0, 0);
	json_free(&doc);
	logprobs_fini(&w);
}

Test(logprobs, tokens_can_be_shown_as_ids)
{
	struct logprobs_writer w = {.tokenizer = tokenizer, .form = LOGPROBS_COMPLETIONS, .as_ids = true};
	u32 id = 42;
	f32 value = -1;
	logprobs_add(&w, &(struct token_logprobs){.token = id, .count = 1, .ids = &id, .values = &value});
	struct json_doc *doc = take(&w);
	cr_assert(json_string_equals(json_at(json_get(json_root(doc), "tokens"), 0), "token_id:42"));
	json_free(&doc);
	logprobs_fini(&w);
}

Test(logprobs, prompts_have_null_first_and_keep_what_came_in_pieces)
{
	struct prompt_logprobs p = {0};
	struct buf out = {0};
	struct json_doc *doc;
	u32 prompt[] = {1, 10, 20, 30};
	u32 positions[] = {1, 2, 3}, counts[] = {2, 2, 2}, ranks[] = {1, 5, 2},
	    ids[] = {10, 10, 20, 21, 30, 31};
	f32 values[] = {-0.25f, -0.25f, -4, -1, -2, -1};
	struct tercet_logprobs one = {.count = 1,
				      .positions = positions,
				      .counts = counts,
				      .ranks = ranks,
				      .ids = ids,
				      .values = values};
	struct tercet_logprobs rest = {.count = 2,
				       .positions = positions + 1,
				       .counts = counts + 1,
				       .ranks = ranks + 1,
				       .ids = ids + 2,
				       .values = values + 2};
	cr_assert(prompt_logprobs_add(&p, &one) && prompt_logprobs_add(&p, &rest));
	prompt_logprobs_write(&p, prompt, 4, 1, tokenizer, &out);
	cr_assert_eq(json_parse(&doc, out.data, out.bytes, NULL), ERR_OK, "%s", buf_cstr(&out));
	json_val list = json_root(doc);
	cr_assert_eq(json_count(list), 4);
	cr_assert_eq(json_type(json_at(list, 0)), JSON_NULL);
	cr_assert_eq(json_count(json_at(list, 1)), 1);
	cr_assert_eq(json_count(json_at(list, 2)), 2);
	u64 rank = 0;
	cr_assert(json_uint(json_get(json_get(json_at(list, 2), "20"), "rank"), &rank));
	cr_assert_eq(rank, 5);
	cr_assert(json_uint(json_get(json_get(json_at(list, 2), "21"), "rank"), &rank));
	cr_assert_eq(rank, 1);
	json_free(&doc);

	struct logprobs_writer w = {.tokenizer = tokenizer, .form = LOGPROBS_COMPLETIONS, .top = 1};
	prompt_logprobs_echo(&p, prompt, 4, &w);
	doc = take(&w);
	json_val token_values = json_get(json_root(doc), "token_logprobs");
	cr_assert_eq(json_type(json_at(token_values, 0)), JSON_NULL);
	cr_assert_float_eq(number_at(token_values, 2), -4, 0);
	json_free(&doc);
	logprobs_fini(&w);
	buf_fini(&out);
	prompt_logprobs_fini(&p);
}
