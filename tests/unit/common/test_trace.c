#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json.h"
#include "common/trace.h"

static char run_dir[32], out_path[64];
static struct err_msg em;

static void set_up(void)
{
	strcpy(run_dir, "/tmp/test_trace_XXXXXX");
	cr_assert_not_null(mkdtemp(run_dir));
	snprintf(out_path, sizeof(out_path), "%s/out.json", run_dir);
}

static void tear_down(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", run_dir);
	cr_assert_eq(system(command), 0);
}

TestSuite(trace, .init = set_up, .fini = tear_down);

static struct trace *created(const char *process)
{
	struct trace *t;

	cr_assert_eq(trace_create(&t, run_dir, process, &em), ERR_OK, "%s", em.text);
	return t;
}

/* The merged document; the caller frees it. */
static struct json_doc *merged(void)
{
	struct json_doc *doc;

	cr_assert_eq(trace_write_json(run_dir, out_path, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(json_parse_file(&doc, out_path, &em), ERR_OK, "%s", em.text);
	return doc;
}

static size_t count_of(struct json_doc *doc, const char *phase)
{
	size_t n = 0;

	for (struct json_iter it = json_iterate(json_get(json_root(doc), "traceEvents")); json_next(&it);)
		n += json_string_equals(json_get(it.value, "ph"), phase);
	return n;
}

Test(trace, off_is_valid_everywhere)
{
	struct trace *off = NULL;

	trace_add(off, TRACE_PLAN, 1, 2, 3, 4);
	trace_destroy(&off);
}

Test(trace, spans_of_all_processes_stand_on_one_clock)
{
	struct trace *a = created("scheduler"), *b = created("worker-0");

	trace_add(a, TRACE_PLAN, 1000000, 1001500, 7, 32);
	trace_add(b, TRACE_FORWARD, 1000500, 1009999, 7, 64);
	trace_destroy(&a);
	trace_destroy(&b);
	struct json_doc *doc = merged();
	cr_assert_eq(count_of(doc, "X"), 2);
	cr_assert_eq(count_of(doc, "M"), 4);
	double ts = -1, dur = -1;
	int64_t step = -1;
	for (struct json_iter it = json_iterate(json_get(json_root(doc), "traceEvents")); json_next(&it);)
		if (json_string_equals(json_get(it.value, "name"), "forward")) {
			cr_assert(json_double(json_get(it.value, "ts"), &ts));
			cr_assert(json_double(json_get(it.value, "dur"), &dur));
			cr_assert(json_int(json_get(json_get(it.value, "args"), "step"), &step));
		}
	cr_assert_float_eq(ts, 0.5, 1e-9); /* microseconds since the first span of all */
	cr_assert_float_eq(dur, 9.499, 1e-9);
	cr_assert_eq(step, 7);
	/* and where that clock's zero is */
	cr_assert(json_string_equals(json_get(json_get(json_root(doc), "otherData"), "origin_ns"), "1000000"));
	json_free(&doc);
}

Test(trace, ring_keeps_the_newest_spans)
{
	struct trace *t = created("worker-0");

	for (u64 i = 0; i < 65536 + 100; i++)
		trace_add(t, TRACE_SAMPLE, 1000 + i * 10, 1005 + i * 10, i, 1);
	trace_destroy(&t);
	struct json_doc *doc = merged();
	cr_assert_eq(count_of(doc, "X"), 65536);
	int64_t step = -1;
	json_val first = json_at(json_get(json_root(doc), "traceEvents"), 2);
	cr_assert(json_int(json_get(json_get(first, "args"), "step"), &step));
	cr_assert_eq(step, 100);
	json_free(&doc);
}

Test(trace, spans_of_a_predecessor_stay)
{
	struct trace *t = created("worker-0");

	trace_add(t, TRACE_LOAD, 10, 20, 0, 0);
	trace_destroy(&t);
	t = created("worker-0");
	trace_add(t, TRACE_LOAD, 30, 40, 0, 0);
	trace_destroy(&t);
	struct json_doc *doc = merged();
	cr_assert_eq(count_of(doc, "X"), 2);
	json_free(&doc);
}

Test(trace, a_span_that_was_cut_off_is_left_out)
{
	struct trace *t = created("worker-0");

	trace_add(t, TRACE_LOAD, 30, 20, 0, 0);
	trace_add(t, TRACE_LOAD, 0, 20, 0, 0);
	trace_add(t, TRACE_LOAD, 40, 50, 0, 0);
	trace_destroy(&t);
	struct json_doc *doc = merged();
	cr_assert_eq(count_of(doc, "X"), 1);
	json_free(&doc);
}

Test(trace, a_run_without_spans_gives_a_valid_file)
{
	struct trace *t = created("detok");

	trace_destroy(&t);
	struct json_doc *doc = merged();
	cr_assert_eq(count_of(doc, "X"), 0);
	json_free(&doc);
}

Test(trace, errors_name_the_path)
{
	struct trace *t = created("detok");

	trace_destroy(&t);
	cr_assert_eq(trace_write_json(run_dir, "/nowhere/out.json", &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "/nowhere/out.json: No such file"));
	cr_assert_eq(trace_write_json("/nowhere", out_path, &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "/nowhere/trace"));
	cr_assert_eq(trace_create(&t, "/proc/nowhere", "x", &em), ERR_IO);
	cr_assert_null(t);
}
