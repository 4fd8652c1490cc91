/* The commands of client/cli that need no engine: their errors, and the printing of recordings. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ipc/ipc_priv.h"

/* Runs "tercet ARGS" and returns its exit status; what it printed is in `text`. */
static int tercet(const char *args, char *text, size_t bytes)
{
	char command[1024];
	snprintf(command, sizeof(command), TERCET_EXE " %s 2>&1 </dev/null", args);
	FILE *f = popen(command, "r");
	cr_assert_not_null(f);
	size_t n = fread(text, 1, bytes - 1, f);
	text[n] = '\0';
	int status = pclose(f);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(cli, a_wrong_line_is_named_and_exits_with_2)
{
	static const struct {
		const char *args;
		const char *says;
	} cases[] = {
		{"run", "the model is missing"},
		{"run /nonexistent --temperature hot x", "--temperature is \"hot\""},
		{"run /nonexistent x --max-tokens 0", "--max-tokens is \"0\": it must be an integer between 1"},
		{"run /nonexistent x --beam-width 11", "--beam-width is \"11\""},
		{"run /nonexistent x --beam-width 2 --length-penalty 11", "--length-penalty is \"11\""},
		{"run /nonexistent --prompt-ids 1,x", "must be token ids separated by commas"},
		{"run /nonexistent --prompt-ids 1,-2", "must be token ids separated by commas"},
		{"run /nonexistent one two", "unexpected word \"two\""},
		{"run /nonexistent text --prompt-ids 1", "both a prompt and --prompt-ids"},
		{"run /nonexistent x --tmeperature 1", "there is no option --tmeperature"},
		{"chat", "the model is missing"},
		{"chat /nonexistent more", "unexpected word \"more\""},
		{"attach", "--run-dir is missing"},
		{"attach --run-dir /x --client-id zero", "--client-id is \"zero\""},
		{"attach --run-dir /x more", "unexpected word \"more\""},
		{"trace", "tercet trace --messages FILE"},
		{"trace --messages", "tercet trace --messages FILE"},
	};
	for (u32 i = 0; i < COUNT_OF(cases); i++) {
		char text[4096];
		int status = tercet(cases[i].args, text, sizeof(text));
		cr_assert_eq(status, 2, "tercet %s: %d, %s", cases[i].args, status, text);
		cr_assert_not_null(strstr(text, cases[i].says), "tercet %s: %s", cases[i].args, text);
	}
}

Test(cli, what_is_missing_on_the_disk_exits_with_1)
{
	char text[4096];
	cr_assert_eq(tercet("run /nonexistent x", text, sizeof(text)), 1);
	cr_assert_not_null(strstr(text, "/nonexistent"), "%s", text);
	cr_assert_eq(tercet("run --run-dir /nonexistent --prompt-ids 1", text, sizeof(text)), 1);
	cr_assert_not_null(strstr(text, "no engine runs in \"/nonexistent\""), "%s", text);
	cr_assert_eq(tercet("attach --run-dir /nonexistent", text, sizeof(text)), 1);
	cr_assert_not_null(strstr(text, "it has no socket \"tap\""), "%s", text);
	cr_assert_eq(tercet("trace --messages /nonexistent.msgs", text, sizeof(text)), 1);
	cr_assert_not_null(strstr(text, "/nonexistent.msgs"), "%s", text);
	cr_assert_eq(tercet("trace --messages " TERCET_EXE, text, sizeof(text)), 1);
	cr_assert_not_null(strstr(text, "no message recording"), "%s", text);
}

Test(cli, every_command_explains_itself)
{
	static const char *const commands[] = {"run", "chat", "attach", "trace", "bench serve"};
	for (u32 i = 0; i < COUNT_OF(commands); i++) {
		char args[64];
		char text[16384];
		char usage[64];
		snprintf(args, sizeof(args), "%s --help", commands[i]);
		snprintf(usage, sizeof(usage), "usage: tercet %s ", commands[i]);
		cr_assert_eq(tercet(args, text, sizeof(text)), 0);
		cr_assert_eq(strncmp(text, usage, strlen(usage)), 0, "%s", text);
	}
}

static void record(const char *dir, const char *process, u64 id)
{
	struct ipc_recorder *r;
	struct buf frame = {0};
	struct ipc_msg msg = {.type = IPC_TYPE_BYE, .sequence = 2, .bye = {id}};
	cr_assert_eq(ipc_recorder_create(&r, dir, process, "c", NULL), ERR_OK);
	ipc_encode(&msg, &frame);
	ipc_recorder_add(r, true, 0, frame.data, frame.bytes);
	usleep(2000);
	ipc_recorder_add(r, false, 5, "\xc0", 1);
	ipc_recorder_destroy(&r);
	buf_fini(&frame);
}

Test(cli, recordings_of_several_processes_are_printed_in_one_order)
{
	char dir[] = "/tmp/tercet_cli_XXXXXX";
	char args[256];
	char text[4096];
	cr_assert_not_null(mkdtemp(dir));
	record(dir, "b", 7);
	record(dir, "a", 8);
	snprintf(args, sizeof(args), "trace --messages %s/a.c.msgs %s/b.c.msgs", dir, dir);
	cr_assert_eq(tercet(args, text, sizeof(text)), 0, "%s", text);
	const char *first = strstr(text, "BYE n=2 epoch=0 client_id=7\n");
	const char *bad = strstr(text, "<- peer=5 1 bytes unreadable: a message is a MessagePack array, nil was sent\n");
	const char *second = strstr(text, "BYE n=2 epoch=0 client_id=8\n");
	cr_assert(first && bad && second && first < bad && bad < second, "%s", text);
	cr_assert_eq(strncmp(text, "    0.000000 b.c", 16), 0, "%s", text);
	snprintf(args, sizeof(args), "trace --messages --type STEP %s/a.c.msgs", dir);
	cr_assert_eq(tercet(args, text, sizeof(text)), 0);
	cr_assert_str_eq(text, "");
	for (const char *p = "ab"; *p; p++) {
		snprintf(args, sizeof(args), "%s/%c.c.msgs", dir, *p);
		unlink(args);
	}
	rmdir(dir);
}
