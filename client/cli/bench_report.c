/* Quantiles over the results of a load, and their printing. Pure but for the printing; tercet bench serve. */
#include "client/cli/bench_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json.h"

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Linear interpolation between the two nearest samples. */
static double quantile(const double *sorted, size_t count, double q)
{
	double at = q * (double)(count - 1);
	size_t low = (size_t)at;
	size_t high = low + 1 < count ? low + 1 : low;
	return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

struct bench_quantiles bench_quantiles_of(double *ms, size_t count)
{
	struct bench_quantiles out = {0};
	if (!count)
		return out;
	qsort(ms, count, sizeof(*ms), compare);
	for (size_t i = 0; i < count; i++)
		out.mean += ms[i] / (double)count;
	out.median = quantile(ms, count, 0.5);
	out.p90 = quantile(ms, count, 0.9);
	out.p99 = quantile(ms, count, 0.99);
	return out;
}

enum sample { SAMPLE_TTFT, SAMPLE_TPOT, SAMPLE_E2E };

/* False: this result has none. */
static bool take_sample(const struct bench_result *r, enum sample which, double *ms)
{
	if (r->failed || !r->first_ns || (which == SAMPLE_TPOT && r->output_tokens < 2))
		return false;
	double first = (double)(r->first_ns - r->begin_ns) / 1e6;
	double end = (double)(r->end_ns - r->begin_ns) / 1e6;
	if (which == SAMPLE_TTFT)
		*ms = first;
	else if (which == SAMPLE_E2E)
		*ms = end;
	else
		*ms = (double)(r->last_ns - r->first_ns) / 1e6 / (r->output_tokens - 1);
	return true;
}

static struct bench_quantiles quantiles_of(const struct bench_outcome *o, enum sample which, double *room)
{
	size_t count = 0;
	for (u32 i = 0; i < o->count; i++)
		count += take_sample(&o->results[i], which, &room[count]);
	return bench_quantiles_of(room, count);
}

enum err bench_report_build(struct bench_report *r, const struct bench_outcome *o)
{
	size_t room_count = o->count > o->gaps.count ? o->count : o->gaps.count;
	double *room = calloc(room_count + 1, sizeof(*room));
	if (!room)
		return ERR_NO_MEMORY;
	*r = (struct bench_report){.duration_s = o->duration_s};
	for (u32 i = 0; i < o->count; i++) {
		const struct bench_result *result = &o->results[i];
		r->failed += result->failed;
		r->completed += !result->failed;
		r->input_tokens += result->failed ? 0 : result->prompt_tokens;
		r->output_tokens += result->failed ? 0 : result->output_tokens;
	}
	r->ttft = quantiles_of(o, SAMPLE_TTFT, room);
	r->tpot = quantiles_of(o, SAMPLE_TPOT, room);
	r->e2e = quantiles_of(o, SAMPLE_E2E, room);
	for (size_t i = 0; i < o->gaps.count; i++)
		room[i] = o->gaps.ms[i];
	r->itl = bench_quantiles_of(room, o->gaps.count);
	free(room);
	return ERR_OK;
}

/* ---------------------------------------------------------------- printing */

static void print_row(const char *name, const struct bench_quantiles *q)
{
	fprintf(stderr, "  %-28s %9.2f %9.2f %9.2f %9.2f\n", name, q->mean, q->median, q->p90, q->p99);
}

void bench_report_print(const struct bench_report *r, const struct bench_load_config *c,
			const struct bench_check *check)
{
	char rate[64] = "closed loop";
	if (c->request_rate > 0)
		snprintf(rate, sizeof(rate), "%.3g requests/s arriving", c->request_rate);
	fprintf(stderr, "\n%u requests, %s, at most %u at once, %.2f s\n", c->request_count, rate, c->concurrency,
		r->duration_s);
	fprintf(stderr, "  completed %u, failed %u, input tokens %" PRIu64 ", output tokens %" PRIu64 "\n", r->completed,
		r->failed, r->input_tokens, r->output_tokens);
	fprintf(stderr, "  %.2f requests/s, %.1f output tokens/s, %.1f tokens/s in all\n", r->completed / r->duration_s,
		(double)r->output_tokens / r->duration_s,
		(double)(r->input_tokens + r->output_tokens) / r->duration_s);
	fprintf(stderr, "  %-28s %9s %9s %9s %9s\n", "milliseconds", "mean", "median", "p90", "p99");
	print_row("time to first token", &r->ttft);
	print_row("time per output token", &r->tpot);
	print_row("between chunks", &r->itl);
	print_row("whole request", &r->e2e);
	if (check->done)
		fprintf(stderr, "  checked against %u requests run alone: %u responses differ\n", check->distinct,
			check->mismatches);
}

static void write_number(struct json_writer *w, const char *key, double value)
{
	char text[40];
	json_key(w, key);
	int n = snprintf(text, sizeof(text), "%.3f", value);
	json_write_raw(w, text, (size_t)n);
}

static void write_count(struct json_writer *w, const char *key, u64 value)
{
	json_key(w, key);
	json_write_uint(w, value);
}

static void write_quantiles(struct json_writer *w, const char *name, const struct bench_quantiles *q)
{
	static const char *const kinds[] = {"mean", "median", "p90", "p99"};
	const double values[] = {q->mean, q->median, q->p90, q->p99};
	for (u32 i = 0; i < COUNT_OF(kinds); i++) {
		char key[40];
		snprintf(key, sizeof(key), "%s_%s_ms", kinds[i], name);
		write_number(w, key, values[i]);
	}
}

void bench_report_print_json(const struct bench_report *r, const struct bench_load_config *c,
			     const struct bench_check *check)
{
	struct buf out = {0};
	struct json_writer w;
	json_begin(&w, &out);
	json_object_begin(&w);
	json_key(&w, "bench");
	json_write_cstr(&w, "serve");
	json_key(&w, "model");
	json_write_cstr(&w, c->model);
	write_count(&w, "max_concurrency", c->concurrency);
	json_key(&w, "request_rate");
	if (c->request_rate > 0)
		json_write_double(&w, c->request_rate);
	else
		json_write_null(&w);
	write_count(&w, "num_prompts", c->request_count);
	write_count(&w, "completed", r->completed);
	write_count(&w, "failed", r->failed);
	write_number(&w, "duration", r->duration_s);
	write_count(&w, "total_input_tokens", r->input_tokens);
	write_count(&w, "total_output_tokens", r->output_tokens);
	write_number(&w, "request_throughput", r->completed / r->duration_s);
	write_number(&w, "output_throughput", (double)r->output_tokens / r->duration_s);
	write_number(&w, "total_token_throughput", (double)(r->input_tokens + r->output_tokens) / r->duration_s);
	write_quantiles(&w, "ttft", &r->ttft);
	write_quantiles(&w, "tpot", &r->tpot);
	write_quantiles(&w, "itl", &r->itl);
	write_quantiles(&w, "e2el", &r->e2e);
	if (check->done) {
		write_count(&w, "checked_distinct", check->distinct);
		write_count(&w, "mismatches", check->mismatches);
	}
	json_object_end(&w);
	puts(buf_cstr(&out));
	buf_fini(&out);
}
