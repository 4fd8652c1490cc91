/* Options from a flat YAML file: keys are the long names, values scalars, lists sequences. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/options.h"
#include "common/options_priv.h"

/* What every step of one file needs. */
struct reader {
	struct options *o;
	const char *path;
	yaml_document_t *doc;
	struct err_msg *em;
	bool seen[OPTION_TABLE_MAX];
};

static const char *scalar_text(const yaml_node_t *n)
{
	return (const char *)n->data.scalar.value;
}

/* Libyaml puts a NUL behind a scalar, but one inside would hide its rest. */
static bool is_plain_scalar(const yaml_node_t *n)
{
	return n != NULL && n->type == YAML_SCALAR_NODE &&
	       strlen((const char *)n->data.scalar.value) == n->data.scalar.length;
}

/* null, as YAML writes it: the option is not given. Quoted words are words. */
static bool is_null(const yaml_node_t *n)
{
	static const char *const words[] = {"~", "null", "Null", "NULL"};

	if (n->type != YAML_SCALAR_NODE || n->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
		return false;
	for (size_t i = 0; i < COUNT_OF(words); i++)
		if (strcmp(scalar_text(n), words[i]) == 0)
			return true;
	return false;
}

static enum err apply_sequence(struct reader *r, const struct option_match *match, const yaml_node_t *value,
			       const char *where)
{
	bool append = false;

	if (match->desc->type != OPTION_LIST)
		return err_set(r->em, ERR_INVALID, "%s is a list: it must be a single value", where);
	for (yaml_node_item_t *i = value->data.sequence.items.start; i < value->data.sequence.items.top;
	     i++) {
		const yaml_node_t *item = yaml_document_get_node(r->doc, *i);
		if (!is_plain_scalar(item))
			return err_set(r->em, ERR_INVALID, "%s: every item must be a single value", where);
		enum err e = option_apply(r->o, match, scalar_text(item), append, where, r->em);
		if (e != ERR_OK)
			return e;
		append = true;
	}
	if (!append) /* an empty sequence empties the list */
		return option_apply(r->o, match, "", false, where, r->em);
	return ERR_OK;
}

static enum err apply_pair(struct reader *r, const yaml_node_t *key, const yaml_node_t *value)
{
	struct option_match match;
	char where[512];

	if (!is_plain_scalar(key))
		return err_set(r->em, ERR_INVALID, "%s:%zu: a key must be the name of an option", r->path,
			       key != NULL ? key->start_mark.line + 1 : 0);
	const char *name = scalar_text(key);
	size_t bytes = strlen(name);
	snprintf(where, sizeof(where), "%.400s:%zu: %.64s", r->path, key->start_mark.line + 1, name);
	if (!option_find(name, bytes, &match)) {
		char suggestion[OPTION_NAME_BYTES_MAX + 32];
		option_suggest_text(suggestion, sizeof(suggestion), name, bytes, "");
		return err_set(r->em, ERR_NOT_FOUND, "%s: there is no such option%s", where, suggestion);
	}
	size_t row = (size_t)(match.desc - option_table);
	if (r->seen[row])
		return err_set(r->em, ERR_INVALID, "%s: given twice", where);
	r->seen[row] = true;
	if (value != NULL && value->type == YAML_SEQUENCE_NODE)
		return apply_sequence(r, &match, value, where);
	if (!is_plain_scalar(value))
		return err_set(r->em, ERR_INVALID, "%s: the value must be a single value%s", where,
			       match.desc->type == OPTION_LIST ? " or a list" : "");
	/* A key that turned out to be null must not open what it was to close: it is as an empty one. */
	if (is_null(value) && strcmp(match.desc->name, "api_key") != 0)
		return ERR_OK;
	return option_apply(r->o, &match, is_null(value) ? "" : scalar_text(value), false, where, r->em);
}

static enum err apply_document(struct reader *r)
{
	const yaml_node_t *root = yaml_document_get_root_node(r->doc);

	if (root == NULL)
		return ERR_OK; /* an empty file changes nothing */
	if (root->type != YAML_MAPPING_NODE)
		return err_set(r->em, ERR_FORMAT, "%s: it must consist of lines \"option: value\"", r->path);
	for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
		enum err e = apply_pair(r, yaml_document_get_node(r->doc, p->key),
					yaml_document_get_node(r->doc, p->value));
		if (e != ERR_OK)
			return e;
	}
	return ERR_OK;
}

enum err options_read_yaml(struct options *o, const char *path, struct err_msg *em)
{
	yaml_parser_t parser;
	yaml_document_t doc;
	enum err e;
	FILE *file = fopen(path, "re");

	if (file == NULL)
		return err_set(em, ERR_IO, "%s: %s", path, strerror(errno));
	if (!yaml_parser_initialize(&parser)) {
		e = err_set(em, ERR_NO_MEMORY, "%s: out of memory", path);
		goto close_file;
	}
	yaml_parser_set_input_file(&parser, file);
	if (!yaml_parser_load(&parser, &doc)) {
		e = err_set(em, parser.error == YAML_MEMORY_ERROR ? ERR_NO_MEMORY : ERR_FORMAT,
			    "%s:%zu: invalid YAML: %s", path, parser.problem_mark.line + 1,
			    parser.problem != NULL ? parser.problem : "it cannot be read");
		goto delete_parser;
	}
	struct reader r = {.o = o, .path = path, .doc = &doc, .em = em};
	e = apply_document(&r);
	yaml_document_delete(&doc);
delete_parser:
	yaml_parser_delete(&parser);
close_file:
	fclose(file);
	return e;
}
