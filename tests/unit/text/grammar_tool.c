/* Runs grammars for grammar_differential.py: `grammar_tool MODEL_DIR`, one JSON object a line on standard input, one answer a
 * line. {"kind", "flags", "source"} compiles; {"walk": seed, "steps": n} samples allowed tokens until the end comes, which it
 * looks for behind n steps; {"accept": text} goes over the text's tokens; {"masks": [ids]} writes the mask before each token and
 * behind the last, in hexadecimal words. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json.h"
#include "text/grammar.h"
#include "text/text.h"

struct tool {
	struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	struct grammar_vocab *vocab;
	struct grammar *grammar;
	u32 size, eos;
	u32 *bits;
	u64 random;
	u32 closing[16]; /* tokens that bring a text to its end, in the order in which they are tried */
	u32 closing_count;
};

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "grammar_tool: %s\n", what);
	exit(2);
}

static u32 next_random(struct tool *t)
{
	t->random = t->random * 6364136223846793005u + 1442695040888963407u;
	return (u32)(t->random >> 33);
}

static bool allowed(const struct tool *t, u32 id)
{
	return id < t->size && (t->bits[id / 32] >> id % 32 & 1);
}

/* One of the allowed tokens. */
static u32 sample(struct tool *t)
{
	u32 count = 0;
	for (size_t i = 0; i < grammar_mask_words(t->size); i++)
		count += (u32)__builtin_popcount(t->bits[i]);
	u32 nth = next_random(t) % count;
	for (u32 id = 0; id < t->size; id++) {
		if (allowed(t, id) && nth-- == 0)
			return id;
	}
	die("no token");
}

/* `walked` tokens came; the more beyond `steps`, the more a token that ends something is wanted. */
static u32 choose(struct tool *t, u32 walked, u32 steps)
{
	if (walked < steps && next_random(t) % 4 != 0)
		return sample(t);
	for (u32 i = 0; i < t->closing_count; i++) {
		if (allowed(t, t->closing[i]) && (i == 0 || next_random(t) % 3 != 0)) /* not always the same one */
			return t->closing[i];
	}
	return sample(t);
}

static void write_text(struct tool *t, struct json_writer *w, const struct u32_vec *ids)
{
	struct buf text = {0};
	for (size_t i = 0; i < ids->count; i++)
		tokenizer_token_bytes(t->tokenizer, ids->data[i], &text);
	json_key(w, "text");
	json_write_string(w, text.data != NULL ? text.data : "", text.bytes);
	buf_fini(&text);
}

static void walk(struct tool *t, struct json_writer *w, u64 seed, u32 steps)
{
	struct grammar_state *s;
	struct u32_vec ids = {0};
	enum err e = grammar_state_create(&s, t->grammar, t->vocab);
	if (e != ERR_OK)
		die(err_text(e));
	t->random = seed * 2 + 1;
	for (u32 i = 0; i < steps + 2000 && e == ERR_OK; i++) {
		e = grammar_state_mask(s, t->bits);
		if (e != ERR_OK)
			break;
		u32 id = choose(t, i, steps);
		e = grammar_state_advance(s, id);
		if (e != ERR_OK || id == t->eos)
			break;
		u32_vec_push(&ids, id);
	}
	json_key(w, "error");
	json_write_cstr(w, err_name(e));
	json_key(w, "ended");
	json_write_bool(w, grammar_state_must_end(s));
	write_text(t, w, &ids);
	grammar_state_destroy(&s);
	u32_vec_fini(&ids);
}

/* SentencePiece puts a space in front of a text, which an answer behind a prompt has not: the first token without it. */
static void drop_first_space(struct tool *t, struct u32_vec *ids)
{
	static const char mark[] = "\xe2\x96\x81";
	const char *first = ids->count > 0 ? tokenizer_token_text(t->tokenizer, ids->data[0]) : NULL;
	if (first == NULL || strncmp(first, mark, sizeof(mark) - 1) != 0)
		return;
	u32 id;
	if (first[sizeof(mark) - 1] == '\0')
		memmove(ids->data, ids->data + 1, --ids->count * sizeof(*ids->data));
	else if (tokenizer_find(t->tokenizer, first + sizeof(mark) - 1, &id))
		ids->data[0] = id;
}

/* The number of tokens that were taken, of how many, and whether the text may end behind them. */
static void accept(struct tool *t, struct json_writer *w, json_val v)
{
	const char *text = "";
	size_t bytes = 0;
	struct u32_vec ids = {0};
	struct err_msg em = {.text = ""};
	struct grammar_state *s;
	json_string(v, &text, &bytes);
	if (tokenizer_encode(t->tokenizer, t->scratch, text, bytes, 0, &ids, &em) != ERR_OK)
		die(em.text);
	drop_first_space(t, &ids);
	if (grammar_state_create(&s, t->grammar, t->vocab) != ERR_OK)
		die("out of memory");
	size_t at = 0;
	while (at < ids.count && grammar_state_mask(s, t->bits) == ERR_OK && allowed(t, ids.data[at]) &&
	       grammar_state_advance(s, ids.data[at]) == ERR_OK)
		at++;
	json_key(w, "taken");
	json_write_uint(w, at);
	json_key(w, "tokens");
	json_write_uint(w, ids.count);
	json_key(w, "may_end");
	json_write_bool(w, at == ids.count && grammar_state_may_end(s));
	grammar_state_destroy(&s);
	u32_vec_fini(&ids);
}

static void masks(struct tool *t, struct json_writer *w, json_val ids)
{
	struct grammar_state *s;
	struct buf hex = {0};
	if (grammar_state_create(&s, t->grammar, t->vocab) != ERR_OK)
		die("out of memory");
	json_key(w, "masks");
	json_array_begin(w);
	struct json_iter it = json_iterate(ids);
	for (bool more = true; more;) {
		u64 id = UINT64_MAX;
		buf_clear(&hex);
		if (grammar_state_mask(s, t->bits) == ERR_OK) {
			for (size_t i = 0; i < grammar_mask_words(t->size); i++)
				buf_printf(&hex, "%08" PRIx32, t->bits[i]);
		}
		json_write_string(w, hex.data != NULL ? hex.data : "", hex.bytes);
		more = json_next(&it) && json_uint(it.value, &id) && grammar_state_advance(s, (u32)id) == ERR_OK;
	}
	json_array_end(w);
	grammar_state_destroy(&s);
	buf_fini(&hex);
}

static void compile(struct tool *t, struct json_writer *w, json_val command)
{
	u64 kind = 0, flags = 0;
	const char *source = "";
	size_t bytes = 0;
	struct err_msg em = {.text = ""};
	json_uint(json_get(command, "kind"), &kind);
	json_uint(json_get(command, "flags"), &flags);
	json_string(json_get(command, "source"), &source, &bytes);
	grammar_unref(&t->grammar);
	enum err e = grammar_compile(&t->grammar, (enum grammar_kind)kind, (u32)flags, source, bytes, &em);
	json_key(w, "error");
	json_write_cstr(w, err_name(e));
	json_key(w, "message");
	json_write_cstr(w, e == ERR_OK ? "" : em.text);
}

static void run(struct tool *t, json_val command)
{
	struct buf out = {0};
	struct json_writer w;
	u64 seed = 0, steps = 0;
	json_begin(&w, &out);
	json_object_begin(&w);
	if (json_present(json_get(command, "kind")))
		compile(t, &w, command);
	else if (t->grammar == NULL)
		die("no grammar");
	else if (json_uint(json_get(command, "walk"), &seed) && json_uint(json_get(command, "steps"), &steps))
		walk(t, &w, seed, (u32)steps);
	else if (json_present(json_get(command, "accept")))
		accept(t, &w, json_get(command, "accept"));
	else
		masks(t, &w, json_get(command, "masks"));
	json_object_end(&w);
	puts(buf_cstr(&out));
	fflush(stdout);
	buf_fini(&out);
}

static void load(struct tool *t, const char *model_dir)
{
	static const char *const closing[] = {"\"", "}", "]", "@", ".", "y", "x", ":", ",", "0", "1", "l", "e", "-"};
	struct err_msg em = {.text = ""};
	if (tokenizer_load(&t->tokenizer, model_dir, &em) != ERR_OK || text_scratch_create(&t->scratch) != ERR_OK)
		die(em.text);
	t->size = tokenizer_vocab_size(t->tokenizer);
	if (!tokenizer_find(t->tokenizer, tokenizer_eos(t->tokenizer), &t->eos) && !tokenizer_find(t->tokenizer, "<|endoftext|>", &t->eos))
		die("the tokenizer has no eos");
	if (grammar_vocab_create(&t->vocab, t->tokenizer, t->size, &t->eos, 1, &em) != ERR_OK)
		die(em.text);
	t->bits = calloc(grammar_mask_words(t->size), sizeof(*t->bits));
	t->closing[t->closing_count++] = t->eos;
	for (size_t i = 0; i < COUNT_OF(closing); i++)
		t->closing_count += tokenizer_find(t->tokenizer, closing[i], &t->closing[t->closing_count]);
}

int main(int argc, char **argv)
{
	struct tool t = {0};
	char *line = NULL;
	size_t room = 0;
	if (argc != 2)
		die("usage: grammar_tool MODEL_DIR");
	load(&t, argv[1]);
	if (t.bits == NULL)
		die("out of memory");
	for (ssize_t n; (n = getline(&line, &room, stdin)) > 0;) {
		struct json_doc *doc = NULL;
		struct err_msg em = {.text = ""};
		if (json_parse(&doc, line, (size_t)n, &em) != ERR_OK)
			die(em.text);
		run(&t, json_root(doc));
		json_free(&doc);
	}
	free(line);
	free(t.bits);
	grammar_unref(&t.grammar);
	grammar_vocab_destroy(&t.vocab);
	text_scratch_free(&t.scratch);
	tokenizer_free(&t.tokenizer);
	return 0;
}
