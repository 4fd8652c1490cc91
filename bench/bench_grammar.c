/* bench_grammar: what structured output costs, on one thread: making a vocabulary, compiling a schema, and along documents the
 * mask before each token (the first time and again) and the step over it. Prints one JSON line. bench_grammar.py runs peers over the
 * same documents. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "text/grammar.h"
#include "text/text.h"

enum { WARM_ROUNDS = 20 };

struct bench {
	struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	struct grammar_vocab *vocab;
	u32 size;
	u32 *bits;
	double compile_us_sum, compile_us_max, cold_us_sum, cold_us_max, warm_us_sum, warm_us_max, step_us_sum;
	u64 schemas, cold_masks, warm_masks, steps;
};

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "bench_grammar: %s\n", what);
	exit(1);
}

static double us_since(u64 from_ns)
{
	return (double)(clock_now_ns() - from_ns) / 1e3;
}

static void add(double us, double *sum, double *max)
{
	*sum += us;
	*max = us > *max ? us : *max;
}

/* SentencePiece puts a space in front of a text, which an answer behind a prompt has not. */
static void drop_first_space(struct bench *b, struct u32_vec *ids)
{
	static const char mark[] = "\xe2\x96\x81";
	const char *first = ids->count > 0 ? tokenizer_token_text(b->tokenizer, ids->data[0]) : NULL;
	if (first != NULL && strncmp(first, mark, sizeof(mark) - 1) == 0 &&
	    !tokenizer_find(b->tokenizer, first + sizeof(mark) - 1, &ids->data[0]))
		die("the first token cannot do without its space");
}

/* Masks and steps along the tokens of a document. */
static void walk(struct bench *b, struct grammar_state *s, const struct u32_vec *ids, bool cold)
{
	for (size_t i = 0; i <= ids->count; i++) {
		u64 from = clock_now_ns();
		if (grammar_state_mask(s, b->bits) != ERR_OK)
			die("no mask");
		if (cold)
			add(us_since(from), &b->cold_us_sum, &b->cold_us_max);
		else
			add(us_since(from), &b->warm_us_sum, &b->warm_us_max);
		b->cold_masks += cold;
		b->warm_masks += !cold;
		if (i == ids->count)
			return;
		from = clock_now_ns();
		if (grammar_state_advance(s, ids->data[i]) != ERR_OK)
			die("a document of the corpus is not taken");
		b->step_us_sum += us_since(from);
		b->steps++;
	}
}

static void run_case(struct bench *b, json_val entry)
{
	struct err_msg em = {.text = ""};
	struct buf source = {0}, text = {0};
	struct json_writer w;
	struct grammar *g;
	struct grammar_state *s;
	struct u32_vec ids = {0};
	json_begin(&w, &source);
	json_write_value(&w, json_get(entry, "schema"));
	u64 from = clock_now_ns();
	if (grammar_compile(&g, GRAMMAR_JSON_SCHEMA, 0, source.data, source.bytes, &em) != ERR_OK)
		die(em.text);
	add(us_since(from), &b->compile_us_sum, &b->compile_us_max);
	b->schemas++;
	if (grammar_state_create(&s, g, b->vocab) != ERR_OK)
		die("out of memory");
	for (int round = 0; round <= WARM_ROUNDS; round++) {
		for (struct json_iter it = json_iterate(json_get(entry, "valid")); json_next(&it);) {
			buf_clear(&text);
			u32_vec_clear(&ids);
			json_begin(&w, &text);
			w.spaced = true;
			json_write_value(&w, it.value);
			if (tokenizer_encode(b->tokenizer, b->scratch, text.data, text.bytes, 0, &ids, &em) != ERR_OK ||
			    grammar_state_replay(s, NULL, 0, NULL) != ERR_OK)
				die(em.text);
			drop_first_space(b, &ids);
			walk(b, s, &ids, round == 0);
		}
	}
	grammar_state_destroy(&s);
	grammar_unref(&g);
	u32_vec_fini(&ids);
	buf_fini(&source);
	buf_fini(&text);
}

int main(int argc, char **argv)
{
	const char *model = argc > 1 ? argv[1] : BENCH_MODEL, *cases = argc > 2 ? argv[2] : BENCH_SCHEMAS;
	struct bench b = {0};
	struct err_msg em = {.text = ""};
	struct json_doc *doc;
	u32 eos = 0;
	if (tokenizer_load(&b.tokenizer, model, &em) != ERR_OK || text_scratch_create(&b.scratch) != ERR_OK ||
	    json_parse_file(&doc, cases, &em) != ERR_OK)
		die(em.text);
	b.size = tokenizer_vocab_size(b.tokenizer);
	if (!tokenizer_find(b.tokenizer, tokenizer_eos(b.tokenizer), &eos))
		tokenizer_find(b.tokenizer, "<|endoftext|>", &eos);
	u64 from = clock_now_ns();
	if (grammar_vocab_create(&b.vocab, b.tokenizer, b.size, &eos, 1, &em) != ERR_OK)
		die(em.text);
	double vocab_ms = us_since(from) / 1e3;
	b.bits = calloc(grammar_mask_words(b.size), sizeof(*b.bits));
	if (b.bits == NULL)
		die("out of memory");
	for (struct json_iter it = json_iterate(json_root(doc)); json_next(&it);)
		run_case(&b, it.value);
	printf("{\"bench\":\"grammar\",\"vocabulary\":%u,\"vocab_ms\":%.1f,\"vocab_bytes\":%zu,\"schemas\":%llu,\"compile_us\":%.1f,"
	       "\"compile_us_max\":%.1f,\"cold_masks\":%llu,\"cold_mask_us\":%.2f,\"cold_mask_us_max\":%.1f,\"mask_us\":%.2f,\"mask_us_max\":%.1f,"
	       "\"step_us\":%.3f}\n",
	       b.size, vocab_ms, grammar_vocab_bytes(b.vocab), (unsigned long long)b.schemas, b.compile_us_sum / (double)b.schemas,
	       b.compile_us_max, (unsigned long long)b.cold_masks, b.cold_us_sum / (double)b.cold_masks, b.cold_us_max,
	       b.warm_us_sum / (double)b.warm_masks, b.warm_us_max, b.step_us_sum / (double)b.steps);
	grammar_vocab_destroy(&b.vocab);
	free(b.bits);
	json_free(&doc);
	text_scratch_free(&b.scratch);
	tokenizer_free(&b.tokenizer);
	return 0;
}
