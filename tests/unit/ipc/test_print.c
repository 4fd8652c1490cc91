/* The one-line form of messages, the generated documentation, recordings. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "random_msg.h"

static char *printed(const struct ipc_msg *msg, bool whole)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&text, &bytes);
	ipc_print(f, msg, whole);
	fclose(f);
	return text;
}

Test(print, a_message_is_one_line_with_its_filled_fields)
{
	u32 ids[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
	struct ipc_msg msg = {.type = IPC_TYPE_ACCEPTED, .sequence = 4, .epoch = 2,
			      .accepted = {.req_id = 7, .seq = 8, .waiting = 9}};
	char *text = printed(&msg, false);
	cr_assert_str_eq(text, "ACCEPTED n=4 epoch=2 req_id=7 seq=8 waiting=9\n");
	free(text);
	struct ipc_msg close = {.type = IPC_TYPE_CLOSE,
				.close = {.seq = 1, .reason = 4, .output_count = 5,
					  .text = (const u8 *)"bad\n\"x\"", .text_count = 7}};
	text = printed(&close, false);
	cr_assert_str_eq(text, "CLOSE n=0 epoch=0 seq=1 reason=4 output_count=5 text=\"bad\\n\\\"x\\\"\"\n");
	free(text);
	struct ipc_msg open = {.type = IPC_TYPE_OPEN, .open = {.eos_ids = ids, .eos_ids_count = 12}};
	text = printed(&open, false);
	cr_assert_not_null(strstr(text, "eos_ids=[1,2,3,4,5,6,7,8]+4 confirm=0\n"));
	free(text);
	text = printed(&open, true);
	cr_assert_not_null(strstr(text, "eos_ids=[1,2,3,4,5,6,7,8,9,10,11,12] confirm=0\n"));
	cr_assert_null(strstr(text, "stop_ids"));
	free(text);
}

Test(print, every_message_prints_one_line)
{
	u64 state = 5;
	for (u32 number = 0; number <= IPC_NUMBER_MAX; number++) {
		if (!ipc_message_info(number))
			continue;
		struct arena a = {0};
		struct ipc_msg msg;
		random_msg(&state, number, 100, &a, &msg);
		char *text = printed(&msg, true);
		cr_assert_eq(strchr(text, '\n'), text + strlen(text) - 1);
		cr_assert_eq(strncmp(text, ipc_type_name(number), strlen(ipc_type_name(number))), 0);
		free(text);
		arena_fini(&a);
	}
}

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	cr_assert_not_null(f, "%s is missing", path);
	char *text = calloc(1, 1 << 20);
	cr_assert_lt(fread(text, 1, (1 << 20) - 1, f), (1 << 20) - 1);
	fclose(f);
	return text;
}

Test(print, messages_md_is_what_the_schema_generates)
{
	char *generated = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&generated, &bytes);
	ipc_print_docs(f);
	fclose(f);
	char *committed = read_file(SOURCE_ROOT "/docs/MESSAGES.md");
	cr_assert(!strcmp(committed, generated), "docs/MESSAGES.md is out of date: run `ninja -C build docs`");
	for (u32 number = 0; number <= IPC_NUMBER_MAX; number++)
		if (ipc_message_info(number)) {
			char heading[64];
			snprintf(heading, sizeof(heading), "## %u %s\n\n*", number, ipc_type_name(number));
			cr_assert_not_null(strstr(generated, heading), "%s has no purpose in print.c", heading);
		}
	free(generated);
	free(committed);
}

Test(print, protocol_md_and_the_python_example_hold_the_generated_parts)
{
	char *part = NULL;
	size_t bytes = 0;
	char line[64];
	FILE *f = open_memstream(&part, &bytes);
	ipc_print_client_docs(f);
	fclose(f);
	char *protocol = read_file(SOURCE_ROOT "/docs/PROTOCOL.md");
	cr_assert(strstr(protocol, part) != NULL, "docs/PROTOCOL.md is out of date: run `ninja -C build docs`");
	char *example = read_file(SOURCE_ROOT "/examples/attach.py");
	snprintf(line, sizeof(line), "VERSION, SCHEMA_HASH = %d, 0x%016llx\n", IPC_PROTOCOL_VERSION,
		 (unsigned long long)ipc_schema_hash());
	cr_assert(strstr(example, line) != NULL, "examples/attach.py is out of date: run `ninja -C build docs`");
	free(part);
	free(protocol);
	free(example);
}

Test(print, recordings_read_back_and_a_cut_one_is_named)
{
	char dir[] = "/tmp/tercet_record_XXXXXX";
	cr_assert_not_null(mkdtemp(dir));
	struct ipc_recorder *r;
	cr_assert_eq(ipc_recorder_create(&r, dir, "worker-0", "step", NULL), ERR_OK);
	ipc_recorder_add(r, true, 3, "abc", 3);
	ipc_recorder_add(r, false, 4, "defgh", 5);
	ipc_recorder_destroy(&r);
	char path[256];
	snprintf(path, sizeof(path), "%s/worker-0.step.msgs", dir);
	FILE *f = fopen(path, "rb");
	cr_assert_not_null(f);
	struct ipc_record head;
	struct buf frame = {0};
	cr_assert_eq(ipc_record_begin(f, NULL), ERR_OK);
	cr_assert_eq(ipc_record_read(f, &head, &frame, NULL), ERR_OK);
	cr_assert(head.sent == 1 && head.peer == 3 && frame.bytes == 3 && !memcmp(frame.data, "abc", 3));
	cr_assert_eq(ipc_record_read(f, &head, &frame, NULL), ERR_OK);
	cr_assert(head.sent == 0 && head.peer == 4 && head.time_ns > 0 && frame.bytes == 5);
	cr_assert_eq(ipc_record_read(f, &head, &frame, NULL), ERR_AGAIN);
	fclose(f);
	cr_assert_eq(truncate(path, 50), 0);
	f = fopen(path, "rb");
	cr_assert_eq(ipc_record_begin(f, NULL), ERR_OK);
	cr_assert_eq(ipc_record_read(f, &head, &frame, NULL), ERR_OK);
	cr_assert_eq(ipc_record_read(f, &head, &frame, NULL), ERR_FORMAT);
	fclose(f);
	buf_fini(&frame);
	unlink(path);
	struct err_msg em;
	cr_assert_eq(ipc_recorder_create(&r, "/nonexistent", "p", "c", &em), ERR_IO);
	cr_assert_not_null(strstr(em.text, "/nonexistent/p.c.msgs"));
	rmdir(dir);
}
