/* Owns the tensors of GGUF files under the names that checkpoints have. Runs in the worker while it loads. Copies no matrix: what it
 * makes are names for places in the mapped files. */
#include "proc_worker/model/gguf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "proc_worker/model/gguf_architectures_priv.h"

enum {
	NAME_BYTES = 256,
	EXPERTS_MAX = 1 << 16,
	TENSORS_MAX = 1024 * 1024,
};

/* ---------------------------------------------------------------- one tensor */

/* A name in pieces: "blk.7.attn_q.weight". */
struct parts {
	bool of_layer;
	u32 layer;
	char stem[NAME_BYTES]; /* "attn_q", or "ffn_up.{}" of "ffn_up.3", whose expert is 3 */
	u32 expert;
	const char *end; /* ".weight", ".bias" or "" */
};

/* A number at the end of a stem. */
static void take_expert(struct parts *p)
{
	char *dot = strrchr(p->stem, '.');
	int behind = 0;

	if (dot && dot[1] >= '0' && dot[1] <= '9' && sscanf(dot, ".%9u%n", &p->expert, &behind) == 1 && !dot[behind])
		snprintf(dot, (size_t)(p->stem + sizeof(p->stem) - dot), ".{}");
}

static void take_apart(struct parts *p, const char *name)
{
	static const char *const ends[] = {".weight", ".bias"};
	int behind = 0;

	p->of_layer = sscanf(name, "blk.%9u.%n", &p->layer, &behind) == 1 && behind > 0;
	snprintf(p->stem, sizeof(p->stem), "%s", name + (p->of_layer ? behind : 0));
	p->end = "";
	for (size_t i = 0; i < COUNT_OF(ends); i++) {
		size_t bytes = strlen(p->stem), end = strlen(ends[i]);
		if (bytes > end && strcmp(p->stem + bytes - end, ends[i]) == 0) {
			p->stem[bytes - end] = 0;
			p->end = ends[i];
			break;
		}
	}
	take_expert(p);
}

static const struct name *find_in(const struct name *table, const char *stem)
{
	for (; table && table->file; table++)
		if (!strcmp(table->file, stem))
			return table;
	return NULL;
}

/* NULL: in no table. */
static const struct name *find_name(size_t architecture, const struct parts *p)
{
	const struct name *found = NULL;
	char whole[NAME_BYTES + 8];

	if (!p->of_layer) {
		found = find_in(ARCHITECTURES[architecture].whole, p->stem);
		return found ? found : find_in(WHOLE, p->stem);
	}
	snprintf(whole, sizeof(whole), "%s%s", p->stem, p->end);
	for (size_t i = 0; i < TABLES_MAX && !found; i++) {
		found = find_in(ARCHITECTURES[architecture].tables[i], whole);
		found = found ? found : find_in(ARCHITECTURES[architecture].tables[i], p->stem);
	}
	return found ? found : find_in(USUAL, p->stem);
}

static void fill(struct st_tensor *t, const struct gguf_tensor *from)
{
	*t = (struct st_tensor){.file = from->file,
				.dtype_name = gguf_type_name(from->type),
				.block_type = from->type,
				.dims = from->dims,
				.data = from->data,
				.bytes = from->bytes,
				.usable = from->type == GGUF_F32 || from->type == GGUF_F16 || from->type == GGUF_BF16,
				/* what blocks become where nothing else is asked for */
				.dtype = from->type == GGUF_F32 ? KERN_F32 : from->type == GGUF_F16 ? KERN_F16 : KERN_BF16};
	memcpy(t->shape, from->shape, from->dims * sizeof(*t->shape));
}

/* ---------------------------------------------------------------- all of them */

struct list {
	struct st_tensor *tensors;
	u32 count, capacity;
	struct arena *arena;
};

static enum err add(struct list *l, const struct st_tensor *t, const char *name, struct err_msg *em)
{
	if (l->count == TENSORS_MAX)
		return err_set(em, ERR_TOO_LONG, "%s: more than %d tensors, experts counted one by one", t->file, TENSORS_MAX);
	if (l->count == l->capacity) {
		u32 capacity = l->capacity ? 2 * l->capacity : 256;
		struct st_tensor *grown = realloc(l->tensors, capacity * sizeof(*grown));
		if (!grown)
			return err_set(em, ERR_NO_MEMORY, "out of memory");
		l->tensors = grown;
		l->capacity = capacity;
	}
	struct st_tensor *added = &l->tensors[l->count];
	*added = *t;
	added->name = arena_strdup(l->arena, name);
	added->dtype_name = arena_strdup(l->arena, t->dtype_name); /* of types that are not known it is a buffer's */
	if (!added->name || !added->dtype_name)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	l->count++;
	return ERR_OK;
}

/* Of a matrix in NVFP4, whose blocks have no scale for all, the tensor with that: a number, or one for each expert. `*out` is left as it is where
 * there is none. A matrix of another type has one where it was in NVFP4 before: then it would have to be multiplied, too. Architectures that have
 * tensors of that name in their tables have them for other purposes: these multiply as well. */
static enum err find_times(const void **out, const struct gguf *g, const struct gguf_tensor *from, bool experts, bool turns,
			   struct err_msg *em)
{
	const size_t bytes = strlen(from->name), end = strlen(".weight");
	const u64 count = experts ? from->shape[0] : 1;
	char name[NAME_BYTES];

	if (bytes <= end || strcmp(from->name + bytes - end, ".weight") != 0)
		return ERR_OK;
	snprintf(name, sizeof(name), "%.*s.scale", (int)(bytes - end), from->name);
	const struct gguf_tensor *t = gguf_tensor_find(g, name);
	if (t && from->type != GGUF_NVFP4)
		return err_set(em, ERR_UNSUPPORTED, "%s: tensor %s: scales of a matrix are read of NVFP4 alone, and %s is %s", t->file, name, from->name,
			       gguf_type_name(from->type));
	if (t && (t->type != GGUF_F32 || t->bytes != count * sizeof(float)))
		return err_set(em, ERR_FORMAT, "%s: tensor %s is %s of %llu bytes; it must be %llu numbers of F32, the scales of %s", t->file, name,
			       gguf_type_name(t->type), (unsigned long long)t->bytes, (unsigned long long)count, from->name);
	if (t && turns)
		return err_set(em, ERR_UNSUPPORTED, "%s: tensor %s: scales of a matrix whose rows take turns with another's are not read", t->file, name);
	*out = t ? t->data : *out;
	return ERR_OK;
}

/* What stands in front of a stem, here or in the file: the layer, or nothing. */
static const char *in_front(char *out, size_t bytes, const struct parts *p, const char *layer)
{
	out[0] = 0;
	if (p->of_layer)
		snprintf(out, bytes, "%s.%u.", layer, p->layer);
	return out;
}

static enum err add_expert(struct list *l, const struct parts *p, const struct name *n, const struct st_tensor *one, u64 index,
			   struct err_msg *em)
{
	static const char *const sides[] = {"gate_proj", "up_proj"};
	const char *hole = strstr(n->here, "{}");
	const u32 count = n->halves ? COUNT_OF(sides) : 1;
	struct st_tensor part = *one;
	char name[NAME_BYTES], front[32];
	enum err e = ERR_OK;

	if (n->halves && one->shape[0] % count)
		return err_set(em, ERR_FORMAT, "%s: tensor %s%s%s has %llu rows for gate and up of an expert; they must be as many", one->file,
			       in_front(front, sizeof(front), p, "blk"), p->stem, p->end, (unsigned long long)one->shape[0]);
	part.bytes /= count;
	part.shape[0] /= count;
	for (u32 i = 0; !e && i < count; i++) {
		part.data = one->data ? (const char *)one->data + i * part.bytes : NULL;
		snprintf(name, sizeof(name), "%s%.*s%llu%s%s%s", in_front(front, sizeof(front), p, "model.layers"), (int)(hole - n->here), n->here,
			 (unsigned long long)index, hole + 2, n->halves ? sides[i] : "", p->end);
		e = add(l, &part, name, em);
	}
	return e;
}

/* [experts][rows][columns], or vectors. */
static enum err add_experts(struct list *l, const struct parts *p, const struct name *n, const struct st_tensor *all, struct err_msg *em)
{
	struct st_tensor one = *all;
	char front[32];
	enum err e = ERR_OK;
	u64 experts = all->shape[0];

	if (all->dims < 2 || experts > EXPERTS_MAX)
		return err_set(em, ERR_FORMAT, "%s: tensor %s%s%s must have a dimension of %s, at most %d, and one or two more", all->file,
			       in_front(front, sizeof(front), p, "blk"), p->stem, p->end, p->of_layer ? "experts" : "streams", EXPERTS_MAX);
	one.dims--;
	memmove(one.shape, one.shape + 1, one.dims * sizeof(*one.shape));
	const u64 bytes = all->bytes / experts;
	one.bytes = all->turns ? 2 * bytes : bytes;
	one.shape[0] *= all->turns ? 2 : 1;
	for (u64 x = 0; !e && x < experts; x++) {
		one.data = all->data ? (const char *)all->data + x * bytes : NULL;
		one.times = all->times ? (const char *)all->times + x * sizeof(float) : NULL;
		one.turns = all->turns ? (const char *)all->turns + x * bytes : NULL;
		e = add_expert(l, p, n, &one, x, em);
	}
	return e;
}

/* Of more than two dimensions those that say something. */
static void drop_ones(struct st_tensor *t)
{
	u32 kept = 0;

	for (u32 i = 0; i < t->dims; i++)
		if (t->shape[i] != 1 || t->dims - i + kept <= 2)
			t->shape[kept++] = t->shape[i];
	t->dims = kept;
}

/* The same elements in the dimensions that they have here. A file has no more elements than can be counted. */
static void reshape(struct st_tensor *t, const struct name *n)
{
	if (n->flat && t->dims == 1) {
		t->dims = 2;
		t->shape[1] = t->shape[0];
		t->shape[0] = 1;
	}
	if (n->channels)
		drop_ones(t);
	if (n->channels && t->dims == 2) {
		t->dims = 3;
		t->shape[2] = t->shape[1];
		t->shape[1] = 1;
	}
	if (n->heads && t->dims == 3) {
		t->dims = 2;
		t->shape[0] *= t->shape[1];
		t->shape[1] = t->shape[2];
	}
	while (n->vector && t->dims > 1)
		t->shape[0] *= t->shape[--t->dims];
}

/* Biases of all experts [experts][values], two of them, whose values take turns. */
static enum err add_turns(struct list *l, struct st_tensor *t, const void *up, const char *name, struct err_msg *em)
{
	const u64 count = t->bytes / sizeof(float);
	float *both = arena_alloc(l->arena, 2 * count * sizeof(float));

	if (!both)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	for (u64 i = 0; i < count; i++) {
		memcpy(&both[2 * i], (const char *)t->data + i * sizeof(float), sizeof(float));
		memcpy(&both[2 * i + 1], (const char *)up + i * sizeof(float), sizeof(float));
	}
	t->data = both;
	t->bytes *= 2;
	t->shape[1] *= 2;
	return add(l, t, name, em);
}

/* Of a tensor of gate that of up, which must be like it. */
static enum err find_up(const struct gguf_tensor **out, const struct gguf *g, const struct parts *p, const struct gguf_tensor *gate,
			struct err_msg *em)
{
	const bool bias = strcmp(p->end, ".bias") == 0;
	char name[64];

	snprintf(name, sizeof(name), "blk.%u.ffn_up_exps%s", p->layer, p->end);
	const struct gguf_tensor *up = *out = gguf_tensor_find(g, name);
	if (!up || up->type != gate->type || up->dims != gate->dims || memcmp(up->shape, gate->shape, up->dims * sizeof(*up->shape)) != 0)
		return err_set(em, ERR_FORMAT, "%s: tensor %s must be there, of the type and shape that %s has", gate->file, name, gate->name);
	if (bias && (gate->type != GGUF_F32 || gate->dims != 2))
		return err_set(em, ERR_UNSUPPORTED, "%s: tensor %s is %s of %u dimensions; it must be F32 of two", gate->file, gate->name,
			       gguf_type_name(gate->type), gate->dims);
	return ERR_OK;
}

/* Whether the table has something of its own for the tensor of a matrix's scales. */
static bool has_scale_row(size_t architecture, const struct parts *p)
{
	struct parts scale = *p;

	scale.end = "";
	snprintf(scale.stem, sizeof(scale.stem), "%.200s.scale", p->stem);
	return p->of_layer && find_name(architecture, &scale) != NULL;
}

static enum err add_tensor(struct list *l, size_t architecture, const struct gguf *g, const struct gguf_tensor *from, struct err_msg *em)
{
	const struct gguf_tensor *up = NULL;
	struct parts p = {0};
	struct st_tensor t;
	char name[2 * NAME_BYTES];

	take_apart(&p, from->name);
	const struct name *n = find_name(architecture, &p);
	if (n && !n->here)
		return ERR_OK;
	enum err e = n && n->turns ? find_up(&up, g, &p, from, em) : ERR_OK;
	if (e)
		return e;
	fill(&t, from);
	const char *hole = n ? strstr(n->here, "{}") : NULL;
	const bool all_experts = hole && !strstr(p.stem, "{}");
	if (!has_scale_row(architecture, &p))
		e = find_times(&t.times, g, from, all_experts, up != NULL, em);
	if (!e && up)
		e = find_times(&t.times, g, up, all_experts, true, em);
	if (e)
		return e;
	if (all_experts) {
		t.turns = up ? up->data : NULL;
		return add_experts(l, &p, n, &t, em);
	}
	if (hole) {
		snprintf(name, sizeof(name), "model.layers.%u.%.*s%u%s%s", p.layer, (int)(hole - n->here), n->here, p.expert, hole + 2, p.end);
		return add(l, &t, name, em);
	}
	if (n)
		reshape(&t, n);
	const char *end = n && n->bare ? "" : p.end, *here = n ? n->here : p.stem, *layers = ARCHITECTURES[architecture].layers;
	if (p.of_layer)
		snprintf(name, sizeof(name), "%s.%u.%s%s", layers ? layers : "model.layers", p.layer, here, end);
	else
		snprintf(name, sizeof(name), "%s%s", here, end);
	return up ? add_turns(l, &t, up->data, name, em) : add(l, &t, name, em);
}

/* What activations have learned, a number for each layer, which files of one family have among their values. */
static enum err add_numbers(struct list *l, const struct gguf *g, const char *file, struct err_msg *em)
{
	static const char *const keys[] = {"alpha_p", "alpha_n", "beta", "eps"};
	char name[NAME_BYTES];
	enum err e = ERR_OK;
	double value;
	u64 count;

	for (size_t k = 0; k < COUNT_OF(keys); k++) {
		snprintf(name, sizeof(name), "xielu.%s", keys[k]);
		if (!gguf_array(g, name, &count) || count > TENSORS_MAX)
			continue;
		for (u64 i = 0; !e && i < count; i++) {
			struct st_tensor t = {.file = file, .dtype_name = "F32", .dims = 1, .shape = {1}, .bytes = sizeof(float), .usable = true, .dtype = KERN_F32};
			float *number = arena_alloc(l->arena, sizeof(*number));
			snprintf(name, sizeof(name), "xielu.%s", keys[k]);
			if (!number)
				return err_set(em, ERR_NO_MEMORY, "out of memory");
			if (!gguf_array_float(g, name, i, &value))
				return err_set(em, ERR_FORMAT, "%s: %s must be an array of numbers", file, name);
			*number = (float)value;
			t.data = number;
			snprintf(name, sizeof(name), "model.layers.%llu.mlp.act_fn.%s", (unsigned long long)i, keys[k]);
			e = add(l, &t, name, em);
		}
	}
	return e;
}

static enum err find_architecture(size_t *out, const struct gguf *g, struct err_msg *em)
{
	char known[1024] = "";
	const char *name;
	size_t bytes, used = 0;

	if (!gguf_string(g, "general.architecture", &name, &bytes))
		return err_set(em, ERR_FORMAT, "model.gguf: there is no general.architecture in it");
	for (*out = 0; *out < COUNT_OF(ARCHITECTURES); ++*out)
		if (strlen(ARCHITECTURES[*out].name) == bytes && !memcmp(ARCHITECTURES[*out].name, name, bytes) &&
		    (!ARCHITECTURES[*out].with || gguf_tensor_find(g, ARCHITECTURES[*out].with)))
			return ERR_OK;
	for (size_t i = 0; i < COUNT_OF(ARCHITECTURES) && used < sizeof(known); i++)
		used += ARCHITECTURES[i].with ? 0 : (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", ARCHITECTURES[i].name);
	return err_set(em, ERR_UNSUPPORTED, "model.gguf: general.architecture is '%.*s'; supported: %s",
		       bytes < 64 && utf8_valid(name, bytes) ? (int)bytes : 0, name, known);
}

enum err gguf_names_read(struct st_tensor **out, u32 *count, const struct gguf *g, struct arena *arena, struct err_msg *em)
{
	struct list l = {.arena = arena};
	size_t architecture;

	enum err e = find_architecture(&architecture, g, em);
	for (u32 i = 0; !e && i < gguf_tensor_count(g); i++)
		e = add_tensor(&l, architecture, g, gguf_tensor_at(g, i), em);
	if (!e && gguf_tensor_count(g) > 0)
		e = add_numbers(&l, g, gguf_tensor_at(g, 0)->file, em);
	*out = l.tensors;
	*count = l.count;
	return e;
}
