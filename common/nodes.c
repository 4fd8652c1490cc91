/* The place of this process among several nodes. Runs in the supervisor before anything else; its children get what
 * was found as options. */
#include "common/nodes.h"

#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "common/log.h"

enum { ADDRESS_RETRY_MS = 500 };

/* The variables of one launcher, in the order in which they are looked for; NULL: it has none of the kind. It is
 * there when `rank` and `size` are set. */
struct launcher {
	const char *name;
	const char *rank, *size;
	const char *local_rank, *local_size; /* of the tasks on this machine */
	const char *address;
	const char *one_task; /* how to get one task a node */
};

static const struct launcher launchers[] = {
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "torchrun --nproc-per-node 1"},
	{"Slurm", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURM_LOCALID", NULL, NULL, "srun --ntasks-per-node=1"},
	{"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	 "OMPI_COMM_WORLD_LOCAL_SIZE", "MASTER_ADDR", "mpirun --npernode 1"},
	{"PMIx", "PMIX_RANK", NULL, NULL, NULL, "MASTER_ADDR", ""},
	{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MASTER_ADDR", "mpirun -ppn 1"},
	{"LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", NULL, NULL, "LWS_LEADER_ADDRESS", ""},
};

struct environment {
	nodes_env_fn get;
	void *ctx;
};

/* What a launcher says; -1 and "": nothing. */
struct found {
	const struct launcher *launcher; /* NULL: none */
	i64 count, index, port;
	const char *address;
	bool several_tasks; /* on this machine */
};

static const char *process_env(void *ctx, const char *name)
{
	(void)ctx;
	return getenv(name);
}

static const char *text_of(const struct environment *env, const char *name)
{
	const char *value = name != NULL ? env->get(env->ctx, name) : NULL;

	return value != NULL ? value : "";
}

/* -1: not set. ERR_INVALID: no number. */
static enum err number_of(const struct environment *env, const char *name, i64 *out, struct err_msg *em)
{
	const char *text = text_of(env, name);
	char *end;

	*out = -1;
	if (text[0] == '\0')
		return ERR_OK;
	errno = 0;
	long long v = strtoll(text, &end, 10);
	if (errno != 0 || *end != '\0' || v < 0 || v > 1000000)
		return err_set(em, ERR_INVALID, "the variable %s is \"%.50s\": it must be a number from 0", name, text);
	*out = v;
	return ERR_OK;
}

/* ---------------------------------------------------------------- host lists */

static bool append(char *out, size_t bytes, size_t *length, const char *text, size_t text_bytes)
{
	if (*length + text_bytes + 1 > bytes)
		return false;
	memcpy(out + *length, text, text_bytes);
	*length += text_bytes;
	out[*length] = '\0';
	return true;
}

bool nodes_first_host(char *out, size_t bytes, const char *list)
{
	size_t length = 0;
	bool ok = bytes != 0;

	while (ok && *list != '\0' && *list != ',') {
		size_t plain = strcspn(list, "[],");
		ok = append(out, bytes, &length, list, plain);
		list += plain;
		if (*list == ']')
			return false;
		if (*list != '[')
			continue;
		size_t first = strcspn(++list, "-,[]"); /* "n[003-007,9]": its least, as it is written */
		ok = ok && first != 0 && append(out, bytes, &length, list, first);
		list += strcspn(list, "[]");
		if (*list != ']')
			return false;
		list++;
	}
	return ok && length != 0;
}

/* ---------------------------------------------------------------- launchers */

static enum err read_launcher(const struct environment *env, const struct launcher *l, struct found *out,
			      struct err_msg *em)
{
	i64 local_rank, local_size;
	enum err e = number_of(env, l->rank, &out->index, em);

	if (!e)
		e = number_of(env, l->size, &out->count, em);
	if (!e)
		e = number_of(env, l->local_rank, &local_rank, em);
	if (!e)
		e = number_of(env, l->local_size, &local_size, em);
	if (e || out->index < 0 || (l->size != NULL && out->count < 0))
		return e;
	out->launcher = l;
	out->several_tasks = local_rank > 0 || local_size > 1;
	out->address = text_of(env, l->address);
	return number_of(env, "MASTER_PORT", &out->port, em);
}

static enum err find_launcher(const struct environment *env, struct found *out, struct err_msg *em)
{
	enum err e = ERR_OK;

	for (size_t i = 0; !e && i < COUNT_OF(launchers); i++) {
		*out = (struct found){.count = -1, .index = -1, .port = -1, .address = ""};
		e = read_launcher(env, &launchers[i], out, em);
		if (out->launcher != NULL)
			break;
	}
	/* Its agent listens on that port itself. */
	if (!e && out->port > 0 && strcmp(text_of(env, "TORCHELASTIC_USE_AGENT_STORE"), "True") == 0)
		out->port++;
	return e;
}

/* Slurm names no address, but its nodes. */
static enum err slurm_address(const struct environment *env, struct nodes *out, struct err_msg *em)
{
	const char *list = text_of(env, "SLURM_STEP_NODELIST");
	i64 tasks, nodes;

	enum err e = number_of(env, "SLURM_STEP_NUM_TASKS", &tasks, em);
	if (!e)
		e = number_of(env, "SLURM_STEP_NUM_NODES", &nodes, em);
	if (!e && tasks > nodes)
		e = err_set(em, ERR_INVALID,
			    "Slurm started %d tasks on %d nodes; one a node is needed, which starts the workers of its node: "
			    "srun --ntasks-per-node=1 (or --nnodes 1 for an engine in each task)",
			    (int)tasks, (int)nodes);
	if (e || out->address[0] != '\0')
		return e;
	snprintf(out->address_else, sizeof(out->address_else), "%s", text_of(env, "SLURM_LAUNCH_NODE_IPADDR"));
	if (!nodes_first_host(out->address, sizeof(out->address), list))
		return err_set(em, ERR_INVALID,
			       "the variable SLURM_STEP_NODELIST is \"%.100s\", which names no node; give --master-addr", list);
	return ERR_OK;
}

/* ---------------------------------------------------------------- all together */

static enum err check(const struct nodes *n, const struct options *o, struct err_msg *em)
{
	if (n->count > NODES_MAX)
		return err_set(em, ERR_INVALID, "%u nodes (%s); at most %d are possible", n->count, n->source, NODES_MAX);
	if (n->index >= n->count)
		return err_set(em, ERR_INVALID, "--node-rank is %u (%s); it must be 0 to %u with --nnodes %u", n->index,
			       n->source, n->count - 1, n->count);
	if (n->address[0] == '\0')
		return err_set(em, ERR_INVALID,
			       "--master-addr is missing: the address of node 0, as the other nodes reach it");
	if (o->tensor_parallel_size % n->count != 0)
		return err_set(em, ERR_INVALID,
			       "--tensor-parallel-size %d cannot be shared evenly by %u nodes (%s); it must be a multiple of "
			       "%u (or --nnodes 1 for an engine of its own)",
			       (int)o->tensor_parallel_size, n->count, n->source, n->count);
	if (n->port + (u32)o->tensor_parallel_size > 65535)
		return err_set(em, ERR_INVALID, "--master-port %u leaves no room for %d ports behind it", n->port,
			       (int)o->tensor_parallel_size);
	return ERR_OK;
}

enum err nodes_find(struct nodes *out, const struct options *o, nodes_env_fn get, void *ctx, struct err_msg *em)
{
	struct environment env = {.get = get != NULL ? get : process_env, .ctx = ctx};
	struct found f;

	*out = (struct nodes){.count = 1, .source = "the options"};
	if (o->nnodes == 1)
		return ERR_OK;
	enum err e = find_launcher(&env, &f, em);
	if (e)
		return e;
	i64 count = o->nnodes != 0 ? o->nnodes : f.count;
	i64 index = o->node_rank >= 0 ? o->node_rank : f.index;
	if (o->nnodes == 0 && f.launcher != NULL)
		out->source = f.launcher->name;
	if (count < 0 && (o->node_rank > 0 || o->master_addr[0] != '\0'))
		return err_set(em, ERR_INVALID, "--nnodes is missing: how many nodes share the model");
	if (count <= 1)
		return ERR_OK;
	if (index < 0)
		return err_set(em, ERR_INVALID, "--node-rank is missing: which of the %d nodes this is, from 0", (int)count);
	bool launched = f.launcher != NULL && (o->nnodes == 0 || o->node_rank < 0);
	if (launched && f.several_tasks)
		return err_set(em, ERR_INVALID,
			       "%s started several tasks on this node; one is needed, which starts the workers of the node: %s "
			       "(or --nnodes 1 for an engine in each task)",
			       f.launcher->name, f.launcher->one_task);
	out->count = (u32)count;
	out->index = (u32)index;
	out->port = o->master_port != 0 ? (u32)o->master_port : f.port > 0 ? (u32)f.port : NODES_PORT_DEFAULT;
	snprintf(out->address, sizeof(out->address), "%s", o->master_addr[0] != '\0' ? o->master_addr : f.address);
	if (launched && strcmp(f.launcher->name, "Slurm") == 0)
		e = slurm_address(&env, out, em);
	return e ? e : check(out, o, em);
}

static bool is_known(const char *name)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	bool known = name[0] != '\0' && getaddrinfo(name, NULL, &hints, &list) == 0;

	if (known)
		freeaddrinfo(list);
	return known;
}

enum err nodes_check_address(struct nodes *n, u32 wait_ms, struct err_msg *em)
{
	struct timespec pause = {.tv_nsec = ADDRESS_RETRY_MS * 1000000L};

	if (n->count == 1 || is_known(n->address))
		return ERR_OK;
	for (u32 waited_ms = 0; !is_known(n->address_else); waited_ms += ADDRESS_RETRY_MS) {
		if (waited_ms >= wait_ms)
			return err_set(em, ERR_NOT_FOUND,
				       "the address of node 0, %s, is unknown on this machine; give --master-addr", n->address);
		if (waited_ms == 0)
			LOG_WARN("ADDRESS_UNKNOWN", "address=%s wait_ms=%u", n->address, wait_ms);
		nanosleep(&pause, NULL);
		if (is_known(n->address))
			return ERR_OK;
	}
	memcpy(n->address, n->address_else, sizeof(n->address));
	return ERR_OK;
}
