/* tercet-worker: wiring only. */
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "proc_worker/worker.h"

static enum err work(const struct options *o, u32 rank, struct boot *boot, struct err_msg *em)
{
	struct worker *w;
	enum err e = worker_create(&w, o, rank, boot, em);

	if (!e)
		e = worker_run(w, em);
	worker_destroy(&w);
	return e;
}

int main(int argc, char **argv)
{
	struct err_msg em = {""};
	struct options o;
	struct boot boot = {.fd = -1};
	char process[32];
	u32 rank = 0;
	enum err e = options_init(&o);

	if (!e)
		e = options_read_args(&o, argc, argv, &em);
	if (!e)
		e = worker_parse_rank(getenv("TERCET_RANK"), (u32)o.tensor_parallel_size, &rank, &em);
	if (!e) {
		snprintf(process, sizeof(process), "worker-%u", rank);
		log_init(process, (enum log_level)o.log_level, o.log_format == OPTION_LOG_JSON);
		e = boot_attach(&boot, &em);
	}
	if (!e)
		e = work(&o, rank, &boot, &em);
	if (e)
		boot_failed(&boot, &em);
	options_fini(&o);
	return e ? EXIT_FAILURE : EXIT_SUCCESS;
}
