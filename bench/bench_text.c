/* bench_text: how fast text/ is, on one thread: loading a tokenizer, encoding, decoding at once and as a stream,
 * rendering a chat template. Prints lines for people, or one JSON line with --json. bench_text.py runs it next to
 * Hugging Face tokenizers on the same documents. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "text/text.h"

enum { DOCUMENT_BYTES = 2048, ROUNDS_MIN = 3 };
#define ROUND_NS_MIN 300000000u

struct document {
	const char *text;
	size_t bytes;
};

struct bench {
	const char *model;
	const char *files[16];
	int file_count;
	bool json;
	struct buf text;
	struct document *documents;
	size_t count;
	struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	struct u32_vec ids;
	struct buf out;
	double load_ms, encode_s, decode_s, stream_s, cold_s, render_us;
};

static void die(const char *what)
{
	fprintf(stderr, "bench_text: %s\n", what);
	exit(1);
}

static void read_text(struct bench *b)
{
	for (int i = 0; i < b->file_count; i++) {
		FILE *f = fopen(b->files[i], "rb");
		if (f == NULL)
			die(b->files[i]);
		for (size_t n = 1; n > 0;) {
			if (!buf_reserve(&b->text, 1 << 16))
				die("out of memory");
			n = fread(b->text.data + b->text.bytes, 1, 1 << 16, f);
			b->text.bytes += n;
		}
		fclose(f);
	}
}

/* Documents end at the first newline behind DOCUMENT_BYTES; bench_text.py cuts at the same places. */
static void cut_documents(struct bench *b)
{
	size_t at = 0, room = b->text.bytes / DOCUMENT_BYTES + 1;
	b->documents = calloc(room, sizeof(*b->documents));
	if (b->documents == NULL)
		die("out of memory");
	while (at < b->text.bytes) {
		size_t end = at + DOCUMENT_BYTES;
		const char *newline =
			end < b->text.bytes ? memchr(b->text.data + end, '\n', b->text.bytes - end) : NULL;
		end = newline != NULL ? (size_t)(newline - b->text.data) + 1 : b->text.bytes;
		b->documents[b->count++] = (struct document){.text = b->text.data + at, .bytes = end - at};
		at = end;
	}
}

static void encode_all(struct bench *b)
{
	struct err_msg em;
	u32_vec_clear(&b->ids);
	for (size_t i = 0; i < b->count; i++)
		if (tokenizer_encode(b->tokenizer, b->scratch, b->documents[i].text, b->documents[i].bytes, 0, &b->ids,
				     &em) != ERR_OK)
			die(em.text);
}

static void decode_all(struct bench *b)
{
	buf_clear(&b->out);
	tokenizer_decode(b->tokenizer, b->ids.data, b->ids.count, false, &b->out);
}

/* As the detokenizer does it: one token at a time, the text taken away after each. */
static void stream_all(struct bench *b)
{
	struct text_stream s;
	text_stream_init(&s, b->tokenizer, false, NULL, 0);
	for (size_t i = 0; i < b->ids.count; i++) {
		buf_clear(&b->out);
		text_stream_push(&s, b->ids.data[i], &b->out);
	}
	text_stream_end(&s, &b->out);
}

/* Seconds of the fastest round. */
static double time_best(struct bench *b, void (*run)(struct bench *b))
{
	uint64_t best = UINT64_MAX, spent = 0;
	for (int round = 0; round < ROUNDS_MIN || spent < ROUND_NS_MIN; round++) {
		uint64_t begin = clock_now_ns();
		run(b);
		uint64_t ns = clock_now_ns() - begin;
		best = ns < best ? ns : best;
		spent += ns;
	}
	return (double)best / 1e9;
}

static void load_once(struct bench *b)
{
	struct err_msg em;
	tokenizer_free(&b->tokenizer);
	if (tokenizer_load(&b->tokenizer, b->model, &em) != ERR_OK)
		die(em.text);
}

/* A conversation of eight turns. */
static double time_render(struct bench *b)
{
	static const char messages[] =
		"[{\"role\":\"user\",\"content\":\"Why is the sky blue?\"},{\"role\":\"assistant\",\"content\":\"It scatters.\"},"
		"{\"role\":\"user\",\"content\":\"And the sea?\"},{\"role\":\"assistant\",\"content\":\"It reflects.\"},"
		"{\"role\":\"user\",\"content\":\"And grass?\"},{\"role\":\"assistant\",\"content\":\"It is green.\"},"
		"{\"role\":\"user\",\"content\":\"Why?\"}]";
	enum { RENDERS = 2000 };
	struct chat_template *t = NULL;
	struct json_doc *doc = NULL;
	struct err_msg em;
	double us = 0;
	if (chat_template_load(&t, b->model, "", &em) != ERR_OK || json_parse(&doc, messages, sizeof(messages) - 1, &em) != ERR_OK)
		return 0;
	struct chat_request r = {.messages = json_root(doc), .add_generation_prompt = true, .bos_token = tokenizer_bos(b->tokenizer), .eos_token = tokenizer_eos(b->tokenizer)};
	uint64_t begin = clock_now_ns();
	for (int i = 0; i < RENDERS; i++) {
		buf_clear(&b->out);
		if (chat_template_render(t, &r, &b->out, &em) != ERR_OK)
			die(em.text);
	}
	us = (double)(clock_now_ns() - begin) / 1e3 / RENDERS;
	chat_template_free(&t);
	json_free(&doc);
	return us;
}

static void measure(struct bench *b)
{
	load_once(b);
	if (text_scratch_create(&b->scratch) != ERR_OK)
		die("out of memory");
	uint64_t begin = clock_now_ns();
	encode_all(b);
	b->cold_s = (double)(clock_now_ns() - begin) / 1e9;
	b->encode_s = time_best(b, encode_all);
	b->decode_s = time_best(b, decode_all);
	b->stream_s = time_best(b, stream_all);
	b->render_us = time_render(b);
	b->load_ms = time_best(b, load_once) * 1e3;
}

static void report(const struct bench *b)
{
	double mb = (double)b->text.bytes / 1e6, ids = (double)b->ids.count;
	const char *format =
		b->json ? "{\"model\": \"%s\", \"text_mb\": %.3f, \"ids\": %.0f, \"encode_mb_s\": %.1f, \"encode_cold_mb_s\": %.1f, "
			  "\"encode_ids_s\": %.0f, \"decode_tokens_s\": %.0f, \"stream_tokens_s\": %.0f, \"load_ms\": %.1f, "
			  "\"template_us\": %.2f}\n"
			: "model             %s\ntext              %.3f MB, %.0f ids\nencode            %.1f MB/s (first pass %.1f), "
			  "%.0f ids/s\ndecode            %.0f tokens/s\nstreaming decode  %.0f tokens/s\nload              %.1f "
			  "ms\nchat template     %.2f us\n";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	printf(format, b->model, mb, ids, mb / b->encode_s, mb / b->cold_s, ids / b->encode_s, ids / b->decode_s,
	       ids / b->stream_s, b->load_ms, b->render_us);
#pragma GCC diagnostic pop
}

int main(int argc, char **argv)
{
	struct bench b = {.model = BENCH_MODEL};
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--json") == 0)
			b.json = true;
		else if (strcmp(argv[i], "--model") == 0 && i + 1 < argc)
			b.model = argv[++i];
		else if (strcmp(argv[i], "--text") == 0 && i + 1 < argc && b.file_count < 16)
			b.files[b.file_count++] = argv[++i];
		else
			die("usage: bench_text [--json] [--model DIR] [--text FILE]...");
	}
	if (b.file_count == 0) {
		b.files[b.file_count++] = BENCH_TEXT;
	}
	read_text(&b);
	cut_documents(&b);
	measure(&b);
	report(&b);
	tokenizer_free(&b.tokenizer);
	text_scratch_free(&b.scratch);
	u32_vec_fini(&b.ids);
	buf_fini(&b.out);
	buf_fini(&b.text);
	free(b.documents);
	return 0;
}
