#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"

/* What `fn` writes to stderr. */
static const char *captured(void (*fn)(void))
{
	static char text[8192];
	int pipe_fds[2], saved = dup(STDERR_FILENO);

	cr_assert_eq(pipe(pipe_fds), 0);
	dup2(pipe_fds[1], STDERR_FILENO);
	fn();
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(pipe_fds[1]);
	ssize_t n = read(pipe_fds[0], text, sizeof(text) - 1);
	close(pipe_fds[0]);
	text[n > 0 ? n : 0] = '\0';
	return text;
}

static void log_text(void)
{
	log_init("worker-0", LOG_LEVEL_INFO, false);
	LOG_DEBUG("HIDDEN", "a=1");
	LOG_INFO("SHOWN", "a=%d b=\"two words\"", 1);
}

Test(log, text_line_has_time_process_level_event_and_pairs)
{
	const char *line = captured(log_text);

	cr_assert_eq(line[4], '-');
	cr_assert_eq(line[10], 'T');
	cr_assert_not_null(strstr(line, "Z worker-0 info SHOWN a=1 b=\"two words\"\n"), "%s", line);
	cr_assert_null(strstr(line, "HIDDEN"));
}

static void log_newline(void)
{
	log_init("p", LOG_LEVEL_INFO, false);
	LOG_WARN("FORGED", "text=\"a\n2026 p info FAKE\x1b[31m\"");
}

Test(log, control_characters_cannot_forge_a_line)
{
	const char *line = captured(log_newline);

	cr_assert_eq(strchr(line, '\n'), line + strlen(line) - 1);
	cr_assert_null(strchr(line, '\x1b'));
}

static void log_long(void)
{
	char text[5000];

	memset(text, 'z', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_init("p", LOG_LEVEL_INFO, false);
	LOG_INFO("LONG", "v=%s", text);
}

Test(log, long_lines_are_cut_and_end_in_a_newline)
{
	const char *line = captured(log_long);

	cr_assert_leq(strlen(line), 2000);
	cr_assert_gt(strlen(line), 1900);
	cr_assert_eq(line[strlen(line) - 1], '\n');
}

static void log_json(void)
{
	log_init("detok", LOG_LEVEL_DEBUG, true);
	LOG_ERROR("BROKEN", "path=\"/a b/\\c\" n=3 bare");
	LOG_INFO("NUMBERS", "a=-1 b=0.25 c=0 d=18446744073709551615 e=01 f=1.2.3 g=\"7\" h=1e9 i=- j=");
}

Test(log, json_lines_carry_the_pairs_as_members)
{
	const char *line = captured(log_json);

	cr_assert_not_null(strstr(line, "\"process\":\"detok\",\"level\":\"error\",\"event\":\"BROKEN\""),
			   "%s", line);
	cr_assert_not_null(strstr(line, "\"path\":\"/a b/\\\\c\",\"n\":3,\"text\":\"bare\"}\n"), "%s", line);
}

Test(log, json_numbers_are_numbers_unless_a_float_would_change_them)
{
	const char *line = captured(log_json);

	cr_assert_not_null(strstr(line, "\"a\":-1,\"b\":0.25,\"c\":0,\"d\":\"18446744073709551615\",\"e\":\"01\","
					"\"f\":\"1.2.3\",\"g\":\"7\",\"h\":\"1e9\",\"i\":\"-\",\"j\":\"\"}\n"),
			   "%s", line);
}

static void log_bytes(void)
{
	log_init("p", LOG_LEVEL_INFO, true);
	LOG_INFO("BYTES", "v=\"\xff" "a\xc3\xa9\xe2\x82\"");
}

Test(log, bytes_that_are_no_text_do_not_break_a_line)
{
	const char *line = captured(log_bytes);

	cr_assert_not_null(strstr(line, "\"v\":\"?a\xc3\xa9??\"}\n"), "%s", line);
}

static void log_long_json(void)
{
	char text[5000];

	memset(text, '"', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_init("p", LOG_LEVEL_INFO, true);
	LOG_INFO("LONG", "v=%s", text);
}

Test(log, long_json_lines_stay_closed)
{
	const char *line = captured(log_long_json);

	cr_assert_leq(strlen(line), 2000);
	cr_assert_str_eq(line + strlen(line) - 3, "\"}\n");
}
