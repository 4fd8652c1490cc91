#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proc_supervisor/plan.h"

static struct err_msg em;

Test(plan, those_that_bind_come_first_and_gateways_wait)
{
	struct options o;
	struct plan p;

	cr_assert_eq(options_init(&o), ERR_OK);
	o.tensor_parallel_size = 2;
	o.api_server_count = 3;
	plan_make(&p, &o);
	cr_assert_eq(p.count, 7);
	cr_assert_str_eq(p.specs[0].name, "scheduler");
	cr_assert_str_eq(p.specs[1].name, "detok");
	cr_assert_str_eq(p.specs[3].name, "worker-1");
	cr_assert_eq(p.specs[3].rank, 1);
	cr_assert_str_eq(p.specs[6].name, "gateway-2");
	for (u32 i = 0; i < p.count; i++)
		cr_assert_eq(p.specs[i].needs_scheduler, p.specs[i].role == IPC_ROLE_GATEWAY);
	options_fini(&o);
}

Test(plan, nodes_share_the_ranks_and_only_the_first_serves)
{
	struct options o;
	struct plan p;

	cr_assert_eq(options_init(&o), ERR_OK);
	o.tensor_parallel_size = 4;
	o.nnodes = 2;
	o.node_rank = 0;
	plan_make(&p, &o);
	cr_assert_eq(p.count, 5);
	cr_assert_str_eq(p.specs[3].name, "worker-1");
	cr_assert_str_eq(p.specs[4].name, "gateway-0");
	o.node_rank = 1;
	plan_make(&p, &o);
	cr_assert_eq(p.count, 2);
	cr_assert_str_eq(p.specs[0].name, "worker-2");
	cr_assert_eq(p.specs[1].rank, 3);
	options_fini(&o);
}

Test(plan, the_largest_engine_fits)
{
	struct options o;
	struct plan p;

	cr_assert_eq(options_init(&o), ERR_OK);
	o.tensor_parallel_size = 64;
	o.api_server_count = 64;
	plan_make(&p, &o);
	cr_assert_eq(p.count, PLAN_CHILDREN_MAX);
	options_fini(&o);
}

Test(plan, programs_are_found_where_the_environment_says)
{
	char path[256];

	setenv("TERCET_LIBEXEC", "/nowhere", 1);
	cr_assert_eq(plan_find_program(path, sizeof(path), "tercet-worker", &em), ERR_NOT_FOUND);
	cr_assert_not_null(strstr(em.text, "tercet-worker"));
	cr_assert_not_null(strstr(em.text, "/nowhere"));
	unsetenv("TERCET_LIBEXEC");
	cr_assert_eq(plan_find_program(path, sizeof(path), "tercet-nonsense", &em), ERR_NOT_FOUND);
	cr_assert_not_null(strstr(em.text, "TERCET_LIBEXEC"));
}

static int listening(struct sockaddr_in *a)
{
	socklen_t bytes = sizeof(*a);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	*a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	cr_assert_eq(bind(fd, (struct sockaddr *)a, sizeof(*a)), 0);
	cr_assert_eq(listen(fd, 1), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)a, &bytes), 0);
	return fd;
}

Test(plan, a_port_in_use_is_refused_and_a_free_one_is_found)
{
	struct sockaddr_in a;
	int fd = listening(&a);
	i64 port = ntohs(a.sin_port), any = 0;

	cr_assert_eq(plan_claim_port("127.0.0.1", &port, &em), ERR_BUSY);
	cr_assert_not_null(strstr(em.text, "is in use; choose another one with --port"));
	cr_assert_eq(plan_claim_port("127.0.0.1", &any, &em), ERR_OK);
	cr_assert_gt(any, 0);
	cr_assert_neq(any, port);
	close(fd);
	cr_assert_eq(plan_claim_port("127.0.0.1", &port, &em), ERR_OK);
	cr_assert_eq(port, ntohs(a.sin_port));
	any = 0;
	cr_assert_eq(plan_claim_port("", &any, &em), ERR_OK, "every address: %s", em.text);
	cr_assert_neq(any, 0);
}

Test(plan, hosts_that_are_none_are_named)
{
	i64 port = 0;

	cr_assert_eq(plan_claim_port("192.0.2.1", &port, &em), ERR_INVALID);
	cr_assert_str_eq(em.text, "--host 192.0.2.1 is no address of this machine");
	cr_assert_eq(plan_claim_port("300.1.2.3.4", &port, &em), ERR_INVALID);
	cr_assert_not_null(strstr(em.text, "--host 300.1.2.3.4"));
}

Test(plan, a_limit_of_open_files_that_does_not_suffice_is_refused_with_what_would_do)
{
	struct plan p = {.count = 4};
	struct rlimit limit;

	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = 72;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	cr_assert_eq(plan_check_files(&p, &em), ERR_OK, "%s", em.text);
	p.count = 5;
	cr_assert_eq(plan_check_files(&p, &em), ERR_INVALID);
	cr_assert(strstr(em.text, "may open 72 files") && strstr(em.text, "5 processes need 74 each") && strstr(em.text, "ulimit -n 1024"),
		  "%s", em.text);
}
