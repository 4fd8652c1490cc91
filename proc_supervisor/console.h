/* What a person sees of a start: progress, one banner, and what ended it. */
#ifndef TERCET_PROC_SUPERVISOR_CONSOLE_H
#define TERCET_PROC_SUPERVISOR_CONSOLE_H

#include "common/err.h"
#include "common/options.h"

struct console {
	bool quiet;    /* the engine belongs to another process, which has the terminal */
	bool terminal; /* a bar that redraws itself; else a line per 10 % */
	bool bar_is_shown;
	int last_tenth;
	u64 drawn_ns;
};

void console_init(struct console *c, bool quiet, bool json);
/* `share` from 0 to 1. */
void console_progress(struct console *c, double share, const char *what, u64 now_ns);
/* Takes the bar away. */
void console_clear(struct console *c);
/* "tercet: TEXT" */
void console_error(struct console *c, const struct err_msg *em);

/* What the banner tells; strings may be "" when unknown. */
struct console_banner {
	const char *model, *device, *device_name, *dtype, *kv_dtype, *threads, *url, *run_dir;
	u64 node, nodes; /* this one, and how many */
	const char *master; /* the address of node 0, with several */
	u64 workers, blocks, host_blocks, block_size, max_model_len;
	double start_s;
};
void console_banner(struct console *c, const struct console_banner *b, bool json);

/* The value of `key` in "key=value key=value"; false when it is not there. */
bool console_fact(const char *facts, const char *key, char *out, size_t bytes);

#endif
