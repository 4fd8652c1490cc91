/* tercet bench serve: load on a server over HTTP, closed or open loop, and the check that a request's response does
 * not depend on what else runs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/bench_report.h"
#include "client/cli/cli.h"

enum { CHECK_DISTINCT = 32, CONCURRENCY_DEFAULT = 8, CONCURRENCY_MAX = 4096, SHOWN_FAILURES = 5 };

struct bench_line {
	struct bench_load_config load;
	struct bench_target target;
	char model[256];
	bool check;
	bool quiet;
};

static void print_help(void)
{
	cli_print_usage("bench serve");
	printf("\nSends completion requests to an OpenAI-compatible server and measures what comes back. A table goes to "
	       "stderr,\none JSON line to stdout.\n\n"
	       "  --base-url URL             the server (http://127.0.0.1:8000)\n"
	       "  --api-key KEY              sent as a bearer token; default: OPENAI_API_KEY\n"
	       "  --model NAME               default: the first that the server lists\n"
	       "  --num-prompts N            requests (100)\n"
	       "  --concurrency C            most requests at once (8; with --request-rate 4096); also "
	       "--max-concurrency\n"
	       "  --request-rate R           open loop: Poisson arrivals of R requests per second\n"
	       "  --input-len N              words of a prompt (32)\n"
	       "  --output-len N             most tokens of a response (64)\n"
	       "  --ignore-eos               every response has --output-len tokens\n"
	       "  --temperature T            (0.8)\n"
	       "  --seed N                   of prompts and sampling (1)\n"
	       "  --distinct N               the load repeats N different requests (all differ; with --check 32)\n"
	       "  --check                    run each different request alone, too: every response must have the same "
	       "tokens\n                             and text; status 1 if one differs or failed\n"
	       "  --timeout S                of one request (600)\n"
	       "  --quiet                    no progress, no table\n");
}

static enum err take_u32(int *argc, char **argv, const char *name, long long min, long long max, u32 *value,
			 struct err_msg *em)
{
	long long v = *value;
	enum err e = cli_take_int(argc, argv, name, min, max, &v, em);
	*value = (u32)v;
	return e;
}

static enum err read_numbers(struct bench_load_config *c, int *argc, char **argv, struct err_msg *em)
{
	long long seed = 1;
	enum err e = take_u32(argc, argv, "--num-prompts", 1, 1000000, &c->request_count, em);
	if (e == ERR_OK)
		e = take_u32(argc, argv, "--concurrency", 1, CONCURRENCY_MAX, &c->concurrency, em);
	if (e == ERR_OK)
		e = take_u32(argc, argv, "--max-concurrency", 1, CONCURRENCY_MAX, &c->concurrency, em);
	if (e == ERR_OK)
		e = cli_take_real(argc, argv, "--request-rate", 0.001, 1e6, &c->request_rate, em);
	if (e == ERR_OK)
		e = take_u32(argc, argv, "--input-len", 1, 1000000, &c->input_words, em);
	if (e == ERR_OK)
		e = take_u32(argc, argv, "--output-len", 1, 1000000, &c->output_tokens, em);
	if (e == ERR_OK)
		e = cli_take_real(argc, argv, "--temperature", 0, 100, &c->temperature, em);
	if (e == ERR_OK)
		e = cli_take_int(argc, argv, "--seed", 0, INT64_MAX / 2, &seed, em);
	if (e == ERR_OK)
		e = take_u32(argc, argv, "--distinct", 1, 1000000, &c->distinct, em);
	if (e == ERR_OK)
		e = take_u32(argc, argv, "--timeout", 1, 86400, &c->timeout_s, em);
	c->seed = (u64)seed;
	return e;
}

static enum err read_line(struct bench_line *b, int argc, char **argv, struct err_msg *em)
{
	const char *url = "http://127.0.0.1:8000";
	const char *model = NULL;
	struct bench_load_config *c = &b->load;
	*c = (struct bench_load_config){.target = &b->target, .model = b->model, .request_count = 100,
					.input_words = 32, .output_tokens = 64, .temperature = 0.8, .timeout_s = 600};
	b->target.api_key = getenv("OPENAI_API_KEY");
	enum err e = cli_take_text(&argc, argv, "--base-url", &url, em);
	if (e == ERR_OK)
		e = cli_take_text(&argc, argv, "--api-key", &b->target.api_key, em);
	if (e == ERR_OK)
		e = cli_take_text(&argc, argv, "--model", &model, em);
	if (e == ERR_OK)
		e = read_numbers(c, &argc, argv, em);
	b->check = cli_take_flag(&argc, argv, "--check");
	b->quiet = cli_take_flag(&argc, argv, "--quiet");
	c->ignore_eos = cli_take_flag(&argc, argv, "--ignore-eos");
	if (e != ERR_OK)
		return e;
	if (argc > 1)
		return err_set(em, ERR_INVALID, "unexpected word \"%.100s\" (see --help)", argv[1]);
	if (b->target.api_key && !b->target.api_key[0])
		b->target.api_key = NULL;
	if (!c->concurrency)
		c->concurrency = c->request_rate > 0 ? CONCURRENCY_MAX : CONCURRENCY_DEFAULT;
	if (!c->distinct)
		c->distinct = b->check ? CHECK_DISTINCT : c->request_count;
	if (c->distinct > c->request_count)
		c->distinct = c->request_count;
	if (c->concurrency > c->request_count)
		c->concurrency = c->request_count;
	c->keep_output = b->check;
	c->progress = !b->quiet && isatty(STDERR_FILENO);
	if (model)
		snprintf(b->model, sizeof(b->model), "%s", model);
	return bench_target_parse(&b->target, url, em);
}

/* Describes the first difference; false: none. */
static bool differs(const struct bench_result *got, const struct bench_result *alone, char *text, size_t bytes)
{
	size_t common = got->ids.count < alone->ids.count ? got->ids.count : alone->ids.count;
	for (size_t i = 0; i < common; i++) {
		if (got->ids.data[i] == alone->ids.data[i])
			continue;
		snprintf(text, bytes, "token %zu is %u, alone it is %u", i, got->ids.data[i], alone->ids.data[i]);
		return true;
	}
	if (got->ids.count != alone->ids.count) {
		snprintf(text, bytes, "%zu tokens, alone %zu", got->ids.count, alone->ids.count);
		return true;
	}
	if (got->text.bytes != alone->text.bytes ||
	    (got->text.bytes && memcmp(got->text.data, alone->text.data, got->text.bytes) != 0)) {
		snprintf(text, bytes, "the same tokens, but another text");
		return true;
	}
	if (strcmp(got->finish, alone->finish) != 0) {
		snprintf(text, bytes, "ended by %s, alone by %s", got->finish, alone->finish);
		return true;
	}
	return false;
}

/* Each different request once more with nothing beside it. */
static enum err check(const struct bench_line *b, const struct bench_outcome *o, struct bench_check *result,
		      struct err_msg *em)
{
	struct bench_load_config solo = b->load;
	struct bench_outcome alone;
	char text[200];
	solo.request_count = solo.distinct;
	solo.concurrency = 1;
	solo.request_rate = 0;
	solo.phase = "alone";
	enum err e = bench_load_run(&solo, &alone, em);
	*result = (struct bench_check){.done = e == ERR_OK, .distinct = solo.distinct};
	for (u32 i = 0; e == ERR_OK && i < solo.distinct; i++)
		if (alone.results[i].failed)
			e = err_set(em, ERR_IO, "request %u failed when run alone: %s", i, alone.results[i].error);
	for (u32 i = 0; e == ERR_OK && i < o->count; i++) {
		const struct bench_result *got = &o->results[i];
		if (got->failed || !differs(got, &alone.results[i % solo.distinct], text, sizeof(text)))
			continue;
		if (result->mismatches++ < SHOWN_FAILURES)
			fprintf(stderr, "request %u (seed %" PRIu64 "): %s\n", i, solo.seed + i % solo.distinct,
				text);
	}
	bench_outcome_fini(&alone);
	return e;
}

static void show_failures(const struct bench_outcome *o)
{
	u32 shown = 0;
	for (u32 i = 0; i < o->count && shown < SHOWN_FAILURES; i++) {
		if (!o->results[i].failed)
			continue;
		fprintf(stderr, "request %u failed: %s\n", i, o->results[i].error);
		shown++;
	}
}

static int bench(struct bench_line *b, struct err_msg *em)
{
	struct bench_outcome outcome = {0};
	struct bench_report report;
	struct bench_check checked = {0};
	enum err e = b->model[0] ? ERR_OK : bench_find_model(&b->target, b->model, sizeof(b->model), em);
	b->load.phase = "load";
	if (e == ERR_OK)
		e = bench_load_run(&b->load, &outcome, em);
	if (e == ERR_OK && bench_report_build(&report, &outcome) != ERR_OK)
		e = err_set(em, ERR_NO_MEMORY, "no memory for the report");
	if (e == ERR_OK)
		show_failures(&outcome);
	if (e == ERR_OK && b->check)
		e = check(b, &outcome, &checked, em);
	if (e == ERR_OK && !b->quiet)
		bench_report_print(&report, &b->load, &checked);
	if (e == ERR_OK)
		bench_report_print_json(&report, &b->load, &checked);
	bench_outcome_fini(&outcome);
	if (e != ERR_OK)
		return cli_fail(em);
	return report.failed || checked.mismatches ? CLI_FAILED : CLI_OK;
}

int cmd_bench_serve(int argc, char **argv)
{
	struct bench_line b = {0};
	struct err_msg em = {.text = ""};
	if (cli_help_wanted(argc, argv, NULL)) {
		print_help();
		return CLI_OK;
	}
	if (read_line(&b, argc, argv, &em) != ERR_OK)
		return cli_usage_error(&em);
	return bench(&b, &em);
}
