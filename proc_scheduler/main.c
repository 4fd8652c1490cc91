/* tercet-scheduler: wiring only. */
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "proc_scheduler/scheduler.h"

static enum err serve(const struct options *o, struct boot *boot, struct err_msg *em)
{
	struct scheduler *s;
	enum err e = scheduler_create(&s, o, boot, em);

	if (!e)
		e = scheduler_run(s, em);
	scheduler_destroy(&s);
	return e;
}

int main(int argc, char **argv)
{
	struct err_msg em = {""};
	struct options o;
	struct boot boot = {.fd = -1};
	enum err e = options_init(&o);

	if (!e)
		e = options_read_args(&o, argc, argv, &em);
	if (!e)
		log_init("scheduler", (enum log_level)o.log_level, o.log_format == OPTION_LOG_JSON);
	if (!e)
		e = boot_attach(&boot, &em);
	if (!e)
		e = serve(&o, &boot, &em);
	if (e)
		boot_failed(&boot, &em);
	options_fini(&o);
	return e ? EXIT_FAILURE : EXIT_SUCCESS;
}
