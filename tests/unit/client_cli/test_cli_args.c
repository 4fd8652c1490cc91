#include <criterion/criterion.h>
#include <string.h>

#include "client/cli/cli.h"

static char *argv[16];
static int argc;
static struct err_msg em;

#define LINE(...) set_line((const char *[]){"run", __VA_ARGS__, NULL})

static void set_line(const char **words)
{
	argc = 0;
	while (words[argc] != NULL) {
		argv[argc] = (char *)(size_t)words[argc];
		argc++;
	}
	argv[argc] = NULL;
}

static void line_is(const char *expected)
{
	char text[256] = "";

	for (int i = 1; i < argc; i++) {
		strcat(text, i > 1 ? " " : "");
		strcat(text, argv[i]);
	}
	cr_assert_str_eq(text, expected);
	cr_assert_null(argv[argc]);
}

Test(cli_args, flags_are_taken_out)
{
	LINE("a", "--json", "b", "--json");
	cr_assert(cli_take_flag(&argc, argv, "--json"));
	line_is("a b");
	cr_assert_not(cli_take_flag(&argc, argv, "--json"));
}

Test(cli_args, nothing_behind_two_dashes_is_taken)
{
	const char *value = NULL;

	LINE("--", "--json", "--n", "3");
	cr_assert_not(cli_take_flag(&argc, argv, "--json"));
	cr_assert_eq(cli_take_text(&argc, argv, "--n", &value, &em), ERR_OK);
	cr_assert_null(value);
	cr_assert_not(cli_help_wanted(argc, argv, NULL));
	line_is("-- --json --n 3");
}

Test(cli_args, values_are_taken_in_both_forms_and_the_last_wins)
{
	const char *value = "default";

	LINE("--out=x", "m", "--out", "y", "--output=z");
	cr_assert_eq(cli_take_text(&argc, argv, "--out", &value, &em), ERR_OK);
	cr_assert_str_eq(value, "y");
	line_is("m --output=z");
}

Test(cli_args, a_missing_value_is_an_error)
{
	const char *value = NULL;

	LINE("m", "--out");
	cr_assert_eq(cli_take_text(&argc, argv, "--out", &value, &em), ERR_INVALID);
	cr_assert_str_eq(em.text, "--out needs a value");
}

Test(cli_args, numbers_are_checked)
{
	long long n = 8;
	double x = 0.5;

	LINE("--n=12", "--x", "1.5");
	cr_assert_eq(cli_take_int(&argc, argv, "--n", 1, 100, &n, &em), ERR_OK);
	cr_assert_eq(n, 12);
	cr_assert_eq(cli_take_real(&argc, argv, "--x", 0, 2, &x, &em), ERR_OK);
	cr_assert_eq(x, 1.5);
	cr_assert_eq(argc, 1);
	LINE("--n", "0");
	cr_assert_eq(cli_take_int(&argc, argv, "--n", 1, 100, &n, &em), ERR_INVALID);
	cr_assert_str_eq(em.text, "--n is \"0\": it must be an integer between 1 and 100");
	LINE("--n=1x");
	cr_assert_eq(cli_take_int(&argc, argv, "--n", 1, 100, &n, &em), ERR_INVALID);
	LINE("--x=nan");
	cr_assert_eq(cli_take_real(&argc, argv, "--x", 0, 2, &x, &em), ERR_INVALID);
	cr_assert_eq(n, 12);
}

Test(cli_args, words_are_taken_in_order)
{
	LINE("--flag", "model", "the prompt", "-");
	cr_assert_str_eq(cli_take_word(&argc, argv), "model");
	cr_assert_str_eq(cli_take_word(&argc, argv), "the prompt");
	cr_assert_str_eq(cli_take_word(&argc, argv), "-");
	cr_assert_null(cli_take_word(&argc, argv));
	line_is("--flag");
	LINE("--", "--prompt");
	cr_assert_str_eq(cli_take_word(&argc, argv), "--prompt");
	cr_assert_null(cli_take_word(&argc, argv));
}

Test(cli_args, help_may_name_a_group)
{
	const char *group = "x";

	LINE("m", "-h");
	cr_assert(cli_help_wanted(argc, argv, &group));
	cr_assert_null(group);
	LINE("--help=server");
	cr_assert(cli_help_wanted(argc, argv, &group));
	cr_assert_str_eq(group, "server");
	LINE("--helper");
	cr_assert_not(cli_help_wanted(argc, argv, &group));
}
