/* tercet attach: watches what an engine says. Without a client id it tails the tap, lossy, with the chunks of all
 * clients; with one it takes up that client behind a chunk, without loss. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/cli_session.h"
#include "client/tercet.h"
#include "common/finish.h"
#include "common/json.h"
#include "common/options.h"
#include "ipc/ipc.h"

struct attach {
	const char *run_dir;
	const char *client; /* NULL: the tap */
	uint64_t last_chunk;
	uint64_t chunks_max; /* ends after so many; 0: never */
	bool text_only;
	uint64_t chunks;
	struct buf line;
	struct ipc_loop *loop;
};

static void print_help(void)
{
	cli_print_usage("attach");
	printf("\n  --run-dir DIR              the engine's run directory\n"
	       "  --client-id ID             receive as this client, instead of tailing all; nothing is lost\n"
	       "  --last-chunk N             with --client-id: the highest chunk number that is known already (0)\n"
	       "  --text                     print bare text instead of a JSON line per entry\n"
	       "  --chunks N                 end after N chunks\n");
}

struct entry {
	uint64_t client_id, chunk, req_id;
	uint32_t first, token_count, text_bytes;
	const char *text;
	enum finish_reason finish;
};

static void print_entry(struct attach *a, const struct entry *e)
{
	struct json_writer w;
	if (a->text_only) {
		fwrite(e->text, 1, e->text_bytes, stdout);
		if (e->finish)
			printf("\n");
		fflush(stdout);
		return;
	}
	buf_clear(&a->line);
	json_begin(&w, &a->line);
	json_object_begin(&w);
	json_key(&w, "client_id");
	json_write_uint(&w, e->client_id);
	json_key(&w, "chunk");
	json_write_uint(&w, e->chunk);
	json_key(&w, "req_id");
	json_write_uint(&w, e->req_id);
	json_key(&w, "first_token");
	json_write_uint(&w, e->first);
	json_key(&w, "token_count");
	json_write_uint(&w, e->token_count);
	json_key(&w, "text");
	json_write_string(&w, e->text, e->text_bytes);
	if (e->finish) {
		json_key(&w, "finish_reason");
		json_write_cstr(&w, finish_reason_name(e->finish));
	}
	json_object_end(&w);
	puts(buf_cstr(&a->line));
	fflush(stdout);
}

/* ---------------------------------------------------------------- the tap */

static void on_tap(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	struct attach *a = ctx;
	const struct ipc_chunk *m = &msg->chunk;
	uint64_t text = 0;
	(void)ch;
	(void)from;
	if (msg->type != IPC_TYPE_CHUNK)
		return;
	for (uint32_t i = 0; i < m->req_id_count && i < m->text_bytes_count && i < m->finish_count; i++) {
		if (text + m->text_bytes[i] > m->text_count || i >= m->first_token_count || i >= m->token_count_count)
			break;
		struct entry e = {.client_id = m->client_id,
				  .chunk = m->chunk,
				  .req_id = m->req_id[i],
				  .first = m->first_token[i],
				  .token_count = m->token_count[i],
				  .text = m->text_count ? (const char *)m->text + text : "",
				  .text_bytes = m->text_bytes[i],
				  .finish = m->finish[i] < FINISH_REASON_COUNT ? m->finish[i] : FINISH_ERROR};
		print_entry(a, &e);
		text += m->text_bytes[i];
	}
	if (++a->chunks == a->chunks_max || ferror(stdout))
		ipc_loop_stop(a->loop);
}

static enum err tail_tap(struct attach *a, struct err_msg *em)
{
	char endpoint[256];
	struct ipc_context *ctx = NULL;
	struct ipc_channel *tap = NULL;
	enum err e = ipc_endpoint(endpoint, sizeof(endpoint), a->run_dir, "tap", em);
	if (e == ERR_OK)
		e = ipc_context_create(&ctx, em);
	struct ipc_channel_config config = {
		.name = "tap", .endpoint = endpoint, .pattern = IPC_SUB, .role = IPC_ROLE_CLIENT};
	if (e == ERR_OK)
		e = ipc_channel_open(&tap, ctx, &config, em);
	if (e == ERR_OK)
		e = ipc_loop_create(&a->loop, em);
	if (e == ERR_OK)
		e = ipc_loop_add_channel(a->loop, tap, on_tap, NULL, a);
	if (e == ERR_OK)
		e = ipc_loop_run(a->loop);
	ipc_loop_destroy(&a->loop);
	ipc_channel_close(&tap);
	ipc_context_destroy(&ctx);
	return e;
}

/* ---------------------------------------------------------------- one client */

static enum err follow_client(struct attach *a, uint64_t client_id, struct err_msg *em)
{
	struct tercet *t;
	struct tercet_event event;
	struct tercet_config config = {.run_dir = a->run_dir, .name = "attach", .client_id = client_id,
				       .last_chunk = a->last_chunk, .follow = true};
	enum err e = (enum err)tercet_open(&t, &config, (struct tercet_error *)em);
	if (e != ERR_OK)
		return e;
	uint64_t chunk = a->last_chunk;
	while (e == ERR_OK && !ferror(stdout)) {
		e = (enum err)tercet_wait(t, -1, &event);
		if (e != ERR_OK || event.type == TERCET_EVENT_DETACHED || event.type == TERCET_EVENT_ERROR) {
			e = err_set(em, e != ERR_OK ? e : (enum err)event.code, "%s",
				    e != ERR_OK ? err_text(e) : event.error_text);
			break;
		}
		if (event.type != TERCET_EVENT_OUTPUT)
			continue;
		if (event.chunk != chunk && a->chunks_max && a->chunks++ == a->chunks_max)
			break;
		chunk = event.chunk;
		struct entry entry = {.client_id = client_id,
				      .chunk = event.chunk,
				      .req_id = event.req_id,
				      .first = event.first_token,
				      .token_count = event.token_count,
				      .text = event.text,
				      .text_bytes = event.text_bytes,
				      .finish = (enum finish_reason)event.finish};
		print_entry(a, &entry);
	}
	tercet_leave(&t);
	return e;
}

static enum err read_line(struct attach *a, int argc, char **argv, struct err_msg *em)
{
	long long last = 0;
	long long chunks = 0;
	enum err e = cli_take_text(&argc, argv, "--run-dir", &a->run_dir, em);
	if (e == ERR_OK)
		e = cli_take_text(&argc, argv, "--client-id", &a->client, em);
	if (e == ERR_OK)
		e = cli_take_int(&argc, argv, "--last-chunk", 0, INT64_MAX, &last, em);
	if (e == ERR_OK)
		e = cli_take_int(&argc, argv, "--chunks", 1, INT64_MAX, &chunks, em);
	a->text_only = cli_take_flag(&argc, argv, "--text");
	a->last_chunk = (uint64_t)last;
	a->chunks_max = (uint64_t)chunks;
	if (e != ERR_OK)
		return e;
	if (argc > 1)
		return err_set(em, ERR_INVALID, "unexpected word \"%.100s\" (see --help)", argv[1]);
	if (!a->run_dir)
		a->run_dir = getenv("TERCET_RUN_DIR");
	if (!a->run_dir || !a->run_dir[0])
		return err_set(em, ERR_INVALID, "--run-dir is missing: the run directory of the engine to watch");
	return ERR_OK;
}

int cmd_attach(int argc, char **argv)
{
	struct attach a = {0};
	struct err_msg em = {.text = ""};
	uint64_t client_id = 0;
	if (cli_help_wanted(argc, argv, NULL)) {
		print_help();
		return CLI_OK;
	}
	if (read_line(&a, argc, argv, &em) != ERR_OK)
		return cli_usage_error(&em);
	if (a.client) {
		char *end;
		client_id = strtoull(a.client, &end, 0);
		if (end == a.client || *end || client_id == 0) {
			(void)err_set(&em, ERR_INVALID, "--client-id is \"%.60s\": it must be a number above 0",
				      a.client);
			return cli_usage_error(&em);
		}
	}
	if (cli_find_socket(a.run_dir, a.client ? "output" : "tap", &em) != ERR_OK)
		return cli_fail(&em);
	enum err e = a.client ? follow_client(&a, client_id, &em) : tail_tap(&a, &em);
	buf_fini(&a.line);
	return e == ERR_OK ? CLI_OK : cli_fail(&em);
}
