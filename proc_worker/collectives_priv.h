/* What the files of the collectives share: the mapping of the ranks of a host, and a rank's own side of it. */
#ifndef TERCET_PROC_WORKER_COLLECTIVES_PRIV_H
#define TERCET_PROC_WORKER_COLLECTIVES_PRIV_H

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proc_worker/bridge.h"
#include "proc_worker/collectives.h"

static const u64 MS = 1000000;

enum { HEAD_BYTES = 8192 };

/* Written by its rank alone, or, when that is on another node, by its counterpart here; in a cache line of its own. */
struct rank_line {
	_Alignas(64) _Atomic u32 changes; /* futex word: moves with every change of the others */
	_Atomic u32 sleepers;
	_Atomic i32 pid;     /* 0: not joined */
	_Atomic u64 arrived; /* operations this rank has filled its part of; never goes back */
	_Atomic u64 epoch;
	_Atomic u64 base; /* `arrived` when it began the epoch */
	_Atomic u32 lost; /* enum bridge_loss of a rank on another node */
	_Atomic u32 beats; /* moves while it waits for somebody outside the group */
};

struct shared {
	_Atomic u64 magic; /* written last */
	u32 ranks;
	u64 buffer_bytes;
	u64 group;
	struct rank_line lines[COLLECTIVES_RANKS_MAX];
};
_Static_assert(sizeof(struct shared) <= HEAD_BYTES, "the parts begin behind the head");

struct collectives {
	struct shared *shared;
	size_t mapped_bytes;
	size_t buffer_bytes;
	u32 rank, ranks;
	u32 first, here; /* the ranks [first, first + here) are on this host; `first` makes the file */
	u64 group;
	struct bridge *bridge; /* to other hosts; NULL: none */
	bool farewell;
	pthread_mutex_t lost_mutex; /* of the three below */
	bool any_lost;
	void (*lost_fn)(void *ctx);
	void *lost_ctx;
	u64 sequence; /* of the next operation, from 0; the same on all ranks */
	u64 epoch;
	u64 least_ns, most_ns; /* that it waits for a rank that lives */
	u64 left_ns;	       /* when this rank's last operation ended, or its step began */
	u64 usual_ns;	       /* from the end of an operation to that of the next: the longest, slowly forgotten */
	struct kern_threads *threads;
	int pidfds[COLLECTIVES_RANKS_MAX];
	char path[4096]; /* removed when `first` leaves */
};

/* Wakes those who wait for a change of `line`. */
static inline void announce(struct rank_line *line)
{
	/* Sequentially consistent with the sleeper's increment and its look at the condition: one of both
	 * sees the other. */
	atomic_fetch_add(&line->changes, 1);
	if (atomic_load(&line->sleepers))
		syscall(SYS_futex, &line->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline bool process_is_dead(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	return pidfd >= 0 && poll(&p, 1, 0) == 1;
}

/* Waits until a rank of this host has joined. ERR_TIMEOUT, ERR_GONE. */
MUST_CHECK enum err collectives_wait_joined(struct collectives *c, u32 rank, struct err_msg *em);
/* Joins the other nodes' ranks. Blocks until all have come, or as bridge_join says, whose errors they are. The bridge is c's. */
MUST_CHECK enum err collectives_build_bridge(struct collectives *c, const struct collectives_config *config, struct err_msg *em);

#endif
