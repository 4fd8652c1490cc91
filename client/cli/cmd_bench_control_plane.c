/* tercet bench control-plane: becomes the benchmark program, which links scheduler and worker as nothing else
 * in the command may. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli.h"
#include "proc_supervisor/plan.h"

int cmd_bench_control_plane(int argc, char **argv)
{
	char path[PATH_MAX];
	struct err_msg em = {""};
	enum err e = plan_find_program(path, sizeof(path), "tercet-bench-control-plane", &em);

	(void)argc;
	if (e)
		return cli_fail(&em);
	execv(path, argv); /* argv ends in NULL, as main's does */
	err_set(&em, ERR_IO, "%s: %s", path, strerror(errno));
	return cli_fail(&em);
}
