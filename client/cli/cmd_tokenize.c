/* tercet tokenize: ids of a text and the text of the ids, for one text or for a file of JSON lines. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli.h"
#include "text/text.h"

struct tokenize {
	struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	u32 flags;
	bool skip_special;
	bool clean_up;
	struct u32_vec ids;
	struct buf decoded;
};

static void print_help(void)
{
	cli_print_usage("tokenize");
	printf("\nWith TEXT, prints one line a token: id and text. With --jsonl, reads lines {\"text\": ...} or {\"ids\": [...]} from "
	       "FILE (- is standard input)\nand answers each with a line {\"ids\": [...], \"decoded\": ...} or {\"error\": ...}.\n\n"
	       "  --model DIR                the model whose tokenizer is used; or a file *.gguf\n"
	       "  --jsonl FILE               many texts\n"
	       "  --add-special-tokens       add what the tokenizer puts around a text (BOS and the like)\n"
	       "  --skip-special-tokens      leave special tokens out of the decoded text\n"
	       "  --clean-up                 remove spaces from the decoded text where the model's clean_up_tokenization_spaces\n"
	       "                             says so, as a running engine does\n");
}

static enum err encode(struct tokenize *t, const char *text, size_t bytes, struct err_msg *em)
{
	u32_vec_clear(&t->ids);
	return tokenizer_encode(t->tokenizer, t->scratch, text, bytes, t->flags, &t->ids, em);
}

static enum err print_text(struct tokenize *t, const char *text, struct err_msg *em)
{
	enum err e = encode(t, text, strlen(text), em);
	for (size_t i = 0; e == ERR_OK && i < t->ids.count; i++)
		printf("%7u  %s\n", t->ids.data[i], tokenizer_token_text(t->tokenizer, t->ids.data[i]));
	return e;
}

static enum err read_ids(struct tokenize *t, json_val list, struct err_msg *em)
{
	u32_vec_clear(&t->ids);
	for (struct json_iter it = json_iterate(list); json_next(&it);) {
		uint64_t id;
		if (!json_uint(it.value, &id) || id > UINT32_MAX)
			return err_set(em, ERR_FORMAT, "\"ids\" must be an array of token ids, got %s",
				       json_type_name(it.value));
		u32_vec_push(&t->ids, (u32)id);
	}
	return t->ids.failed ? err_set(em, ERR_NO_MEMORY, "out of memory") : ERR_OK;
}

/* A line has a text or ids; both end in ids and their text. */
static enum err read_line(struct tokenize *t, json_val line, struct err_msg *em)
{
	const char *text;
	size_t bytes;
	json_val ids = json_get(line, "ids");
	if (json_string(json_get(line, "text"), &text, &bytes))
		return encode(t, text, bytes, em);
	if (json_type(ids) == JSON_ARRAY)
		return read_ids(t, ids, em);
	return err_set(em, ERR_FORMAT, "the line needs \"text\" (a string) or \"ids\" (an array)");
}

static enum err answer(struct tokenize *t, json_val line, struct json_writer *w, struct err_msg *em)
{
	enum err e = read_line(t, line, em);
	if (e != ERR_OK)
		return e;
	buf_clear(&t->decoded);
	tokenizer_decode(t->tokenizer, t->ids.data, t->ids.count, t->skip_special, &t->decoded);
	json_object_begin(w);
	json_key(w, "ids");
	json_array_begin(w);
	for (size_t i = 0; i < t->ids.count; i++)
		json_write_uint(w, t->ids.data[i]);
	json_array_end(w);
	json_key(w, "decoded");
	json_write_string(w, buf_cstr(&t->decoded), t->decoded.bytes);
	json_object_end(w);
	return ERR_OK;
}

static void answer_line(struct tokenize *t, const char *line, size_t bytes, struct buf *out)
{
	struct err_msg em = {.text = ""};
	struct json_doc *doc = NULL;
	struct json_writer w;
	buf_clear(out);
	json_begin(&w, out);
	enum err e = json_parse(&doc, line, bytes, &em);
	if (e == ERR_OK)
		e = answer(t, json_root(doc), &w, &em);
	if (e != ERR_OK) {
		buf_clear(out);
		json_begin(&w, out);
		json_object_begin(&w);
		json_key(&w, "error");
		json_write_cstr(&w, em.text);
		json_object_end(&w);
	}
	json_free(&doc);
	buf_append_char(out, '\n');
}

static enum err answer_file(struct tokenize *t, const char *path, struct err_msg *em)
{
	FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rbe");
	if (f == NULL)
		return err_set(em, ERR_IO, "%s: %m", path);
	struct buf out = {0};
	char *line = NULL;
	size_t room = 0;
	ssize_t n;
	while ((n = getline(&line, &room, f)) > 0) {
		answer_line(t, line, (size_t)n, &out);
		fwrite(out.data, 1, out.bytes, stdout);
	}
	free(line);
	buf_fini(&out);
	enum err e = ferror(f) ? err_set(em, ERR_IO, "%s: %m", path) : ERR_OK;
	if (f != stdin)
		fclose(f);
	return e;
}

static enum err run(const char *model, const char *jsonl, const char *text, struct tokenize *t, struct err_msg *em)
{
	char folder[PATH_MAX];
	bool made;
	enum err e = model_folder(folder, sizeof(folder), model, "", &made, em);
	if (e == ERR_OK)
		e = tokenizer_load(&t->tokenizer, folder, em);
	if (e == ERR_OK && !t->clean_up)
		tokenizer_set_clean_up(t->tokenizer, false);
	if (e == ERR_OK && text_scratch_create(&t->scratch) != ERR_OK)
		e = err_set(em, ERR_NO_MEMORY, "out of memory");
	if (e == ERR_OK)
		e = jsonl != NULL ? answer_file(t, jsonl, em) : print_text(t, text, em);
	u32_vec_fini(&t->ids);
	buf_fini(&t->decoded);
	text_scratch_free(&t->scratch);
	tokenizer_free(&t->tokenizer);
	return e;
}

int cmd_tokenize(int argc, char **argv)
{
	struct tokenize t = {0};
	struct err_msg em = {.text = ""};
	const char *model = NULL, *jsonl = NULL;
	if (cli_help_wanted(argc, argv, NULL)) {
		print_help();
		return CLI_OK;
	}
	t.flags = cli_take_flag(&argc, argv, "--add-special-tokens") ? TEXT_ADD_SPECIAL : 0;
	t.skip_special = cli_take_flag(&argc, argv, "--skip-special-tokens");
	t.clean_up = cli_take_flag(&argc, argv, "--clean-up");
	enum err e = cli_take_text(&argc, argv, "--model", &model, &em);
	if (e == ERR_OK)
		e = cli_take_text(&argc, argv, "--jsonl", &jsonl, &em);
	const char *text = jsonl == NULL ? cli_take_word(&argc, argv) : NULL;
	if (e == ERR_OK && (model == NULL || (jsonl == NULL && text == NULL) || argc > 1))
		e = err_set(&em, ERR_INVALID,
			    "tercet tokenize --model DIR takes a TEXT or --jsonl FILE (see --help)");
	if (e != ERR_OK)
		return cli_usage_error(&em);
	return run(model, jsonl, text, &t, &em) == ERR_OK ? CLI_OK : cli_fail(&em);
}
