/* The plan of an engine's processes. Runs in the supervisor before anything is spawned; starts nothing
 * itself. */
#include "proc_supervisor/plan.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/nodes.h"

static void add(struct plan *p, enum ipc_role role, u32 rank, const char *name, const char *program)
{
	ASSERT(p->count < PLAN_CHILDREN_MAX);
	struct child_spec *c = &p->specs[p->count++];

	*c = (struct child_spec){.role = role, .rank = rank, .program = program};
	c->needs_scheduler = role == IPC_ROLE_GATEWAY;
	if (role == IPC_ROLE_WORKER || role == IPC_ROLE_GATEWAY)
		snprintf(c->name, sizeof(c->name), "%s-%u", name, rank);
	else
		snprintf(c->name, sizeof(c->name), "%s", name);
}

void plan_make(struct plan *p, const struct options *o)
{
	u32 each = nodes_ranks_each(o), first = o->node_rank > 0 ? (u32)o->node_rank * each : 0;

	p->count = 0;
	if (first == 0) {
		add(p, IPC_ROLE_SCHEDULER, 0, "scheduler", "tercet-scheduler");
		add(p, IPC_ROLE_DETOK, 0, "detok", "tercet-detok");
	}
	for (u32 rank = first; rank < first + each; rank++)
		add(p, IPC_ROLE_WORKER, rank, "worker", "tercet-worker");
	if (first != 0)
		return;
	for (u32 rank = 0; rank < (u32)o->api_server_count; rank++)
		add(p, IPC_ROLE_GATEWAY, rank, "gateway", "tercet-gateway");
}

/* ---------------------------------------------------------------- open files */

/* A gateway alone has some 27; the scheduler and the detokenizer have two for every process and every client. */
enum { FILES_LEAST = 64, FILES_EACH = 2, FILES_USUAL = 1024 };

enum err plan_check_files(const struct plan *p, struct err_msg *em)
{
	u64 needed = FILES_LEAST + FILES_EACH * (u64)p->count;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed)
		return ERR_OK;
	return err_set(em, ERR_INVALID,
		       "a process may open %llu files (ulimit -Hn), and the engine's %u processes need %llu each, with clients more: raise the "
		       "limit, as by \"ulimit -n %d\" in the shell or LimitNOFILE= of the service",
		       (unsigned long long)limit.rlim_cur, p->count, (unsigned long long)needed, FILES_USUAL);
}

/* ---------------------------------------------------------------- programs */

/* The directory of the running executable. */
static enum err own_directory(char *out, size_t bytes, struct err_msg *em)
{
	ssize_t n = readlink("/proc/self/exe", out, bytes - 1);

	if (n < 0)
		return err_set(em, ERR_IO, "/proc/self/exe: %s", strerror(errno));
	out[n] = '\0';
	char *slash = strrchr(out, '/');
	if (slash == NULL)
		return err_set(em, ERR_IO, "/proc/self/exe: \"%s\" is no path", out);
	*slash = '\0';
	return ERR_OK;
}

static bool is_program(const char *path)
{
	return access(path, X_OK) == 0;
}

enum err plan_find_program(char *out, size_t bytes, const char *program, struct err_msg *em)
{
	const char *libexec = getenv("TERCET_LIBEXEC");
	const char *what = strchr(program, '-');
	char own[PATH_MAX], built[PATH_MAX], folder[64];
	enum err e;

	ASSERT(what != NULL);
	if (strncmp(what, "-bench-", 7) == 0)
		snprintf(folder, sizeof(folder), "bench");
	else
		snprintf(folder, sizeof(folder), "proc_%s", what + 1);
	if (libexec != NULL && libexec[0] != '\0') {
		if (snprintf(out, bytes, "%s/%s", libexec, program) < (int)bytes && is_program(out))
			return ERR_OK;
		return err_set(em, ERR_NOT_FOUND,
			       "%s: there is no program of this name in TERCET_LIBEXEC (%.300s)", program,
			       libexec);
	}
	e = own_directory(own, sizeof(own), em);
	if (e != ERR_OK)
		return e;
	if (snprintf(out, bytes, "%s/../libexec/tercet/%s", own, program) < (int)bytes && is_program(out))
		return ERR_OK;
	if (snprintf(built, sizeof(built), "%s/../../%s/%s", own, folder, program) < (int)sizeof(built) &&
	    strlen(built) < bytes && is_program(built)) {
		memcpy(out, built, strlen(built) + 1);
		return ERR_OK;
	}
	return err_set(
		em, ERR_NOT_FOUND,
		"%s is neither in %.200s/../libexec/tercet nor in %.200s/../../%s; set TERCET_LIBEXEC to its "
		"directory",
		program, own, own, folder);
}

/* ---------------------------------------------------------------- port */

static u16 *port_of(struct sockaddr *address)
{
	if (address->sa_family == AF_INET6)
		return &((struct sockaddr_in6 *)address)->sin6_port;
	return &((struct sockaddr_in *)address)->sin_port;
}

static enum err bind_error(int error, const char *host, i64 port, struct err_msg *em)
{
	switch (error) {
	case EADDRINUSE:
		return err_set(em, ERR_BUSY,
			       "port %d on %s is in use; choose another one with --port (0: any free one)",
			       (int)port, host);
	case EACCES:
		return err_set(em, ERR_DENIED,
			       "port %d on %s is not allowed to this user; choose one above 1023 with "
			       "--port",
			       (int)port, host);
	case EADDRNOTAVAIL:
		return err_set(em, ERR_INVALID, "--host %s is no address of this machine", host);
	default:
		return err_set(em, ERR_IO, "cannot listen on %s port %d: %s", host, (int)port,
			       strerror(error));
	}
}

enum err plan_claim_port(const char *host, i64 *port, struct err_msg *em)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
	struct sockaddr_storage bound;
	socklen_t bound_bytes = sizeof(bound);
	int yes = 1;
	enum err e = ERR_OK;

	/* "" is every address */
	int failed = getaddrinfo(host[0] != '\0' ? host : NULL, "0", &hints, &list);
	if (failed != 0)
		return err_set(em, ERR_INVALID, "--host %s: %s", host, gai_strerror(failed));
	*port_of(list->ai_addr) = htons((u16)*port);
	int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* Without SO_REUSEPORT, so that the sockets of another engine are in the way. */
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
	    bind(fd, list->ai_addr, list->ai_addrlen) < 0)
		e = bind_error(errno, host[0] != '\0' ? host : "every address", *port, em);
	else if (*port == 0 && getsockname(fd, (struct sockaddr *)&bound, &bound_bytes) == 0)
		*port = ntohs(*port_of((struct sockaddr *)&bound));
	if (fd >= 0)
		close(fd);
	freeaddrinfo(list);
	return e;
}
