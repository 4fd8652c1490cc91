/* Options as they are written: for a child, as help, man page and completions, and as YAML. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/options.h"
#include "tests/unit/common/options_fixture.h"

TestSuite(options_print, .init = set_up, .fini = tear_down);

Test(options_print, arguments_for_a_child_give_the_same_options)
{
	struct buf args = {0};
	char child_name[] = "child", *argv[64] = {child_name};
	int argc = 1;
	struct options child;

	cr_assert_eq(READ("a b", "--port=1", "--no-enable-prefix-caching", "--gpu-memory-utilization",
			  "0.123456789", "--dtype=bfloat16", "--served-model-name=x,y", "--api-key=hush",
			  "--kv-cache-memory=3g"),
		     ERR_OK);
	options_to_args(&o, &args);
	for (size_t i = 0; i < args.bytes; i += strlen(args.data + i) + 1) {
		argv[argc++] = args.data + i;
		cr_assert_null(strstr(argv[argc - 1], "hush"));
		cr_assert_null(strstr(argv[argc - 1], "--host"));
	}
	cr_assert_eq(options_init(&child), ERR_OK);
	cr_assert_eq(options_read_args(&child, argc, argv, &em), ERR_OK, "%s", em.text);
	cr_assert_str_eq(child.model, "a b");
	cr_assert_eq(child.port, 1);
	cr_assert_not(child.enable_prefix_caching);
	cr_assert_eq(child.gpu_memory_utilization, 0.123456789);
	cr_assert_eq(child.dtype, OPTION_DTYPE_BFLOAT16);
	cr_assert_eq(child.served_model_name.count, 2);
	cr_assert_eq(child.api_key.count, 0);
	cr_assert_eq(child.kv_cache_memory, 3ull << 30);
	options_fini(&child);
	buf_fini(&args);
}

/* What `print` writes, as a string. */
static char *printed(void (*print)(FILE *))
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);

	print(f);
	fclose(f);
	return text;
}

static void print_help(FILE *f)
{
	options_help(f, NULL);
}

Test(options_print, help_shows_every_option_within_the_width)
{
	char *text = printed(print_help);

#define SHOWN(name)                                                     \
	do {                                                            \
		char dashed[64] = #name;                                \
		for (char *p = dashed; *p != '\0'; p++)                 \
			if (*p == '_')                                  \
				*p = '-';                               \
		cr_assert_not_null(strstr(text, dashed), "%s", dashed); \
	} while (0);
#define SHOWN_STR(g, n, d, h)	     SHOWN(n)
#define SHOWN_INT(g, n, d, a, b, h)  SHOWN(n)
#define SHOWN_SIZE(g, n, d, a, h)    SHOWN(n)
#define SHOWN_REAL(g, n, d, a, b, h) SHOWN(n)
#define SHOWN_FLAG(g, n, d, h)	     SHOWN(n)
#define SHOWN_ENUM(g, n, d, c, h)    SHOWN(n)
#define SHOWN_LIST(g, n, h)	     SHOWN(n)
	OPTIONS(SHOWN_STR, SHOWN_INT, SHOWN_SIZE, SHOWN_REAL, SHOWN_FLAG, SHOWN_ENUM, SHOWN_LIST)
	for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
		cr_assert_leq(strlen(line), 110, "%s", line);
	free(text);
}

static void print_group(FILE *f)
{
	options_help(f, "server");
}

static void print_no_group(FILE *f)
{
	options_help(f, "nonsense");
}

Test(options_print, help_of_a_group_shows_only_that_group)
{
	char *text = printed(print_group);

	cr_assert_not_null(strstr(text, "--port N"));
	cr_assert_not_null(strstr(text, "(default: 8000)"));
	cr_assert_null(strstr(text, "--block-size"));
	free(text);
	text = printed(print_no_group);
	cr_assert_not_null(strstr(text, "no group of options \"nonsense\""));
	cr_assert_not_null(strstr(text, "scheduler"));
	free(text);
}

Test(options_print, man_page_escapes_dashes)
{
	char *text = printed(options_man);

	cr_assert_not_null(strstr(text, "\\fB\\-\\-max\\-model\\-len\\fR \\fIN\\fR"));
	cr_assert_not_null(strstr(text, "\\fB\\-\\-[no\\-]enable\\-prefix\\-caching\\fR"));
	cr_assert_not_null(strstr(text, ".SH ENVIRONMENT"));
	free(text);
}

static const char *const commands[] = {"serve", "run", NULL};

static void print_bash(FILE *f)
{
	cr_assert_eq(options_completion(f, "bash", commands, &em), ERR_OK);
}

static void print_zsh(FILE *f)
{
	cr_assert_eq(options_completion(f, "zsh", commands, &em), ERR_OK);
}

static void print_fish(FILE *f)
{
	cr_assert_eq(options_completion(f, "fish", commands, &em), ERR_OK);
}

Test(options_print, completions_name_commands_options_and_choices)
{
	void (*prints[])(FILE *) = {print_bash, print_zsh, print_fish};

	for (size_t i = 0; i < COUNT_OF(prints); i++) {
		char *text = printed(prints[i]);
		cr_assert_not_null(strstr(text, "serve"));
		cr_assert_not_null(strstr(text, "max-num-batched-tokens"));
		cr_assert_not_null(strstr(text, "no-enable-prefix-caching"));
		cr_assert_not_null(strstr(text, "auto bfloat16 float32"));
		free(text);
	}
	cr_assert_eq(options_completion(stdout, "tcsh", commands, &em), ERR_UNSUPPORTED);
	says("bash, zsh or fish");
}

Test(options_print, bash_completion_works_in_bash)
{
	char *text = printed(print_bash);
	FILE *f = popen("bash -s", "w");

	if (f == NULL || access("/bin/bash", X_OK) != 0)
		cr_skip_test("no bash here");
	fprintf(f,
		"set -e\n%s\n"
		"COMP_WORDS=(tercet se); COMP_CWORD=1; _tercet; [ \"${COMPREPLY[*]}\" = serve ]\n"
		"COMP_WORDS=(tercet serve --max-num-s); COMP_CWORD=2; _tercet; "
		"[ \"${COMPREPLY[*]}\" = --max-num-seqs ]\n"
		"COMP_WORDS=(tercet serve --dtype b); COMP_CWORD=3; _tercet; [ \"${COMPREPLY[*]}\" = "
		"bfloat16 ]\n",
		text);
	cr_assert_eq(pclose(f), 0);
	free(text);
}

static void print_in_force(FILE *f)
{
	options_print_yaml(f, &o);
}

Test(options_print, yaml_in_force_reads_back_and_hides_keys)
{
	struct options back;

	cr_assert_eq(READ("dir \"x\"", "--port=77", "--no-enable-prefix-caching", "--served-model-name=p,q",
			  "--api-key=hush", "--dtype=float32", "--output-retention=8192"),
		     ERR_OK);
	char *text = printed(print_in_force);
	cr_assert_null(strstr(text, "hush"));
	cr_assert_eq(options_init(&back), ERR_OK);
	cr_assert_eq(options_read_yaml(&back, yaml(text), &em), ERR_OK, "%s", em.text);
	cr_assert_str_eq(back.model, "dir \"x\"");
	cr_assert_eq(back.port, 77);
	cr_assert_not(back.enable_prefix_caching);
	cr_assert_eq(back.served_model_name.count, 2);
	cr_assert_eq(back.dtype, OPTION_DTYPE_FLOAT32);
	cr_assert_eq(back.output_retention, 8192);
	options_fini(&back);
	free(text);
}
