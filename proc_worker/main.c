/* tercet-worker: wiring only. "tercet-worker [options] logits WHICH TOP IDS" is what `tercet logits` runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "proc_worker/logits.h"
#include "proc_worker/worker.h"

enum { WORDS_MAX = 4 };

static enum err work(const struct options *o, u32 rank, struct boot *boot, struct err_msg *em)
{
	struct worker *w;
	enum err e = worker_create(&w, o, rank, boot, em);

	if (!e)
		e = worker_run(w, em);
	worker_destroy(&w);
	return e;
}

static enum err serve(const struct options *o, struct boot *boot, struct err_msg *em)
{
	char process[32];
	u32 rank = 0;
	enum err e = worker_parse_rank(getenv("TERCET_RANK"), (u32)o->tensor_parallel_size, &rank, em);

	if (e)
		return e;
	snprintf(process, sizeof(process), "worker-%u", rank);
	log_init(process, (enum log_level)o->log_level, o->log_format == OPTION_LOG_JSON);
	e = boot_attach(boot, em);
	return e ? e : work(o, rank, boot, em);
}

static int print_logits(const struct options *o, const char *const *words, struct err_msg *em)
{
	struct logits_request q;

	log_init("logits", (enum log_level)o->log_level, o->log_format == OPTION_LOG_JSON);
	enum err e = logits_parse(&q, words[1], words[2], words[3], em);
	if (!e)
		e = logits_print(o, &q, stdout, em);
	free((void *)(uintptr_t)q.ids);
	if (e)
		fprintf(stderr, "tercet: %s\n", em->text);
	return e ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct err_msg em = {""};
	struct options o;
	struct boot boot = {.fd = -1};
	const char *words[WORDS_MAX];
	u32 count = 0;
	int status = EXIT_SUCCESS;
	enum err e = options_init(&o);

	if (!e)
		e = options_read_words(&o, argc, argv, words, WORDS_MAX, &count, &em);
	if (!e && count == WORDS_MAX && !strcmp(words[0], "logits"))
		status = print_logits(&o, words, &em);
	else if (!e)
		e = count ? err_set(&em, ERR_INVALID, "unexpected word \"%.100s\"", words[0])
			  : serve(&o, &boot, &em);
	if (e)
		boot_failed(&boot, &em);
	if (e == ERR_DEVICE) { /* what a driver does at exit may wait for a device that answers nothing any more */
		fflush(NULL);
		_exit(EXIT_FAILURE);
	}
	options_fini(&o);
	return e ? EXIT_FAILURE : status;
}
