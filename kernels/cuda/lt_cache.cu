/* The table of cuBLASLt algorithms and its file: a line that names the device, then a line a shape. The file
 * is a cache: whatever is wrong with it, it is measured again. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/cuda/lt.cuh"

static const char HEADER[] = "tercet-cublaslt 2 ";

static bool same_shape(const struct lt_shape *a, const struct lt_shape *b)
{
	return a->n == b->n && a->k == b->k && a->m == b->m && a->out_f32 == b->out_f32 && a->align == b->align;
}

struct lt_entry *lt_find(struct kern_cuda *c, const struct lt_shape *shape)
{
	for (u32 i = 0; i < c->count; i++)
		if (same_shape(&c->entries[i].shape, shape))
			return &c->entries[i];
	return NULL;
}

void lt_put(struct kern_cuda *c, const struct lt_entry *entry)
{
	struct lt_entry *e = lt_find(c, &entry->shape);
	if (!e)
		e = &c->entries[c->count < LT_ENTRIES_MAX ? c->count++ : c->count - 1];
	*e = *entry;
}

static bool read_line(const char *line, struct lt_entry *e)
{
	int at = 0;
	if (sscanf(line, "%u %u %u %u %u %n", &e->shape.n, &e->shape.k, &e->shape.m, &e->shape.out_f32,
		   &e->shape.align, &at) != 5 ||
	    at == 0)
		return false;
	for (u32 i = 0; i < COUNT_OF(e->algo.data); i++) {
		unsigned long long word;
		int length = 0;
		if (sscanf(line + at, "%16llx %n", &word, &length) != 1)
			return false;
		e->algo.data[i] = word;
		at += length;
	}
	e->timed = true;
	return line[at] == '\0' && line[at - 1] == '\n'; /* the whole line */
}

void lt_cache_read(struct kern_cuda *c)
{
	char first[sizeof(HEADER) + sizeof(c->device)], line[256]; /* a word has 16 digits at most, and there are 8 */
	FILE *f = c->cache_path ? fopen(c->cache_path, "r") : NULL;
	if (!f)
		return;
	const size_t header = sizeof(HEADER) - 1;
	bool ours = fgets(first, sizeof(first), f) && strncmp(first, HEADER, header) == 0;
	if (ours) {
		first[strcspn(first, "\n")] = '\0';
		ours = strcmp(first + header, c->device) == 0;
	}
	while (ours && fgets(line, sizeof(line), f)) {
		struct lt_entry e;
		if (read_line(line, &e))
			lt_put(c, &e);
	}
	fclose(f);
}

enum err lt_cache_write(const struct kern_cuda *c)
{
	char path[4096];
	if (!c->cache_path)
		return ERR_OK;
	if (snprintf(path, sizeof(path), "%s.%ld", c->cache_path, (long)getpid()) >= (int)sizeof(path))
		return ERR_IO;
	FILE *f = fopen(path, "w");
	if (!f)
		return ERR_IO;
	fprintf(f, "%s%s\n", HEADER, c->device);
	for (u32 i = 0; i < c->count; i++) {
		const struct lt_entry *e = &c->entries[i];
		if (!e->timed)
			continue;
		fprintf(f, "%u %u %u %u %u", e->shape.n, e->shape.k, e->shape.m, e->shape.out_f32, e->shape.align);
		for (u32 j = 0; j < COUNT_OF(e->algo.data); j++)
			fprintf(f, " %llx", (unsigned long long)e->algo.data[j]);
		fputc('\n', f);
	}
	const bool bad = ferror(f) != 0;
	if (fclose(f) != 0 || bad || rename(path, c->cache_path) != 0) {
		(void)unlink(path);
		return ERR_IO;
	}
	return ERR_OK;
}
