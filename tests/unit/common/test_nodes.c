#include <criterion/criterion.h>
#include <string.h>

#include "common/nodes.h"

static struct options o;
static struct nodes n;
static struct err_msg em;
static const char *const *variables; /* name, value, name, value, ..., NULL */

static const char *from_list(void *ctx, const char *name)
{
	(void)ctx;
	for (const char *const *v = variables; v != NULL && *v != NULL; v += 2)
		if (strcmp(v[0], name) == 0)
			return v[1];
	return NULL;
}

static void set_up(void)
{
	variables = NULL;
	cr_assert_eq(options_init(&o), ERR_OK);
	o.tensor_parallel_size = 8;
}

static void tear_down(void)
{
	options_fini(&o);
}

TestSuite(nodes, .init = set_up, .fini = tear_down);

#define ENV(...) (variables = (const char *const[]){__VA_ARGS__, NULL})
#define SLURM                                                                                                \
	"SLURM_NODEID", "1", "SLURM_STEP_NUM_NODES", "2", "SLURM_LOCALID", "0", "SLURM_STEP_NUM_TASKS", "2",      \
		"SLURM_STEP_NODELIST", "gpu[07-08]", "SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"
#define TORCH "RANK", "2", "WORLD_SIZE", "4", "LOCAL_RANK", "0", "MASTER_ADDR", "m", "MASTER_PORT", "1234"
#define OMPI "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_RANK", "0"
#define LWS "LWS_LEADER_ADDRESS", "leader.ns", "LWS_GROUP_SIZE", "4", "LWS_WORKER_INDEX", "3"

static void set(const char *name, const char *value)
{
	cr_assert_eq(options_set(&o, name, value, name, &em), ERR_OK, "%s", em.text);
}

static enum err find(void)
{
	return nodes_find(&n, &o, from_list, NULL, &em);
}

static void is(u32 count, u32 index, const char *address, u32 port, const char *source)
{
	cr_assert_eq(find(), ERR_OK, "%s", em.text);
	cr_assert_eq(n.count, count);
	cr_assert_eq(n.index, index);
	cr_assert_str_eq(n.address, address);
	cr_assert_eq(n.port, port);
	cr_assert_str_eq(n.source, source);
}

static void refuses(const char *words)
{
	cr_assert_eq(find(), ERR_INVALID);
	cr_assert_not_null(strstr(em.text, words), "\"%s\" does not say \"%s\"", em.text, words);
}

Test(nodes, one_without_options_and_launchers)
{
	is(1, 0, "", 0, "the options");
	ENV("RANK", "0", "MASTER_ADDR", "m"); /* a rank alone says nothing */
	is(1, 0, "", 0, "the options");
	ENV("RANK", "0", "WORLD_SIZE", "1", "LOCAL_RANK", "0");
	cr_assert_eq(find(), ERR_OK);
	cr_assert_eq(n.count, 1);
}

Test(nodes, options_say_it_all)
{
	set("nnodes", "2");
	set("node-rank", "1");
	set("master-addr", "here");
	is(2, 1, "here", NODES_PORT_DEFAULT, "the options");
	set("master-port", "4000");
	ENV(TORCH, SLURM);
	is(2, 1, "here", 4000, "the options");
}

Test(nodes, each_launcher_is_understood)
{
	ENV(TORCH);
	is(4, 2, "m", 1234, "torchrun");
	ENV(SLURM);
	is(2, 1, "gpu07", NODES_PORT_DEFAULT, "Slurm");
	cr_assert_str_eq(n.address_else, "10.0.0.7");
	ENV(OMPI, "MASTER_ADDR", "m");
	is(2, 1, "m", NODES_PORT_DEFAULT, "OpenMPI");
	ENV("PMI_RANK", "1", "PMI_SIZE", "2", "MASTER_ADDR", "m");
	is(2, 1, "m", NODES_PORT_DEFAULT, "PMI");
	ENV(LWS);
	is(4, 3, "leader.ns", NODES_PORT_DEFAULT, "LeaderWorkerSet");
	ENV("PMIX_RANK", "1", "MASTER_ADDR", "m");
	set("nnodes", "2");
	is(2, 1, "m", NODES_PORT_DEFAULT, "the options");
}

Test(nodes, the_first_launcher_of_the_list_wins)
{
	ENV(LWS, OMPI, SLURM, TORCH);
	is(4, 2, "m", 1234, "torchrun");
	ENV(LWS, OMPI, SLURM);
	is(2, 1, "gpu07", NODES_PORT_DEFAULT, "Slurm");
	ENV(LWS, OMPI, "MASTER_ADDR", "m");
	is(2, 1, "m", NODES_PORT_DEFAULT, "OpenMPI");
}

Test(nodes, an_option_replaces_only_its_own_value)
{
	ENV(SLURM);
	set("master-addr", "10.1.2.3");
	set("master-port", "99");
	is(2, 1, "10.1.2.3", 99, "Slurm");
	set("nnodes", "1"); /* an engine in each task */
	is(1, 0, "", 0, "the options");
}

Test(nodes, the_agent_of_torchrun_keeps_its_own_port)
{
	ENV(TORCH, "TORCHELASTIC_USE_AGENT_STORE", "True");
	is(4, 2, "m", 1235, "torchrun");
}

Test(nodes, several_tasks_on_a_node_are_refused)
{
	ENV("RANK", "1", "WORLD_SIZE", "2", "LOCAL_RANK", "1", "MASTER_ADDR", "m");
	refuses("torchrun --nproc-per-node 1");
	ENV("RANK", "0", "WORLD_SIZE", "2", "LOCAL_RANK", "0", "LOCAL_WORLD_SIZE", "2", "MASTER_ADDR", "m");
	refuses("torchrun started several tasks on this node");
	ENV("SLURM_NODEID", "0", "SLURM_STEP_NUM_NODES", "2", "SLURM_LOCALID", "0", "SLURM_STEP_NUM_TASKS", "4",
	    "SLURM_STEP_NODELIST", "n[1-2]");
	refuses("4 tasks on 2 nodes");
}

Test(nodes, what_is_missing_or_does_not_fit_is_named)
{
	set("node-rank", "1");
	refuses("--nnodes is missing");
	set("nnodes", "3");
	refuses("--master-addr is missing");
	set("master-addr", "m");
	refuses("--tensor-parallel-size 8 cannot be shared evenly by 3 nodes");
	set("nnodes", "4");
	set("node-rank", "4");
	refuses("it must be 0 to 3");
	set("node-rank", "-1");
	refuses("--node-rank is missing");
	ENV("RANK", "two", "WORLD_SIZE", "2");
	refuses("the variable RANK is \"two\"");
	ENV("RANK", "0", "WORLD_SIZE", "200");
	set("nnodes", "0");
	refuses("at most 64");
	o.tensor_parallel_size = 1;
	ENV(LWS);
	refuses("--tensor-parallel-size 1 cannot be shared evenly by 4 nodes (LeaderWorkerSet)");
}

Test(nodes, the_first_of_a_host_list)
{
	static const char *const cases[][2] = {
		{"n1", "n1"},		   {"a,b", "a"},	      {"n[1-2]", "n1"},
		{"n[003-007,9],x", "n003"}, {"r[2-3]n[07,09]-ib", "r2n07-ib"}, {"host-a.example.org", "host-a.example.org"},
	};
	static const char *const bad[] = {"", ",a", "n[1-2", "n]1", "n[]", "n[-2]"};
	char out[64];

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		cr_assert(nodes_first_host(out, sizeof(out), cases[i][0]), "%s", cases[i][0]);
		cr_assert_str_eq(out, cases[i][1]);
	}
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		cr_assert_not(nodes_first_host(out, sizeof(out), bad[i]), "%s", bad[i]);
	cr_assert_not(nodes_first_host(out, 4, "longer"));
}

Test(nodes, an_address_that_is_unknown_gives_way_to_the_other)
{
	n = (struct nodes){.count = 2, .address = "no.such.host.invalid", .address_else = "127.0.0.1"};
	cr_assert_eq(nodes_check_address(&n, 0, &em), ERR_OK);
	cr_assert_str_eq(n.address, "127.0.0.1");
	n = (struct nodes){.count = 2, .address = "no.such.host.invalid"};
	cr_assert_eq(nodes_check_address(&n, 600, &em), ERR_NOT_FOUND);
	cr_assert(strstr(em.text, "--master-addr"), "%s", em.text);
}
