/* How near the CPU backend comes to the machine: prefill and decode of whole models beside the measured
 * limits of memory and arithmetic, and beside llama.cpp and ik_llama.cpp. One line a case, or JSON lines. Run
 * by hand; the models come from tools/make-checkpoint.
 *
 * A step is the forward pass and the logits of the rows' last tokens. Steps and measurements of the limits take
 * turns, and medians of all are compared, for on a shared host each may halve from one second to the next. Such a step
 * finds nothing of its weights in any cache: the memory that the limit is measured with is read before it, and again behind it, which is then
 * measured. Steps of decoding that follow each other, as in serving and in the peers' own benchmarks, are measured beside it ("in
 * line"): what a large cache keeps of the weights from one to the next may make them faster than memory alone would.
 * What other processes computed meanwhile is reported with each case, and a case that was disturbed can be repeated. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/cpu_peers.h"
#include "common/clock.h"
#include "proc_worker/runner.h"
#include "tests/kern/limits.h"

enum {
	ROWS = 32,
	TOKENS = 512,
	CONTEXT = 1024,
	DECODE_FROM = 128, /* tokens that a decoding row has behind it */
	STEPS_MAX = 64,
	STEPS_MIN = 3,
	LINE_STEPS = 7, /* that follow a step at once, at most, */
	COMPUTE_SHARE = 8, /* of a step's time each arithmetic is measured for, before and behind it */
	EXIT_USAGE = 2,
};
static const u64 CASE_NS = 1500ull * 1000 * 1000;
static const double LINE_NS = 5e7; /* and for about so long, but one at least */
static const double CALM = 0.02; /* of the processors: what others may take in a case that counts */

struct bench {
	bool json;
	const char *model, *formats, *threads, *cases;
	u32 repeats; /* of a case that was disturbed, at most */
	struct runner *r;
	enum peer_format format;
	u32 thread_count;
	struct limits_memory memory;
	enum limit_kind products, attention; /* the instructions that both are made of */
	enum limit_kind vectors; /* that products would be made of without tiles, as those of the peers' figures are */
	double attention_rate;		     /* of these, what attention's own do: half as many products of 16 bits as of bytes */
	double matrices; /* weights of the layers' matrices that a token is multiplied with */
	double behind_kv; /* of those, weights of the last layer that only tokens with logits need */
	double expert_bytes; /* of all layers' experts; 0: there are none */
};

static void die(const char *what, const struct err_msg *em)
{
	fprintf(stderr, "cpu_vs_limit: %s: %s\n", what, em->text);
	exit(EXIT_FAILURE);
}

/* ---------------------------------------------------------------- steps */

/* `rows` rows of `count` tokens each behind `from` others. */
static void fill(struct runner *r, u32 rows, u32 count, u32 from)
{
	struct inputs *in = &r->inputs;
	u32 size = r->config.limits.block_size, blocks = CONTEXT / size;

	for (u32 i = 0; i < rows; i++) {
		in->query_start[i] = i * count;
		in->context[i] = from + count;
		in->sample_index[i] = (i + 1) * count - 1;
		for (u32 b = 0; b < blocks && b < in->block_stride; b++)
			in->block_tables[i * in->block_stride + b] = (i * blocks + b) % r->kv.block_count;
		for (u32 j = 0; j < count; j++) {
			u32 at = i * count + j, position = from + j;
			in->ids[at] = (at * 7919 + from) % r->model.vocab_size;
			in->positions[at] = position;
			in->slots[at] = (i64)in->block_tables[i * in->block_stride + position / size] * size +
					position % size;
		}
	}
	in->query_start[rows] = rows * count;
	in->rows = rows;
	in->tokens = rows * count;
	in->last_only = true;
}

static double step_ns(struct runner *r, u32 rows, u32 count, u32 from)
{
	struct err_msg em = {""};
	float *logits;

	fill(r, rows, count, from);
	u64 begin = clock_now_ns();
	enum err e = decoder_forward(&r->decoder, &r->inputs, r->kv.layers, &em);
	if (!e)
		e = decoder_logits(&r->decoder, r->inputs.sample_index, rows, &logits, &em);
	if (e)
		die("step", &em);
	return (double)(clock_now_ns() - begin);
}

/* ---------------------------------------------------------------- limits */

struct machine {
	double gbytes_s, gops, attention_gops;
	double vector_gops; /* see bench.vectors */
};

/* What of the weights `tokens` tokens have to read: experts that nobody goes to are not, and the random weights of a
 * benchmark send tokens to each alike. */
static double weight_bytes(const struct bench *b, double tokens)
{
	const struct model_config *c = &b->r->model;
	double missed = c->experts ? pow(1 - (double)c->experts_per_token / c->experts, tokens) : 0;

	return (double)b->r->weights.memory_bytes - missed * b->expert_bytes;
}

/* The least time of a step: what has to be read, or what has to be computed. Attention counts, at the rate of its
 * own arithmetic, which the format of the weights does not change. */
static double limit_ns(const struct bench *b, const struct machine *m, u32 rows, u32 count, u32 from)
{
	const struct model_config *c = &b->r->model;
	double tokens = (double)rows * count, keys = from + (count + 1) / 2.0;
	double logits = (double)c->vocab_size * c->hidden * rows;
	double attention = 2.0 * c->heads * c->head_dim * (tokens * keys * (c->layers - 1) + (double)rows * (from + count));
	double operations = 2 * ((b->matrices - b->behind_kv) * tokens + b->behind_kv * rows + logits);
	double cache = 2.0 * rows * (from + count) * c->kv_heads * c->head_dim * c->layers *
		       (double)kern_dtype_bytes(b->r->kv_shape.dtype);
	double bytes = weight_bytes(b, tokens) + cache;
	double reading = bytes / m->gbytes_s, computing = operations / m->gops + 2 * attention / m->attention_gops;

	return reading > computing ? reading : computing;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *values, u32 count)
{
	qsort(values, count, sizeof(*values), compare);
	return values[count / 2];
}

/* ---------------------------------------------------------------- other work on the machine */

struct usage {
	double busy, own; /* processor seconds of everybody, of this process */
	u64 at_ns;
};

static double own_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Fields of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; all but idle and iowait are work, this
 * machine's or, stolen, its neighbours'. Without the file nobody else seems to work. */
static struct usage usage_now(void)
{
	unsigned long long t[8] = {0};
	struct usage u = {.own = own_seconds(), .at_ns = clock_now_ns()};
	FILE *f = fopen("/proc/stat", "re");

	if (f && fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6],
			&t[7]) == 8)
		u.busy = (double)(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)sysconf(_SC_CLK_TCK);
	if (f)
		fclose(f);
	return u;
}

/* Others' share of all processors since `from`. */
static double others_since(const struct usage *from)
{
	struct usage now = usage_now();
	double seconds = (double)(now.at_ns - from->at_ns) / 1e9 * (double)sysconf(_SC_NPROCESSORS_ONLN);
	double others = (now.busy - from->busy - (now.own - from->own)) / seconds;

	return others > 0 ? others : 0;
}

/* ---------------------------------------------------------------- cases */

struct times {
	double median_ns, best_ns, others;
	double line_ns; /* of a step that follows another at once; 0: was not measured */
	struct machine here;
};

static void report(const struct bench *b, const char *what, u32 rows, u32 count, const struct times *t)
{
	const double ns = t->median_ns, best_ns = t->best_ns;
	const struct machine *here = &t->here;
	const struct peer_case *peer =
		peer_find(b->r->model.hidden, b->r->model.vocab_size, b->format, b->thread_count, what, count > 1 ? count : rows);
	double from = count > 1 ? 0 : DECODE_FROM, limit = limit_ns(b, here, rows, count, (u32)from);
	double tokens = (double)rows * count, scale = 0;

	if (peer) { /* the same step's least time there over that here */
		const struct machine there = {peer_gbytes_s(b->thread_count), peer_gops(b->format, b->thread_count),
					      peer_gops(PEER_BF16, b->thread_count), 0};
		const struct machine vectors = {here->gbytes_s, here->vector_gops, here->attention_gops, 0};
		scale = limit_ns(b, &there, rows, count, (u32)from) / limit_ns(b, &vectors, rows, count, (u32)from);
	}
	if (b->json)
		printf("{\"bench\":\"cpu_vs_limit\",\"model\":\"%s\",\"format\":\"%s\",\"threads\":%u,"
		       "\"what\":\"%s\",\"rows\":%u,"
		       "\"tokens\":%u,\"ms\":%.3f,\"tokens_s\":%.1f,\"best_tokens_s\":%.1f,\"share_of_"
		       "limit\":%.3f,"
		       "\"read_gbytes_s\":%.1f,\"gops\":%.0f,\"llama_cpp\":%.1f,\"ik_llama_cpp\":%.1f,"
		       "\"scale\":%.2f,\"others\":%.3f",
		       b->model, peer_format_name(b->format), b->thread_count, what, rows, count, ns / 1e6,
		       tokens * 1e9 / ns, tokens * 1e9 / best_ns, limit / ns, here->gbytes_s, here->gops,
		       peer ? peer->llama : 0, peer ? peer->ik : 0, scale, t->others);
	else
		printf("%-4s %u thread%s %-7s %3u x %-3u %8.1f tok/s %4.0f %% of the limit (%.1f GB/s, %.0f Gop/s)",
		       peer_format_name(b->format), b->thread_count, b->thread_count > 1 ? "s" : " ", what,
		       rows, count, tokens * 1e9 / ns, 100 * limit / ns, here->gbytes_s, here->gops);
	if (!b->json && peer)
		printf("; llama.cpp %.1f, ik %.1f; scaled to this machine %.1f, %.1f", peer->llama, peer->ik,
		       peer->llama * scale, peer->ik * scale);
	if (t->line_ns > 0)
		printf(b->json ? ",\"in_line_tokens_s\":%.1f,\"in_line_share\":%.3f" : "; in line %.1f tok/s, %.3f of the limit",
		       tokens * 1e9 / t->line_ns, limit / t->line_ns);
	if (b->json)
		printf("}\n");
	else
		printf("; other work %.0f %%\n", 100 * t->others);
	fflush(stdout);
}

/* Mean time of steps of decoding that follow one at position `from` at once. */
static double line_ns(struct bench *b, u32 rows, u32 from)
{
	const double wanted = LINE_NS / step_ns(b->r, rows, 1, from);
	const u32 steps = wanted < 1 ? 1 : wanted > LINE_STEPS ? LINE_STEPS : (u32)wanted;
	double sum = 0;

	for (u32 i = 1; i <= steps; i++)
		sum += step_ns(b->r, rows, 1, from + i);
	return sum / steps;
}

static struct times time_case(struct bench *b, u32 rows, u32 count)
{
	double times[STEPS_MAX], lines[STEPS_MAX], speeds[STEPS_MAX], gops[STEPS_MAX], attention_gops[STEPS_MAX], vector_gops[STEPS_MAX], best = 0;
	struct kern_threads *threads = b->r->ctx.threads;
	struct usage before = usage_now();
	u64 begin = clock_now_ns();
	u32 n = 0;

	for (; n < STEPS_MAX && (n < STEPS_MIN || clock_now_ns() - begin < CASE_NS); n++) {
		lines[n] = count > 1 ? 0 : line_ns(b, rows, DECODE_FROM + n);
		limits_read(&b->memory, threads, 0);
		times[n] = step_ns(b->r, rows, count, count > 1 ? 0 : DECODE_FROM + n);
		speeds[n] = limits_read(&b->memory, threads, 0);
		u32 ms = 1 + (u32)(times[n] / 1e6 / COMPUTE_SHARE);
		gops[n] = limits_gops_mean(b->products, threads, ms);
		attention_gops[n] = b->attention == b->products ? gops[n] : limits_gops_mean(b->attention, threads, ms);
		vector_gops[n] = b->vectors == b->products ? gops[n] : limits_gops_mean(b->vectors, threads, ms);
		best = n == 0 || times[n] < best ? times[n] : best;
	}
	return (struct times){.median_ns = median(times, n),
			      .best_ns = best,
			      .line_ns = median(lines, n),
			      .others = others_since(&before),
			      .here = {median(speeds, n), median(gops, n), b->attention_rate * median(attention_gops, n), median(vector_gops, n)}};
}

static void run_case(struct bench *b, const char *what, u32 rows, u32 count)
{
	step_ns(b->r, rows, count, count > 1 ? 0 : DECODE_FROM - 1);
	struct times t = time_case(b, rows, count);
	for (u32 i = 0; i < b->repeats && t.others > CALM; i++) {
		struct times again = time_case(b, rows, count);
		t = again.others < t.others ? again : t;
	}
	report(b, what, rows, count, &t);
}

/* Takes the first case off a list: p128 (prefill of 128 tokens) or d16 (decode of 16 sequences). NULL: it is none. */
static const char *next_case(const char *list, bool *prefill, u32 *size)
{
	char *end;
	unsigned long n;

	*prefill = *list == 'p';
	if ((*list != 'p' && *list != 'd') || list[1] < '1' || list[1] > '9')
		return NULL;
	n = strtoul(list + 1, &end, 10);
	*size = (u32)n;
	if (n > (*prefill ? TOKENS : ROWS) || (*prefill && n < 2) || (*end != ',' && *end != '\0'))
		return NULL;
	return *end ? end + 1 : end;
}

static bool cases_known(const char *list)
{
	bool prefill;
	u32 size;

	while (list && *list)
		list = next_case(list, &prefill, &size);
	return list != NULL;
}

static void run_cases(struct bench *b)
{
	const char *list = b->cases;
	bool prefill;
	u32 size;

	while (*list && (list = next_case(list, &prefill, &size)))
		run_case(b, prefill ? "prefill" : "decode", prefill ? 1 : size, prefill ? size : 1);
}

static double values_of(const struct kern_weight *w)
{
	return (double)w->n * w->k;
}

static void count_matrices(struct bench *b)
{
	u32 experts = b->r->model.experts, caps = b->r->config.caps;

	b->matrices = b->expert_bytes = 0;
	for (u32 i = 0; i < b->r->weights.layer_count; i++) {
		const struct layer_weights *w = &b->r->weights.layers[i];
		b->behind_kv = values_of(&w->attn_out) + values_of(&w->gate_up) + values_of(&w->down);
		if (experts) {
			const struct kern_weight *up = w->expert_gate_up, *down = w->expert_down;
			b->behind_kv += values_of(&w->router) +
					b->r->model.experts_per_token * (values_of(up) + values_of(down));
			b->expert_bytes += experts * ((double)kern_weight_bytes(up->n, up->k, up->dtype, caps) +
						      (double)kern_weight_bytes(down->n, down->k, down->dtype, caps));
		}
		b->matrices += values_of(&w->qkv) + b->behind_kv;
	}
}

/* `narrow`: what processors without AVX-512 have for the same. */
static enum limit_kind kind_of(enum limit_kind wanted, enum limit_kind narrow, u32 caps)
{
	if (limits_has(wanted, caps))
		return wanted;
	if (limits_has(LIMIT_AVX512, caps))
		return LIMIT_AVX512;
	return wanted == LIMIT_VNNI && limits_has(LIMIT_AVX_VNNI, caps) ? LIMIT_AVX_VNNI : narrow;
}

static void run_model(struct bench *b)
{
	const enum option_quantization bits[] = {OPTION_QUANTIZATION_AUTO, OPTION_QUANTIZATION_INT8,
						 OPTION_QUANTIZATION_INT4};
	static const enum limit_kind wanted[] = {LIMIT_BF16, LIMIT_VNNI, LIMIT_VNNI},
				     narrow[] = {LIMIT_AVX2, LIMIT_WIDE, LIMIT_NARROW};
	struct err_msg em = {""};
	struct runner_config c = {.model_dir = b->model,
				  .device = OPTION_DEVICE_CPU,
				  .ranks = 1,
				  .threads = b->thread_count,
				  .caps = kern_caps_detect(),
				  .quantization = bits[b->format],
				  .limits = {ROWS, TOKENS, CONTEXT, 16},
				  .memory_utilization = 0.9};

	if (runner_create(&b->r, &c, &em))
		die(b->model, &em);
	/* Pages that nothing was written to are one and the same for the processor, which would then read it from its cache. */
	if (b->r->kv.memory)
		memset(b->r->kv.memory, 0x3c, b->r->kv.memory_bytes);
	count_matrices(b);
	b->products = b->vectors = kind_of(wanted[b->format], narrow[b->format], c.caps);
	if (limits_has(LIMIT_AMX_BF16, c.caps))
		b->products = b->format == PEER_BF16 ? LIMIT_AMX_BF16 : LIMIT_AMX_BYTES;
	const bool wholes = b->r->kv_shape.dtype == KERN_I16; /* the cache has 16 bits as the checkpoint: whole numbers, or bfloat16 */
	b->attention = wholes ? kind_of(LIMIT_VNNI, LIMIT_WIDE, c.caps) : kind_of(LIMIT_BF16, LIMIT_AVX2, c.caps);
	b->attention_rate = b->attention == LIMIT_VNNI || b->attention == LIMIT_AVX_VNNI ? 0.5 : 1;
	run_cases(b);
	runner_destroy(&b->r);
}

static int usage(void)
{
	fprintf(stderr, "usage: cpu_vs_limit [--json] [--threads 12] [--formats bf16,int8,int4] [--cases p128,p512,d1,...] "
			"[--repeats N] MODEL...\n"
			"--threads: digits, each a number of threads; --cases: p2 to p%d is prefill of so many tokens, d1 to d%d decode of so\n"
			"many sequences; --repeats: how often a case is run again while other processes take more than 2 %% of the\n"
			"processors\n", TOKENS, ROWS);
	return EXIT_USAGE;
}

int main(int argc, char **argv)
{
	struct bench b = {.formats = "bf16,int8,int4", .threads = "12", .cases = "p128,p512,d1,d4,d8,d16,d32"};
	int i = 1;

	for (; i < argc && argv[i][0] == '-'; i++) {
		if (!strcmp(argv[i], "--json"))
			b.json = true;
		else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
			b.threads = argv[++i];
		else if (!strcmp(argv[i], "--formats") && i + 1 < argc)
			b.formats = argv[++i];
		else if (!strcmp(argv[i], "--cases") && i + 1 < argc)
			b.cases = argv[++i];
		else if (!strcmp(argv[i], "--repeats") && i + 1 < argc)
			b.repeats = (u32)strtoul(argv[++i], NULL, 10);
		else
			return usage();
	}
	if (i == argc || strspn(b.threads, "123456789") != strlen(b.threads) || !cases_known(b.cases))
		return usage();
	if (!limits_memory_init(&b.memory)) {
		fprintf(stderr, "cpu_vs_limit: no memory to read\n");
		return EXIT_FAILURE;
	}
	for (; i < argc; i++)
		for (u32 f = 0; f < PEER_FORMATS; f++)
			for (const char *t = b.threads;
			     *t && strstr(b.formats, peer_format_name((enum peer_format)f)); t++) {
				b.model = argv[i];
				b.format = (enum peer_format)f;
				b.thread_count = (u32)(*t - '0');
				run_model(&b);
			}
	limits_memory_fini(&b.memory);
	return EXIT_SUCCESS;
}
