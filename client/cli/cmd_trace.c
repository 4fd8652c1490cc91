/* tercet trace --messages: prints recordings (--trace-messages) as text, those of several processes in one order. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/cli/cli.h"
#include "ipc/ipc.h"

enum { FILES_MAX = 64 };

/* One recording, with its next record read ahead. */
struct recording {
	FILE *file; /* NULL: at its end */
	const char *name;
	struct ipc_record head;
	struct buf frame;
};

static void print_help(void)
{
	cli_print_usage("trace");
	printf("\nFILE is a recording that a process wrote with --trace-messages DIR. Messages of all files are ordered "
	       "by time.\n\n"
	       "  --whole                    print long arrays whole\n"
	       "  --type NAME                only messages of this type (STEP, CHUNK, ...)\n");
}

static enum err read_ahead(struct recording *r, struct err_msg *em)
{
	enum err e = ipc_record_read(r->file, &r->head, &r->frame, em);
	if (e == ERR_OK)
		return ERR_OK;
	fclose(r->file);
	r->file = NULL;
	if (e == ERR_AGAIN)
		return ERR_OK;
	err_prefix(em, "%s", r->name);
	return e;
}

static enum err open_recording(struct recording *r, const char *path, struct err_msg *em)
{
	const char *slash = strrchr(path, '/');
	r->name = slash ? slash + 1 : path;
	r->file = fopen(path, "rbe");
	if (!r->file)
		return err_set(em, ERR_IO, "cannot read '%s'", path);
	enum err e = ipc_record_begin(r->file, em);
	if (e != ERR_OK) {
		err_prefix(em, "%s", path);
		return e;
	}
	return read_ahead(r, em);
}

static enum err check_type(const char *type, struct err_msg *em)
{
	struct buf all = {0};
#define CHECK_ROW(number, NAME, name) \
	if (strcasecmp(type, #NAME) == 0) \
		goto found; \
	buf_printf(&all, " %s", #NAME);
	IPC_MESSAGES(CHECK_ROW)
#undef CHECK_ROW
	enum err e = err_set(em, ERR_INVALID, "--type %.60s: there is no such message; it must be one of%s", type,
			     buf_cstr(&all));
	buf_fini(&all);
	return e;
found:
	buf_fini(&all);
	return ERR_OK;
}

static struct recording *earliest(struct recording *rs, int count)
{
	struct recording *found = NULL;
	for (int i = 0; i < count; i++)
		if (rs[i].file && (!found || rs[i].head.time_ns < found->head.time_ns))
			found = &rs[i];
	return found;
}

static void print_record(const struct recording *r, uint64_t begin_ns, struct ipc_scratch *scratch, bool whole,
			 const char *type)
{
	struct ipc_msg msg;
	struct err_msg em;
	enum err e = ipc_decode(r->frame.data, r->frame.bytes, scratch, &msg, &em);
	if (type && (e != ERR_OK || strcasecmp(type, ipc_type_name(msg.type)) != 0))
		return;
	size_t name_bytes = strlen(r->name);
	if (name_bytes > 5 && strcmp(r->name + name_bytes - 5, ".msgs") == 0)
		name_bytes -= 5;
	printf("%12.6f %-20.*s %s", (double)(r->head.time_ns - begin_ns) / 1e9, (int)name_bytes, r->name,
	       r->head.sent ? "->" : "<-");
	if (r->head.peer)
		printf(" peer=%" PRIu64, r->head.peer);
	printf(" %u bytes ", r->head.bytes);
	if (e == ERR_OK)
		ipc_print(stdout, &msg, whole);
	else
		printf("unreadable: %s\n", em.text);
}

static enum err print_all(struct recording *rs, int count, bool whole, const char *type, struct err_msg *em)
{
	struct ipc_scratch scratch = {0};
	struct recording *r = earliest(rs, count);
	uint64_t begin_ns = r ? r->head.time_ns : 0;
	enum err e = ERR_OK;
	for (; r && e == ERR_OK; r = earliest(rs, count)) {
		print_record(r, begin_ns, &scratch, whole, type);
		e = read_ahead(r, em);
	}
	ipc_scratch_fini(&scratch);
	return e;
}

int cmd_trace(int argc, char **argv)
{
	struct recording rs[FILES_MAX] = {0};
	struct err_msg em = {.text = ""};
	const char *type = NULL;
	int count = 0;
	if (cli_help_wanted(argc, argv, NULL)) {
		print_help();
		return CLI_OK;
	}
	bool messages = cli_take_flag(&argc, argv, "--messages");
	bool whole = cli_take_flag(&argc, argv, "--whole");
	enum err e = cli_take_text(&argc, argv, "--type", &type, &em);
	if (e == ERR_OK && (!messages || argc < 2))
		e = err_set(&em, ERR_INVALID, "tercet trace --messages FILE... prints recordings (see --help)");
	if (e == ERR_OK && argc - 1 > FILES_MAX)
		e = err_set(&em, ERR_INVALID, "%d files, at most %d can be merged", argc - 1, FILES_MAX);
	if (e == ERR_OK && type)
		e = check_type(type, &em);
	if (e != ERR_OK)
		return cli_usage_error(&em);
	for (; e == ERR_OK && count < argc - 1; count++)
		e = open_recording(&rs[count], argv[count + 1], &em);
	if (e == ERR_OK)
		e = print_all(rs, count, whole, type, &em);
	for (int i = 0; i < count; i++) {
		if (rs[i].file)
			fclose(rs[i].file);
		buf_fini(&rs[i].frame);
	}
	return e == ERR_OK ? CLI_OK : cli_fail(&em);
}
