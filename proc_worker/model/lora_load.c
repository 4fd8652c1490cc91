/* Loads adapters: finds the two matrices of every module that the architecture's table knows, checks their shapes, takes the
 * rank's slice of each, and puts those of a fused product side by side. Runs in the worker at start. Trusts no shape. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/assert.h"
#include "proc_worker/model/finite.h"
#include "proc_worker/model/lora.h"
#include "proc_worker/model/lora_priv.h"
#include "proc_worker/model/tensor_names.h"
#include "proc_worker/model/weights_priv.h"

enum { NAME_BYTES = 256 };
static const char FILE_NAME[] = "adapter_model.safetensors", OLDER_NAME[] = "adapter_model.bin", PREFIX[] = "base_model.model.";

/* One adapter in the making. The first pass checks and counts, with `memory` NULL; the second fills. */
struct loading {
	const struct weights_plan *plan;
	const struct lora_config *config;
	const struct safetensors *file;
	const char *file_name;
	struct weights_reader reader;
	struct lora_adapter *adapter;
	bool *seen; /* [tensors of the file] */
	u32 rank_max, rank_sum_max;
	char *memory;
	size_t used;
};

static void *take(struct loading *l, size_t bytes)
{
	void *p = l->memory ? l->memory + l->used : NULL;

	l->used += bytes;
	return p;
}

/* ---------------------------------------------------------------- the matrices of a module */

struct pair {
	char module[NAME_BYTES];
	const struct st_tensor *a, *b; /* both NULL: the adapter leaves the module as it is */
	u32 rank;
	double scale;
};

static const struct st_tensor *find(const struct loading *l, const char *module, const char *which)
{
	char name[NAME_BYTES + 64];

	snprintf(name, sizeof(name), "%s%s.%s.weight", PREFIX, module, which);
	const struct st_tensor *t = safetensors_find(l->file, name);
	if (t)
		l->seen[t - safetensors_at(l->file, 0)] = true;
	return t;
}

static enum err check_shape(const struct st_tensor *t, u32 rows, u32 columns, const char *why, struct err_msg *em)
{
	u64 wanted[2] = {rows, columns};
	char expected[64], found[128];

	if (t->dims != 2 || memcmp(t->shape, wanted, sizeof(wanted)) != 0) {
		safetensors_print_shape(expected, sizeof(expected), wanted, 2);
		safetensors_print_shape(found, sizeof(found), t->shape, t->dims);
		return err_set(em, ERR_FORMAT, "%s has the shape %s; by %s it must be %s", t->name, found, why, expected);
	}
	if (!t->usable)
		return err_set(em, ERR_UNSUPPORTED, "%s is of type %s; supported: F32, F16, BF16", t->name, t->dtype_name);
	return ERR_OK;
}

static enum err check_pair(const struct loading *l, const struct pair *p, u32 rows, u32 columns, struct err_msg *em)
{
	if (!p->a || !p->b)
		return err_set(em, ERR_FORMAT, "%s: lora_%c of %s is missing", l->file_name, p->a ? 'B' : 'A', p->module);
	if (p->rank > l->rank_max)
		return err_set(em, ERR_INVALID, "%s has rank %u; --max-lora-rank is %u, and must be at least that", p->module,
			       p->rank, l->rank_max);
	enum err e = check_shape(p->a, p->rank, columns, "adapter_config.json (rank) and the model (inputs)", em);
	if (!e)
		e = check_shape(p->b, rows, p->rank, "the model (outputs) and adapter_config.json (rank)", em);
	if (!e && !l->memory) /* once is enough */
		e = finite_check(p->a, l->plan->dtype, l->plan->threads, em);
	if (!e && !l->memory)
		e = finite_check(p->b, l->plan->dtype, l->plan->threads, em);
	return e;
}

/* What the file has of the module against what the configuration says of it. */
static enum err check_use(const struct loading *l, const struct pair *p, u32 layer, struct err_msg *em)
{
	const struct st_tensor *t = p->a ? p->a : p->b;
	enum lora_use use;
	const char *by;

	enum err e = lora_config_use(l->config, p->module, layer, &use, &by, em);
	if (!e && !t && use == LORA_USE_YES)
		return err_set(em, ERR_FORMAT, "%s has no matrices of %s, which target_modules names", l->file_name, p->module);
	if (!e && t && use == LORA_USE_NO)
		return err_set(em, ERR_FORMAT,
			       "%s has tensor %s, but by \"%s\" of adapter_config.json %s stays as the model has it; one of the two has to "
			       "go",
			       l->file_name, t->name, by, p->module);
	return e;
}

static enum err find_pair(const struct loading *l, const struct arch_tensor *t, u32 layer, struct pair *p, struct err_msg *em)
{
	bool is_module = lora_module_name(p->module, sizeof(p->module), l->config, t, layer);

	ASSERT(is_module);
	p->a = find(l, p->module, "lora_A");
	p->b = find(l, p->module, "lora_B");
	enum err e = check_use(l, p, layer, em);
	if (e || (!p->a && !p->b))
		return e;
	e = lora_config_module(l->config, p->module, &p->rank, &p->scale, em);
	if (!e)
		e = check_pair(l, p, weights_rows_of_file(l->plan, t, layer), weights_dim(l->plan->config, t->columns, layer), em);
	return e;
}

/* ---------------------------------------------------------------- a product */

/* Rows of A from `first` on: this rank's inputs of them. */
static enum err read_a(struct loading *l, const struct arch_tensor *t, u32 layer, const struct pair *p, void *a, u32 first,
		       struct err_msg *em)
{
	struct weights_range inputs = weights_columns(l->plan, t, layer);
	const char *src = weights_aligned_rows(&l->reader, p->a, 0, p->rank);

	if (!src)
		return err_set(em, ERR_NO_MEMORY, "out of memory for %s", p->a->name);
	kern_lora_set_a(a, l->plan->dtype, first, p->rank, inputs.count, src + inputs.first * kern_dtype_bytes(p->a->dtype),
			p->a->dtype, p->a->shape[1]);
	return ERR_OK;
}

/* The model's file has a head's rows in another order than adapters have them: in place of halves that rotate with each other, of neighbours
 * ("rope_interleave", which converters to GGUF reorder q and k for). */
static bool is_reordered(const struct model_config *c, const struct arch_tensor *t)
{
	return c->interleaved && !c->arch->interleaved && !c->arch->latent && (strstr(t->name, ".q_proj.") || strstr(t->name, ".k_proj."));
}

/* Rows of whole heads as the model has them; the caller frees them. NULL: out of memory. */
static void *reorder_rows(const char *rows, u32 count, size_t row_bytes, u32 head)
{
	char *out = malloc(count * row_bytes);

	for (u32 i = 0; out && i < count; i++) {
		u32 first = i / head * head, within = i % head;
		memcpy(out + i * row_bytes, rows + (first + within % 2 * (head / 2) + within / 2) * row_bytes, row_bytes);
	}
	return out;
}

/* This rank's outputs of B. */
static enum err read_b(struct loading *l, const struct arch_tensor *t, u32 layer, const struct pair *p, void *b, struct err_msg *em)
{
	struct weights_range outputs = weights_rows(l->plan, t, layer);
	const void *src = weights_part_rows(&l->reader, t, p->b, layer, outputs);
	void *reordered = NULL;

	if (src && is_reordered(l->plan->config, t))
		src = reordered = reorder_rows(src, outputs.count, p->rank * kern_dtype_bytes(p->b->dtype), l->plan->config->head_dim);
	if (!src)
		return err_set(em, ERR_NO_MEMORY, "out of memory for %s", p->b->name);
	kern_lora_set_b(b, l->plan->dtype, outputs.count, p->rank, src, p->b->dtype, p->rank);
	free(reordered);
	return ERR_OK;
}

/* The parts of one product: tensors of the table and their pairs, in the order in which they lie in the product. Tensors that
 * are one in the file share its A. */
struct product {
	const struct arch_tensor *tensors[KERN_LORA_PARTS_MAX];
	struct pair pairs[KERN_LORA_PARTS_MAX];
	struct kern_lora *out;
};

static bool shares_a(const struct product *p, u32 part)
{
	return part > 0 && p->tensors[part]->name == p->tensors[part - 1]->name;
}

static enum err fill(struct loading *l, struct product *p, u32 layer, struct err_msg *em)
{
	struct kern_lora *out = p->out;
	enum kern_dtype dtype = l->plan->dtype;
	char *a = take(l, kern_lora_a_bytes(out->rank, out->k, dtype));
	enum err e = ERR_OK;

	out->a = a;
	for (u32 i = 0; !e && i < out->part_count; i++) {
		struct kern_lora_part *part = &out->parts[i];
		char *b = take(l, kern_lora_b_bytes(part->n, part->rank, dtype));
		part->b = b;
		if (!l->memory)
			continue;
		if (!shares_a(p, i))
			e = read_a(l, p->tensors[i], layer, &p->pairs[i], a, part->rank_first, em);
		if (!e)
			e = read_b(l, p->tensors[i], layer, &p->pairs[i], b, em);
	}
	return e;
}

static enum err load_product(struct loading *l, u32 layer, enum lora_product product, struct err_msg *em)
{
	const struct arch *arch = l->plan->config->arch;
	struct kern_lora *out = &l->adapter->products[layer * LORA_PRODUCTS + product];
	struct product p = {.out = out};
	u32 first = 0;
	enum err e = ERR_OK;

	*out = (struct kern_lora){.dtype = l->plan->dtype};
	for (u32 i = 0; i < arch->tensor_count; i++) {
		const struct arch_tensor *t = &arch->tensors[i];
		if (t->slot != LORA_PRODUCT_SLOTS[product].slot || !weights_tensor_applies(l->plan, t, layer))
			continue;
		struct pair *pair = &p.pairs[out->part_count];
		u32 n = weights_rows(l->plan, t, layer).count;
		e = find_pair(l, t, layer, pair, em);
		if (e)
			return e;
		if (pair->a) {
			p.tensors[out->part_count] = t;
			out->k = weights_columns(l->plan, t, layer).count;
			bool shared = shares_a(&p, out->part_count);
			out->parts[out->part_count++] = (struct kern_lora_part){.scale = (float)pair->scale,
									       .first = first,
									       .n = n,
									       .rank_first = out->rank - (shared ? pair->rank : 0),
									       .rank = pair->rank};
			out->rank += shared ? 0 : pair->rank;
		}
		first += n;
	}
	if (out->rank > l->rank_sum_max)
		l->rank_sum_max = out->rank;
	return out->part_count ? fill(l, &p, layer, em) : ERR_OK;
}

/* ---------------------------------------------------------------- an adapter */

static enum err load_layers(struct loading *l, struct err_msg *em)
{
	const struct model_config *c = l->plan->config;
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < c->layers; i++)
		for (u32 p = 0; !e && p < LORA_PRODUCTS; p++)
			if (!LORA_PRODUCT_SLOTS[p].dense || !(c->layer_flags[i] & LAYER_EXPERTS))
				e = load_product(l, i, (enum lora_product)p, em);
	return e;
}

/* What of the file no layer has asked for. */
static enum err check_all_seen(const struct loading *l, struct err_msg *em)
{
	u32 count = safetensors_count(l->file);

	for (u32 i = 0; i < count; i++)
		if (!l->seen[i])
			return err_set(em, ERR_UNSUPPORTED,
				       "%s: tensor %s cannot be used: adapters change the projections q, k, v, o, gate, up and down of "
				       "the model's %u layers, and of mixtures of experts those of attention alone, by pairs lora_A and "
				       "lora_B",
				       l->file_name, safetensors_at(l->file, i)->name, l->plan->config->layers);
	return count ? ERR_OK : err_set(em, ERR_FORMAT, "%s is empty", l->file_name);
}

static enum err allocate(struct loading *l, struct err_msg *em)
{
	struct lora_adapter *a = l->adapter;

	a->memory_bytes = l->used;
	void *memory = mmap(NULL, a->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return err_set(em, ERR_NO_MEMORY, "cannot allocate %zu bytes", a->memory_bytes);
	madvise(memory, a->memory_bytes, MADV_HUGEPAGE);
	a->memory = l->memory = memory;
	l->used = 0;
	return ERR_OK;
}

static enum err load_file(struct loading *l, struct err_msg *em)
{
	u32 layers = l->plan->config->layers;

	l->reader.plan = l->plan;
	l->seen = calloc(safetensors_count(l->file) + 1, sizeof(*l->seen));
	l->adapter->products = calloc((size_t)layers * LORA_PRODUCTS, sizeof(*l->adapter->products));
	if (!l->seen || !l->adapter->products)
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	enum err e = load_layers(l, em);
	if (!e)
		e = check_all_seen(l, em);
	if (!e)
		e = allocate(l, em);
	return e ? e : load_layers(l, em);
}

/* The matrices of the adapter in `dir`: of a file of safetensors, or where there is none one of torch.save. */
static enum err open_matrices(struct loading *l, struct safetensors **out, const char *dir, struct err_msg *em)
{
	struct err_msg older;

	l->file_name = FILE_NAME;
	enum err e = safetensors_open_file(out, dir, FILE_NAME, em);
	if (e != ERR_NOT_FOUND)
		return e;
	enum err of_older = safetensors_open_file(out, dir, OLDER_NAME, &older);
	if (of_older == ERR_NOT_FOUND)
		return err_set(em, e, "%s holds neither %s nor %s", dir, FILE_NAME, OLDER_NAME);
	l->file_name = OLDER_NAME;
	return of_older ? err_set(em, of_older, "%s", older.text) : ERR_OK;
}

static enum err load_adapter(struct lora_set *s, u32 index, const struct lora_module *m, u32 rank_max,
			     const struct weights_plan *plan, struct err_msg *em)
{
	struct lora_config config;
	struct safetensors *file = NULL;
	struct loading l = {.plan = plan, .config = &config, .adapter = &s->adapters[index], .rank_max = rank_max};

	enum err e = lora_config_read(&config, m->path, em);
	if (!e)
		e = lora_check_model(plan, em);
	if (!e)
		e = open_matrices(&l, &file, m->path, em);
	l.file = file;
	config.whole = e ? NULL : tensor_names_of_whole(file, PREFIX);
	if (!e)
		e = lora_check_config(&config, plan, em);
	if (!e)
		e = load_file(&l, em);
	if (e)
		err_prefix(em, "adapter \"%s\" (%s)", m->name, m->path);
	s->bytes += l.adapter->memory_bytes;
	s->rank_sum_max = l.rank_sum_max > s->rank_sum_max ? l.rank_sum_max : s->rank_sum_max;
	weights_reader_fini(&l.reader);
	free(l.seen);
	safetensors_close(&file);
	lora_config_fini(&config);
	return e;
}

enum err lora_set_load(struct lora_set *s, const struct lora_modules *modules, const struct weights_plan *plan,
		       struct err_msg *em)
{
	enum err e = ERR_OK;

	*s = (struct lora_set){.count = modules->count};
	if (s->count == 0)
		return ERR_OK;
	s->adapters = calloc(s->count, sizeof(*s->adapters));
	if (!s->adapters) {
		s->count = 0;
		return err_set(em, ERR_NO_MEMORY, "out of memory");
	}
	for (u32 i = 0; !e && i < s->count; i++)
		e = load_adapter(s, i, &modules->items[i], modules->rank_max, plan, em);
	if (e)
		lora_set_fini(s);
	return e;
}

void lora_set_fini(struct lora_set *s)
{
	for (u32 i = 0; i < s->count; i++) {
		if (s->adapters[i].memory)
			munmap(s->adapters[i].memory, s->adapters[i].memory_bytes);
		free(s->adapters[i].products);
	}
	free(s->adapters);
	*s = (struct lora_set){0};
}
