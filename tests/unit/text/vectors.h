/* Reading of test vectors (JSON lines) beside the source tree; absent data skips the test. */
#ifndef TERCET_TESTS_VECTORS_H
#define TERCET_TESTS_VECTORS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/json.h"

#ifndef SOURCE_ROOT
#define SOURCE_ROOT "." /* the build says better */
#endif

/* SOURCE_ROOT/../shared/data/NAME, or below SOURCE_ROOT where NAME begins with "tests/"; false when it is not there. */
static inline bool vectors_path(char *path, size_t room, const char *name)
{
	const char *below = strncmp(name, "tests/", 6) == 0 ? "" : "../shared/data/";
	snprintf(path, room, "%s/%s%s", SOURCE_ROOT, below, name);
	return access(path, R_OK) == 0;
}

/* One parsed line after the other. */
struct vectors {
	FILE *file;
	char *line;
	size_t room;
	struct json_doc *doc;
	unsigned number;
};

static inline bool vectors_open(struct vectors *v, const char *name)
{
	char path[4096];
	*v = (struct vectors){0};
	if (vectors_path(path, sizeof(path), name))
		v->file = fopen(path, "rb");
	return v->file != NULL;
}

static inline bool vectors_next(struct vectors *v, json_val *root)
{
	struct err_msg em;
	ssize_t n = getline(&v->line, &v->room, v->file);
	json_free(&v->doc);
	if (n <= 0)
		return false;
	v->number++;
	if (json_parse(&v->doc, v->line, (size_t)n, &em) != ERR_OK)
		return false;
	*root = json_root(v->doc);
	return true;
}

static inline void vectors_close(struct vectors *v)
{
	json_free(&v->doc);
	free(v->line);
	if (v->file != NULL)
		fclose(v->file);
}

#endif
