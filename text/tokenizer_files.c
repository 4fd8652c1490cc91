/* Owns the choice of the file that holds a model's vocabulary, and its reading. Runs once per process that
 * handles text, while a model loads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/convert_priv.h"
#include "text/tokenizer_priv.h"

enum { PATH_BYTES_MAX = 4096 };

/* In the order in which they are looked for; TOKENIZER_FILE_NAMES says the same to people. */
enum source_kind { SOURCE_JSON, SOURCE_TEKKEN, SOURCE_MISTRAL, SOURCE_MODEL, SOURCE_QWEN, SOURCE_VOCAB };
static const struct source {
	const char *name;
	enum source_kind kind;
} sources[] = {
	{"tokenizer.json", SOURCE_JSON},	       {"tekken.json", SOURCE_TEKKEN},
	{"tokenizer.model.v7m1", SOURCE_MISTRAL}, {"tokenizer.model.v7", SOURCE_MISTRAL},
	{"tokenizer.model.v3", SOURCE_MISTRAL},   {"tokenizer.model.v2", SOURCE_MISTRAL},
	{"tokenizer.model.v1", SOURCE_MISTRAL},   {"tokenizer.model", SOURCE_MODEL},
	{"spiece.model", SOURCE_MODEL},	       {"tiktoken.model", SOURCE_MODEL},
	{"qwen.tiktoken", SOURCE_QWEN},	       {"vocab.json", SOURCE_VOCAB},
};

static enum err read_file(struct buf *out, const char *path, struct err_msg *em)
{
	FILE *f = fopen(path, "rb");
	if (f == NULL)
		return err_set(em, ERR_IO, "%s: %m", path);
	enum err e = ERR_OK;
	while (e == ERR_OK && !feof(f)) {
		if (!buf_reserve(out, out->bytes + (1u << 16)))
			e = err_set(em, ERR_NO_MEMORY, "%s: out of memory", path);
		else
			out->bytes += fread(out->data + out->bytes, 1, out->capacity - out->bytes, f);
		if (e == ERR_OK && ferror(f))
			e = err_set(em, ERR_IO, "%s: %m", path);
	}
	fclose(f);
	return e;
}

enum err tokenizer_open_config(struct json_doc **out, const char *model_dir, const char *name,
			       struct err_msg *em)
{
	char path[PATH_BYTES_MAX];
	*out = NULL;
	snprintf(path, sizeof(path), "%s/%s", model_dir, name);
	return access(path, F_OK) == 0 ? json_parse_file(out, path, em) : ERR_OK;
}

static enum err find_source(char path[static PATH_BYTES_MAX], const char *model_dir, enum source_kind *kind,
			    struct err_msg *em)
{
	for (size_t i = 0; i < COUNT_OF(sources); i++) {
		*kind = sources[i].kind;
		if ((size_t)snprintf(path, PATH_BYTES_MAX, "%s/%s", model_dir, sources[i].name) >=
		    PATH_BYTES_MAX)
			return err_set(em, ERR_IO, "the model's path is longer than %d bytes",
				       PATH_BYTES_MAX);
		if (access(path, F_OK) == 0)
			return ERR_OK;
	}
	return err_set(em, ERR_IO, "%s has no tokenizer: no " TOKENIZER_FILE_NAMES, model_dir);
}

bool tokenizer_exists(const char *model_dir)
{
	char path[PATH_BYTES_MAX];
	enum source_kind kind;
	return find_source(path, model_dir, &kind, NULL) == ERR_OK;
}

/* The text of a tokenizer.json. */
static enum err convert(struct buf *json, struct buf *text, enum source_kind kind, json_val config,
			struct err_msg *em)
{
	if (kind == SOURCE_TEKKEN)
		return convert_tekken(json, buf_cstr(text), text->bytes, config, em);
	if (kind == SOURCE_MISTRAL)
		return convert_mistral_pieces(json, text->data, text->bytes, config, em);
	if (convert_is_tiktoken(buf_cstr(text), text->bytes))
		return convert_tiktoken(json, text->data, text->bytes, kind == SOURCE_QWEN, config, em);
	return convert_sentencepiece(json, text->data, text->bytes, config, em);
}

/* A name that neither file has. */
static void take_default(char **name, json_val config, json_val map, const char *key, const char *text)
{
	if (!json_present(json_get(config, key)) && !json_present(json_get(map, key)))
		*name = strdup(text);
}

static enum err load_one(struct tokenizer **out, const char *path, enum source_kind kind, json_val config,
			 struct err_msg *em)
{
	struct buf text = {0}, json = {0};
	enum err e = read_file(&text, path, em);
	if (e != ERR_OK) {
		buf_fini(&text);
		return e;
	}
	if (kind != SOURCE_JSON)
		e = convert(&json, &text, kind, config, em);
	struct buf *parsed = kind != SOURCE_JSON ? &json : &text;
	if (e == ERR_OK)
		e = tokenizer_parse(out, buf_cstr(parsed), parsed->bytes, em);
	if (e != ERR_OK)
		err_prefix(em, "%s", path);
	buf_fini(&text);
	buf_fini(&json);
	return e;
}

/* ---- vocab.json and what is beside it ---- */

/* The files are named in the converter's messages. */
struct vocab_files {
	struct buf vocab;
	struct buf merges;
	struct json_doc *added;
	struct json_doc *model;
};

static enum err read_beside(struct buf *out, const char *model_dir, const char *name, struct err_msg *em)
{
	char path[PATH_BYTES_MAX];
	if ((size_t)snprintf(path, sizeof(path), "%s/%s", model_dir, name) >= sizeof(path))
		return err_set(em, ERR_IO, "the model's path is longer than %d bytes", PATH_BYTES_MAX);
	return read_file(out, path, em);
}

/* config.json may hold Python's Infinity. */
static enum err open_python(struct json_doc **out, const char *model_dir, const char *name,
			    struct err_msg *em)
{
	char path[PATH_BYTES_MAX];
	snprintf(path, sizeof(path), "%s/%s", model_dir, name);
	return access(path, F_OK) == 0 ? json_parse_python_file(out, path, em) : ERR_OK;
}

static json_val root_of(const struct json_doc *doc)
{
	return doc != NULL ? json_root(doc) : (json_val){NULL};
}

static enum err convert_beside(struct tokenizer **out, const struct vocab_files *files,
			       struct convert_vocab_files *f, const char *model_dir, struct err_msg *em)
{
	struct convert_names names = {0};
	struct buf json = {0};
	f->vocab = files->vocab.data;
	f->vocab_bytes = files->vocab.bytes;
	f->merges = files->merges.data;
	f->merges_bytes = files->merges.bytes;
	f->added = root_of(files->added);
	f->model = root_of(files->model);
	enum err e = convert_vocab_merges(&json, f, &names, em);
	if (e == ERR_OK)
		e = tokenizer_parse(out, buf_cstr(&json), json.bytes, em);
	if (e == ERR_OK) {
		(*out)->bos = names.bos;
		(*out)->eos = names.eos;
	} else {
		err_prefix(em, "%s", model_dir);
		free(names.bos);
		free(names.eos);
	}
	buf_fini(&json);
	return e;
}

static enum err load_vocab(struct tokenizer **out, const char *model_dir, json_val config, json_val map,
			   struct err_msg *em)
{
	struct vocab_files files = {0};
	struct convert_vocab_files f = {.config = config, .map = map};
	enum err e = read_beside(&files.vocab, model_dir, "vocab.json", em);
	if (e == ERR_OK)
		e = read_beside(&files.merges, model_dir, "merges.txt", em);
	if (e == ERR_OK)
		e = tokenizer_open_config(&files.added, model_dir, "added_tokens.json", em);
	if (e == ERR_OK)
		e = open_python(&files.model, model_dir, "config.json", em);
	if (e == ERR_OK)
		e = convert_beside(out, &files, &f, model_dir, em);
	buf_fini(&files.vocab);
	buf_fini(&files.merges);
	json_free(&files.added);
	json_free(&files.model);
	return e;
}

enum err tokenizer_files_load(struct tokenizer **out, const char *model_dir, json_val config, json_val map,
			      struct err_msg *em)
{
	char path[PATH_BYTES_MAX];
	enum source_kind kind;
	enum err e = find_source(path, model_dir, &kind, em);
	if (e == ERR_OK)
		e = kind == SOURCE_VOCAB ? load_vocab(out, model_dir, config, map, em)
					 : load_one(out, path, kind, config, em);
	if (e == ERR_OK && (kind == SOURCE_TEKKEN || kind == SOURCE_MISTRAL)) {
		take_default(&(*out)->bos, config, map, "bos_token", "<s>");
		take_default(&(*out)->eos, config, map, "eos_token", "</s>");
	}
	return e;
}
