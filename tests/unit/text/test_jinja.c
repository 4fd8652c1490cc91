/* The template language: where errors point to, and where a rendering ends. That it renders as Jinja does is checked by
 * test_templates and jinja_differential.py. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/text.h"

static struct err_msg em;
static struct buf out;

static enum err render_as(const char *source, const char *variables, bool from_client)
{
	struct chat_template *t = NULL;
	struct json_doc *doc = NULL;
	buf_clear(&out);
	em.text[0] = '\0';
	cr_assert(json_parse(&doc, variables, strlen(variables), &em) == ERR_OK);
	struct chat_request r = {.kwargs = json_root(doc), .now_s = 1736944496, .template_from_client = from_client};
	enum err e = chat_template_parse(&t, source, strlen(source), &em);
	if (e == ERR_OK)
		e = chat_template_render(t, &r, &out, &em);
	chat_template_free(&t);
	json_free(&doc);
	return e;
}

static void renders(const char *source, const char *wanted)
{
	cr_assert(render_as(source, "{\"s\":\"ab\",\"l\":[1,2],\"d\":{\"k\":null}}", false) == ERR_OK, "%s: %s", source, em.text);
	cr_assert_str_eq(buf_cstr(&out), wanted, "%s: \"%s\"", source, buf_cstr(&out));
}

static void fails(const char *source, enum err wanted, const char *text)
{
	cr_assert_eq(render_as(source, "{\"s\":\"ab\",\"l\":[1,2],\"d\":{\"k\":null}}", false), wanted, "%s: %s", source, em.text);
	cr_assert(strstr(em.text, text) != NULL, "%s: \"%s\" lacks \"%s\"", source, em.text, text);
}

struct failing {
	const char *source;
	const char *text;
};

Test(jinja, sources_that_are_no_templates_say_where)
{
	static const struct failing cases[] = {
		{"{{ 'a }}", "line 1, column 4: "},
		{"a\n{{ 1 ? 2 }}", "line 2, column 6: "},
		{"{% if x %}", "line 1, column 11: unexpected end of template: 'if' of line 1 is not closed"},
		{"\n\n{% endif %}", "line 3, column 4: "},
		{"{% for x of y %}{% endfor %}", "line 1, column 10: "},
		{"{{ (1, 2 }}", "line 1, column 10: "},
		{"{# never ends", "line 1, column 1: "},
		{"{% raw %} x", "line 1, column 10: missing end of raw"},
		{"{{ x | nope }}", "line 1, column 8: "},
		{"{{ x is nope }}", "line 1, column 9: "},
		{"{% set 1 = 2 %}", "line 1, column 8: "},
		{"{% break %}", "'break' outside loop"},
		{"{% include 'a' %}", "'include' needs another template"},
		{"{% frobnicate %}", "unknown tag 'frobnicate'"},
		{"{% autoescape true %}{% endautoescape %}", "autoescape can only be false"},
		{"{% macro m(a=1, b) %}{% endmacro %}", "line 1, column 18: non-default argument"},
		{"{{ f(a=1, 2) }}", "line 1, column 11: "},
		{"{% for x in l %}{% else %}{% else %}{% endfor %}", "line 1, column 30: unknown tag 'else'"},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++)
		fails(cases[i].source, ERR_FORMAT, cases[i].text);
}

Test(jinja, errors_of_a_rendering_say_where)
{
	static const struct failing cases[] = {
		{"a\n  {{ nope.x }}", "line 2, column 10: 'nope' is undefined"},
		{"{{ s + 1 }}", "line 1, column 6: can only concatenate str (not \"int\") to str"},
		{"{{ 1 / 0 }}", "division by zero"},
		{"{{ l[0]() }}", "'int' object is not callable"},
		{"{{ d.k.x.y }}", "has no attribute 'x'"},
		{"{{ [] | first | upper }}{{ 1 < 'a' }}", "'<' not supported between instances of 'int' and 'str'"},
		{"{{ {[1]: 2} }}", "unhashable type: 'list'"},
		{"{{ l.append(3) }}", "line 1, column 12: access to attribute 'append' of 'list' object is unsafe"},
		{"{{ ''.__class__.x }}", "line 1, column 16: 'str object' has no attribute '__class__'"},
		{"{{ 9223372036854775807 + 1 }}", "an integer does not fit 64 bits"},
		{"{{ l | random }}", "random is not supported"},
		{"{% for a, b in l %}{% endfor %}", "line 1, column 16: 'int' object is not iterable"},
		{"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "macro 'm' takes not more than 1 argument(s)"},
		{"{{ l | tojson(indent='x', nope=1) }}", "unexpected keyword argument 'nope'"},
		{"{{ range(1000000000) }}", "line 1, column 9: Range too big"},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++)
		fails(cases[i].source, ERR_INVALID, cases[i].text);
	fails("{{ raise_exception('only this') }}", ERR_INVALID, "only this");
	cr_assert_str_eq(em.text, "only this", "a template's own exception has no position");
}

Test(jinja, nothing_runs_without_end)
{
	static const char *const sources[] = {
		"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
		"{{ 'x' * 1000000000000 }}",
		"{{ ('x' * 800000) | replace('x', 'y' * 110) | length }}",
		"{{ ['x' * 8000000] * 1000 | join }}{{ ([('x' * 8000000)] * 1000) | join }}",
		"{{ 'y'.join([('x' * 8000000)] * 1000) }}",
		"{{ ([('x' * 8000000)] * 1000) | tojson }}",
		"{% set s = 'x' * 8000000 %}{% for i in range(100000) %}{{ s | upper | length }}{% endfor %}",
		"{% set s = 'x' * 8000000 %}{% for i in range(100000) %}{% if s == s %}{% endif %}{% endfor %}",
		"{% set s = '\xc3\xa9' * 4000000 %}{% for i in range(100000) %}{{ s[3000000] }}{% endfor %}",
		"{% set s = 'x' * 8000000 %}{{ s.rfind('x' * 4000000 + 'y' + 'x') }}{{ s.rsplit('x' * 4000000 + 'y', 1) | length }}"
		"{% for i in range(100000) %}{{ s.rfind('x' * 4000000) }}{% endfor %}",
		"{% set s = 'a' * 4000000 %}{% for i in range(1000) %}{{ s.strip('b' * 400000 + 'a') }}{% endfor %}",
		"{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(100) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}"
		"{% endfor %}{{ ns.a == ns.b }}",
		"{% set ns = namespace(a=(1,)) %}{% for i in range(100) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}{{ {ns.a: 1} }}",
		"{% set ns = namespace(a=[1]) %}{% for i in range(100) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a | pprint }}",
		"{% set ns = namespace() %}{% set ns.a = [ns, ns] %}{{ ns }}",
		"{{ [] | slice(10000000000) | list }}",
		"{{ [1] | batch(10000000000, 0) | list }}",
		"{{ 'x' | center(100000000000) }}{{ '%0999999999d' | format(1) }}",
		"{% for i in range(100000) %}{% set x %}{{ 'x' * 8000000 }}{% endset %}{% endfor %}",
		"{% set s = 'x ' * 4000000 %}{% for i in range(100) %}{{ s | wordwrap(5) | length }}{{ s | urlize | length }}{% endfor %}",
		"{{ ('{:99999}' * 1000000).format(*range(100)) }}",
	};
	/* with the operator's limits the same takes longer: a few show that it ends, too */
	for (size_t i = 0; i < COUNT_OF(sources) + 6; i++) {
		struct timespec begin, end;
		const char *source = sources[i % COUNT_OF(sources)];
		bool from_client = i < COUNT_OF(sources);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
		enum err e = render_as(source, "{}", from_client);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
		cr_assert(e == ERR_INVALID || !from_client, "%s: %s", source, err_text(e));
		fprintf(stderr, "%5.0f ms  %.60s: %s\n",
			(double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6, source,
			e == ERR_OK ? "renders" : em.text);
	}
}

Test(jinja, deep_nesting_is_refused_not_survived_by_luck)
{
	struct buf source = {0};
	for (int i = 0; i < 5000; i++)
		buf_append_char(&source, '(');
	buf_printf(&source, " }}");
	struct buf whole = {0};
	buf_printf(&whole, "{{ %s", buf_cstr(&source));
	cr_assert_eq(render_as(buf_cstr(&whole), "{}", false), ERR_FORMAT);
	buf_clear(&whole);
	for (int i = 0; i < 5000; i++)
		buf_append_str(&whole, "{% if 1 %}");
	cr_assert_eq(render_as(buf_cstr(&whole), "{}", false), ERR_FORMAT);
	buf_fini(&source);
	buf_fini(&whole);
}

/* Names of members meet in a table: those that were chosen to collide cost steps. */
Test(jinja, limits_of_the_operator_leave_room_for_long_prompts)
{
	struct buf variables = {0};
	buf_append_str(&variables, "{\"m\":[");
	for (int i = 0; i < 2000; i++) {
		buf_printf(&variables, "%s{\"role\":\"user\",\"content\":\"", i > 0 ? "," : "");
		for (int k = 0; k < 100; k++)
			buf_append_str(&variables, " some words");
		buf_append_str(&variables, "\"}");
	}
	buf_append_str(&variables, "]}");
	cr_assert(render_as("{% for x in m %}{{ '<' + x.role + '>' + x.content | trim | replace('some', 'any') }}{% endfor %}",
			    buf_cstr(&variables), true) == ERR_OK, "%s", em.text);
	cr_assert(out.bytes > 1000000);
	buf_fini(&variables);
}

Test(jinja, undefined_is_what_jinja_makes_of_it)
{
	renders("[{{ nope }}]", "[]");
	renders("{{ nope is defined }}{{ d.nope is undefined }}{{ d['x'] is defined }}", "FalseTrueFalse");
	renders("{{ nope | default('x') }}{{ d.k | default('y', true) }}{{ (nope or 'z') }}", "xyz");
	renders("{% for x in nope %}a{% else %}b{% endfor %}{{ nope | length }}", "b0");
	renders("{{ nope == none }}{{ not nope }}", "FalseTrue");
}

Test(jinja, white_space_goes_as_transformers_has_it)
{
	renders("{% if 1 %}\n  a\n  {% endif %}\n b", "  a\n b");
	renders("a {%- if 1 -%} b {%- endif %} c", "ab c");
	renders("  {%+ if 1 %}x{% endif +%}\n\n", "  x\n");
	renders("{# c #}\n{{ 1 }}\n", "1");
	renders("{% generation %}x{% endgeneration %}", "x");
	renders("{% autoescape false %}{{ '<' }}{% endautoescape %}", "<");
}

Test(jinja, filters_that_lay_out_and_mark_up)
{
	renders("{{ 'the quick brown fox' | wordwrap(10) }}", "the quick\nbrown fox");
	renders("{{ 'abcdefgh ij' | wordwrap(3, false) }}", "abcdefgh\nij");
	renders("{{ '<p>a <b>b</b></p> &amp; c' | striptags }}", "a b & c");
	renders("{{ {'class': 'x', 'id': none, 'n': 1} | xmlattr }}", " class=\"x\" n=\"1\"");
	renders("{{ 'see www.x.org.' | urlize }}", "see <a href=\"https://www.x.org\" rel=\"noopener\">www.x.org</a>.");
	renders("{{ {'b': 1, 'a': [2]} | pprint }}", "{'a': [2], 'b': 1}");
}
