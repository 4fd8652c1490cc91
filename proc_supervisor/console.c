/* Output of `tercet serve` for people. The banner goes to stdout, everything else to stderr. */
#include "proc_supervisor/console.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"

enum { BAR_CELLS = 30, REDRAW_NS = 50000000, LOG_LINE_NS = 500000000 };

void console_init(struct console *c, bool quiet, bool json)
{
	*c = (struct console){.quiet = quiet, .last_tenth = -1};
	c->terminal = !quiet && !json && isatty(STDERR_FILENO);
}

void console_progress(struct console *c, double share, const char *what, u64 now_ns)
{
	int tenth = (int)(share * 10);

	if (c->quiet)
		return;
	if (c->drawn_ns == 0)
		c->drawn_ns = now_ns; /* what is loaded at once needs no report */
	if (!c->terminal) {
		if (tenth <= c->last_tenth || now_ns - c->drawn_ns < LOG_LINE_NS)
			return;
		LOG_INFO("LOADING", "percent=%d what=\"%s\"", tenth * 10, what);
		c->last_tenth = tenth;
		c->drawn_ns = now_ns;
		return;
	}
	if (now_ns - c->drawn_ns < REDRAW_NS)
		return;
	c->drawn_ns = now_ns;
	int full = (int)(share * BAR_CELLS);
	fprintf(stderr, "\r\033[K[%.*s%.*s] %3d %%  %.40s", full, "##############################",
		BAR_CELLS - full, "..............................", (int)(share * 100), what);
	fflush(stderr);
	c->bar_is_shown = true;
}

void console_clear(struct console *c)
{
	if (!c->bar_is_shown)
		return;
	fprintf(stderr, "\r\033[K");
	fflush(stderr);
	c->bar_is_shown = false;
}

void console_error(struct console *c, const struct err_msg *em)
{
	if (c->quiet)
		return;
	console_clear(c);
	fprintf(stderr, "tercet: %s\n", em->text);
}

/* Threads matter where they compute. Names come with '_' for spaces, since facts are words. */
static void banner_workers(const struct console_banner *b)
{
	printf("  workers        %" PRIu64 "%s%s", b->workers, b->device[0] != '\0' ? " on " : "", b->device);
	if (b->device_name[0] != '\0')
		printf(": ");
	for (const char *p = b->device_name; *p != '\0'; p++)
		putchar(*p == '_' ? ' ' : *p);
	if (b->device_name[0] == '\0' && b->threads[0] != '\0')
		printf(", threads each: %s", b->threads);
	printf("\n");
}

static void banner_text(const struct console_banner *b)
{
	printf("\n  Tercet %s\n\n", TERCET_VERSION);
	printf("  model          %s%s%s\n", b->model, b->dtype[0] != '\0' ? ", " : "", b->dtype);
	banner_workers(b);
	if (b->nodes > 1)
		printf("  node           %" PRIu64 " of %" PRIu64 ", workers here: %" PRIu64 ", node 0: %s\n", b->node, b->nodes,
		       b->workers / b->nodes, b->master);
	if (b->blocks != 0) {
		u64 tokens = b->blocks * b->block_size;
		printf("  KV cache       %s%s%" PRIu64 " blocks of %" PRIu64 ", %" PRIu64 " tokens",
		       b->kv_dtype, b->kv_dtype[0] != '\0' ? ", " : "", b->blocks, b->block_size, tokens);
		if (b->max_model_len != 0)
			printf(": %.1f requests of %" PRIu64 " tokens at once",
			       (double)tokens / (double)b->max_model_len, b->max_model_len);
		printf("\n");
	}
	if (b->host_blocks != 0)
		printf("  swap space     %" PRIu64 " blocks, %" PRIu64 " tokens\n", b->host_blocks,
		       b->host_blocks * b->block_size);
	if (b->url[0] != '\0')
		printf("  API            %s\n", b->url);
	printf("  run directory  %s\n  ready after    %.1f s\n\n", b->run_dir, b->start_s);
	fflush(stdout);
}

void console_banner(struct console *c, const struct console_banner *b, bool json)
{
	console_clear(c);
	if (c->quiet)
		return;
	if (json)
		LOG_INFO("ENGINE_READY",
			 "model=\"%s\" dtype=%s kv_dtype=%s device=%s device_name=\"%s\" workers=%" PRIu64
			 " threads=%s kv_blocks=%" PRIu64 " host_blocks=%" PRIu64 " kv_tokens=%" PRIu64 " max_model_len=%" PRIu64
			 " url=%s run_dir=\"%s\" start_s=%.3f",
			 b->model, b->dtype, b->kv_dtype, b->device, b->device_name, b->workers, b->threads, b->blocks, b->host_blocks,
			 b->blocks * b->block_size, b->max_model_len, b->url, b->run_dir, b->start_s);
	else
		banner_text(b);
}

bool console_fact(const char *facts, const char *key, char *out, size_t bytes)
{
	size_t key_bytes = strlen(key);

	while (*facts != '\0') {
		size_t n = strcspn(facts, " ");
		if (n > key_bytes && strncmp(facts, key, key_bytes) == 0 && facts[key_bytes] == '=') {
			snprintf(out, bytes, "%.*s", (int)(n - key_bytes - 1), facts + key_bytes + 1);
			return true;
		}
		facts += n;
		facts += strspn(facts, " ");
	}
	return false;
}
