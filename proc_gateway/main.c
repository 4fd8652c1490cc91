/* tercet-gateway: the wiring of the HTTP process. */
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "proc_gateway/gateway.h"

static u32 rank_from_env(void)
{
	const char *text = getenv("TERCET_RANK");
	return text ? (u32)strtoul(text, NULL, 10) : 0;
}

static int fail(struct gateway *g, const struct err_msg *em)
{
	boot_failed(&g->boot, em);
	gateway_fini(g);
	return 1;
}

int main(int argc, char **argv)
{
	struct gateway g = {.boot.fd = -1};
	struct options o;
	struct err_msg em = {""};
	char process[32];
	u32 rank = rank_from_env();
	snprintf(process, sizeof(process), "gateway-%u", rank);
	log_init(process, LOG_LEVEL_INFO, false);
	enum err e = options_init(&o);
	if (!e)
		e = options_read_args(&o, argc, argv, &em);
	if (e) {
		fprintf(stderr, "tercet-gateway: %s\n", em.text);
		return 2;
	}
	log_init(process, (enum log_level)o.log_level, o.log_format == OPTION_LOG_JSON);
	if (gateway_init(&g, &o, rank, &em))
		return fail(&g, &em);
	int status = gateway_run(&g);
	gateway_fini(&g);
	options_fini(&o);
	return status;
}
