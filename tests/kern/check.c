/* Harness of the kernel checks: owns the memory of the running case and counts cases. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/kern/check.h"

enum { GUARD_BYTES = 128, GUARD = 0xb7, POISON = 0xff };

struct check_target *check_add_target(struct check *c, u32 caps)
{
	struct check_target *t = &c->targets[c->target_count];
	if (c->target_count == CHECK_TARGETS_MAX) {
		fprintf(stderr, "checkkern: more than %d targets\n", CHECK_TARGETS_MAX);
		exit(1);
	}
	t->caps = caps;
	kern_ops_init(&t->ops, caps);
	c->target_count++;
	return t;
}

static void add_target(struct check *c, u32 caps)
{
	if (c->target_count == 0 || c->targets[c->target_count - 1].caps != caps)
		check_add_target(c, caps);
}

void check_init(struct check *c, u64 seed)
{
	const u32 steps[] = {KERN_CAP_PORTABLE, KERN_CAP_AVX2, KERN_CAP_AVX_VNNI, KERN_CAP_AVX512, KERN_CAP_AVX512_BF16, KERN_CAP_AVX512_VNNI, KERN_CAP_AMX};
	u32 caps, mask = 0;
	struct err_msg em;
	setenv("TERCET_KERN_CAPS", "all", 0); /* what is slow here, too */
	caps = kern_caps_detect();
#ifdef CHECK_SANITIZED /* sanitizers do not see what tiles read and write, but do where they are emulated */
	caps &= ~(u32)KERN_CAP_AMX;
#endif
	*c = (struct check){.seed = seed, .rng = seed * 2654435769u + 1};
	add_target(c, 0);
	for (u32 i = 0; i < COUNT_OF(steps); i++) {
		mask |= steps[i];
		add_target(c, caps & mask);
	}
	add_target(c, caps & ~(u32)KERN_CAP_AVX512_BF16); /* as on processors that are slow at it */
	for (u32 i = 0; i < CHECK_POOLS; i++)
		if (kern_threads_create(&c->pools[i], i + 1, &em) != ERR_OK) {
			fprintf(stderr, "checkkern: %s\n", em.text);
			exit(1);
		}
}

void check_fini(struct check *c)
{
	for (u32 i = 0; i < CHECK_POOLS; i++)
		kern_threads_destroy(&c->pools[i]);
	free(c->scratch);
}

static void *aligned(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (!p) {
		fprintf(stderr, "checkkern: no memory for %zu bytes\n", bytes);
		exit(1);
	}
	return p;
}

void check_poison(void *data, size_t bytes)
{
	memset(data, POISON, bytes);
}

static size_t whole(size_t bytes, size_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* Guard bytes, the data, guard bytes up to a multiple of 64, and a page that ends the program if it is as much as read. */
void *check_alloc(struct check *c, size_t bytes)
{
	struct check_buffer *b = &c->buffers[c->buffer_count++];
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = GUARD_BYTES + whole(bytes, 64), before = whole(used, page);
	if (c->buffer_count > CHECK_BUFFERS_MAX) {
		fprintf(stderr, "checkkern: more than %d buffers in a case\n", CHECK_BUFFERS_MAX);
		exit(1);
	}
	char *map = mmap(NULL, before + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED || mprotect(map + before, page, PROT_NONE) != 0) {
		fprintf(stderr, "checkkern: no memory for %zu bytes\n", bytes);
		exit(1);
	}
	b->map = map;
	b->map_bytes = before + page;
	b->bytes = bytes;
	b->base = (unsigned char *)map + before - used;
	memset(b->base, GUARD, used);
	check_poison(b->base + GUARD_BYTES, bytes);
	return b->base + GUARD_BYTES;
}

void check_ctx(struct check *c, struct kern_ctx *ctx, const struct kern_limits *limits, u32 pool)
{
	struct kern_limits l = *limits;
	l.threads = CHECK_POOLS;
	size_t bytes = kern_scratch_bytes(&l);
	if (bytes > c->scratch_bytes) {
		free(c->scratch);
		c->scratch = aligned(bytes);
		c->scratch_bytes = bytes;
	}
	/* The end of what was asked for is the end of the memory, so that ASan sees a byte too many. */
	ctx->scratch = (char *)c->scratch + ((c->scratch_bytes - bytes) & ~(size_t)63);
	ctx->scratch_bytes = bytes;
	ctx->threads = c->pools[pool];
	ctx->stream = NULL;
	check_poison(ctx->scratch, bytes);
}

static bool guards_hold(const struct check_buffer *b)
{
	for (size_t i = 0; i < GUARD_BYTES; i++)
		if (b->base[i] != GUARD)
			return false;
	for (size_t i = b->bytes; i < whole(b->bytes, 64); i++)
		if (b->base[GUARD_BYTES + i] != GUARD)
			return false;
	return true;
}

const char *check_release(struct check *c, u32 kept)
{
	const char *problem = NULL;
	for (u32 i = kept; i < c->buffer_count; i++) {
		if (!guards_hold(&c->buffers[i]))
			problem = "wrote outside of a buffer";
		munmap(c->buffers[i].map, c->buffers[i].map_bytes);
	}
	c->buffer_count = kept;
	return problem;
}

static void count(struct check *c, const char *op, int op_bytes, const char *variant, int variant_bytes, u32 cases)
{
	struct check_count n = {.cases = cases};
	snprintf(n.op, sizeof(n.op), "%.*s", op_bytes, op);
	snprintf(n.variant, sizeof(n.variant), "%.*s", variant_bytes, variant);
	for (u32 i = 0; i < c->count_count; i++) {
		struct check_count *have = &c->counts[i];
		if (strcmp(have->op, n.op) == 0 && strcmp(have->variant, n.variant) == 0) {
			have->cases += cases;
			return;
		}
	}
	if (c->count_count < CHECK_COUNTS_MAX)
		c->counts[c->count_count++] = n;
}

static void count_case(struct check *c, const char *text)
{
	const int first = (int)strcspn(text, " "), ops = (int)strcspn(text, " =");
	const char *variant = c->variant ? c->variant : "";
	int variant_bytes = (int)strlen(variant), bytes;
	if (ops < first) { /* of a group's products "group's/product's": the second computes */
		const char *slash = memchr(text + ops, '/', (size_t)(first - ops));
		variant = slash ? slash + 1 : text + ops + 1;
		variant_bytes = (int)(text + first - variant);
	}
	for (int at = 0; at < ops; at += bytes + 1) {
		bytes = (int)strcspn(text + at, "+ =");
		count(c, text + at, bytes, variant, variant_bytes, 1);
	}
}

void check_add(struct check *c, const struct check *from)
{
	c->passed += from->passed;
	c->failed += from->failed;
	for (u32 i = 0; i < from->count_count; i++) {
		const struct check_count *n = &from->counts[i];
		count(c, n->op, sizeof(n->op), n->variant, sizeof(n->variant), n->cases);
	}
}

static u32 cases_of(const struct check *c, const char *op, const char *variant)
{
	for (u32 i = 0; i < c->count_count; i++)
		if (strcmp(c->counts[i].op, op) == 0 && strcmp(c->counts[i].variant, variant) == 0)
			return c->counts[i].cases;
	return 0;
}

/* Whether no entry before this one has its op (or its variant). */
static bool is_first(const struct check *c, u32 index, bool op)
{
	const struct check_count *n = &c->counts[index];
	for (u32 i = 0; i < index; i++)
		if (strcmp(op ? c->counts[i].op : c->counts[i].variant, op ? n->op : n->variant) == 0)
			return false;
	return true;
}

void check_print_counts(const struct check *c)
{
	printf("%-16s", "cases");
	for (u32 v = 0; v < c->count_count; v++)
		if (is_first(c, v, false))
			printf(" %12s", c->counts[v].variant);
	printf("\n");
	for (u32 o = 0; o < c->count_count; o++) {
		if (!is_first(c, o, true))
			continue;
		printf("%-16s", c->counts[o].op);
		for (u32 v = 0; v < c->count_count; v++) {
			const u32 cases = cases_of(c, c->counts[o].op, c->counts[v].variant);
			if (!is_first(c, v, false))
				continue;
			if (cases > 0)
				printf(" %12u", cases);
			else
				printf(" %12s", "-");
		}
		printf("\n");
	}
}

void check_case_end(struct check *c, const char *problem, const char *fmt, ...)
{
	char text[200];
	va_list args;
	const char *guards = check_release(c, 0);
	problem = problem ? problem : guards;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	count_case(c, text);
	if (!problem) {
		c->passed++;
		return;
	}
	printf("FAILED %s: %s\n", text, problem);
	c->failed++;
}

/* splitmix64 of Steele, Lea, Flood 2014 */
u32 check_random(struct check *c, u32 below)
{
	u64 z = c->rng += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	z ^= z >> 31;
	return (u32)((z >> 32) * below >> 32);
}

float check_uniform(struct check *c)
{
	return (float)check_random(c, 1 << 24) * 0x1p-23f - 1;
}

static float random_value(struct check *c, bool outliers)
{
	float x = check_uniform(c);
	return outliers && check_random(c, 64) == 0 ? x * 100 : x;
}

float *check_floats(struct check *c, size_t count, bool outliers)
{
	float *p = check_alloc(c, count * sizeof(float));
	for (size_t i = 0; i < count; i++)
		p[i] = random_value(c, outliers);
	return p;
}

u16 *check_bf16s(struct check *c, size_t count, bool outliers)
{
	u16 *p = check_alloc(c, count * sizeof(u16));
	for (size_t i = 0; i < count; i++) {
		float x = random_value(c, outliers);
		kern_convert(&p[i], KERN_BF16, &x, KERN_F32, 1);
	}
	return p;
}

const char *check_close(const float *got, const double *want, const double *scale, size_t count, double error)
{
	static _Thread_local char text[160];
	for (size_t i = 0; i < count; i++) {
		double allowed = error * (scale ? scale[i] : 1), off = fabs(got[i] - want[i]);
		if (off <= allowed || (double)got[i] == want[i])
			continue;
		snprintf(text, sizeof(text),
			 "value %zu of %zu is %.9g, should be %.9g (off by %.3g, allowed %.3g)", i, count,
			 (double)got[i], want[i], off, allowed);
		return text;
	}
	return NULL;
}

bool check_distinct_(const struct check *c, u32 target, size_t slot)
{
	const char *mine = (const char *)&c->targets[target].ops + slot;
	for (u32 i = 0; i < target; i++)
		if (memcmp(mine, (const char *)&c->targets[i].ops + slot, sizeof(void (*)(void))) == 0)
			return false;
	return true;
}

void check_sample_params(struct check *c, struct kern_sample_row *row, u32 vocab, u32 kind)
{
	static const float temperatures[] = {0, 1, 0.7f, 1.5f, 0.01f, 100};
	static const float top_ps[] = {1, 0.9f, 0.5f, 0.999f, 0.0001f, 1};
	row->temperature = temperatures[kind % COUNT_OF(temperatures)];
	row->top_p = top_ps[check_random(c, COUNT_OF(top_ps))];
	row->min_p = kind % 4 == 3 ? 0.05f : 0;
	row->top_k = kind % 3 == 1 ? 1 + check_random(c, vocab) : kind % 3 == 2 ? 1 + check_random(c, 8) : 0;
	row->seed = (u64)check_random(c, UINT32_MAX) << 32 | check_random(c, UINT32_MAX);
	row->position = check_random(c, 5000);
}

void check_sample_logits(struct check *c, float *logits, u32 vocab, u32 shape, float huge)
{
	for (u32 i = 0; i < vocab; i++) {
		logits[i] = check_uniform(c) * (shape == 1 ? 2 : 12);
		if (shape == 2)
			logits[i] = (float)(int)(logits[i] / 4) * 0.5f;
		if (shape == 3 && i % 3 == 0)
			logits[i] = i % 6 ? -INFINITY : NAN;
		if (shape == 4)
			logits[i] = -INFINITY;
		if (shape == 5)
			logits[i] = 1;
	}
	if (shape == 3 && vocab > 4)
		logits[4] = check_random(c, 2) ? huge : 40;
}
