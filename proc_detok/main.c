/* The detokenizer: options, tokenizer, sockets, loop. Wiring only. */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "common/log.h"
#include "common/options.h"
#include "ipc/ipc.h"
#include "proc_detok/detok.h"

/* OPENs and the results that end older sequences come through two channels: as many OPENs as one channel queues may be
 * read before the results that the scheduler saw first. */
enum { OPENS_AHEAD = 1024 };

struct process {
	struct options options;
	struct boot boot;
	struct tokenizer *tokenizer;
	struct stats_page *stats;
	struct trace *trace;
	struct detok detok;
};

static void on_boot(void *ctx, int fd, u32 events)
{
	struct process *p = ctx;
	(void)fd;
	(void)events;
	/* Draining is the scheduler's and the gateways' business: streams end when their sequences do. */
	for (enum boot_command command; (command = boot_poll(&p->boot)) != BOOT_NONE;)
		if (command == BOOT_STOP) {
			ipc_loop_stop(p->detok.loop);
			return;
		}
}

static const char *text_or_null(const char *text)
{
	return text && *text ? text : NULL;
}

static enum err process_open(struct process *p, struct err_msg *em)
{
	const struct options *o = &p->options;
	const char *run_dir = text_or_null(o->run_dir);
	if (!run_dir)
		return err_set(em, ERR_INVALID,
			       "the detokenizer needs --run-dir, the directory of the sockets");

	enum err e = stats_create(&p->stats, run_dir, "detok", em);
	if (e == ERR_OK && text_or_null(o->trace))
		e = trace_create(&p->trace, run_dir, "detok", em);
	if (e != ERR_OK)
		return e;
	boot_progress(&p->boot, 0.1, "loading tokenizer");
	e = tokenizer_load(&p->tokenizer, o->model, em);
	if (e != ERR_OK)
		return e;
	struct detok_config config = {
		.run_dir = run_dir,
		.tokenizer = p->tokenizer,
		.stats = p->stats,
		.trace = p->trace,
		.record_dir = text_or_null(o->trace_messages),
		.streams_max = (u32)(o->max_num_seqs + o->max_queued_requests) + OPENS_AHEAD,
		.retention_bytes = o->output_retention,
		.retention_s = (u32)o->output_retention_time,
	};
	e = detok_open(&p->detok, &config, em);
	if (e == ERR_OK && p->boot.fd >= 0)
		e = ipc_loop_add_fd(p->detok.loop, p->boot.fd, EPOLLIN, on_boot, p);
	return e;
}

static void process_close(struct process *p)
{
	if (p->detok.loop)
		detok_close(&p->detok);
	tokenizer_free(&p->tokenizer);
	trace_destroy(&p->trace);
	stats_destroy(&p->stats);
	options_fini(&p->options);
}

int main(int argc, char **argv)
{
	struct process p = {.boot = {.fd = -1}};
	struct err_msg em = {.text = ""};

	log_init("detok", LOG_LEVEL_INFO, false);
	enum err e = boot_attach(&p.boot, &em);
	if (e == ERR_OK)
		e = options_init(&p.options);
	if (e == ERR_OK)
		e = options_read_args(&p.options, argc, argv, &em);
	if (e == ERR_OK) {
		log_init("detok", (enum log_level)p.options.log_level,
			 p.options.log_format == OPTION_LOG_JSON);
		e = process_open(&p, &em);
	}
	if (e == ERR_OK) {
		boot_ready(&p.boot, "vocabulary=%u", tokenizer_vocab_size(p.tokenizer));
		e = ipc_loop_run(p.detok.loop);
		if (e != ERR_OK)
			(void)err_set(&em, e, "the event loop failed: %s", err_text(e));
	}
	if (e != ERR_OK) {
		if (!em.text[0])
			(void)err_set(&em, e, "%s", err_text(e));
		boot_failed(&p.boot, &em);
	}
	process_close(&p);
	return e == ERR_OK ? 0 : 1;
}
