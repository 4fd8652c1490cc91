/* Operations over the mapping that the ranks of a host share, which collectives_join.c makes. Runs in every worker of a tensor-parallel group. Never
 * blocks for longer than its timeout, never trusts another rank to be alive. */
#include "proc_worker/collectives_priv.h"

#include <time.h>

#include "common/assert.h"
#include "common/clock.h"

enum {
	SPIN_NS = 50000, /* ranks finish a layer within microseconds of each other */
	PAUSES_A_CLOCK = 8,
	SLICE_MS = 50, /* between two looks at whether the others live */
	SLICE_COUNTS_NS = 2 * SLICE_MS * 1000000, /* at most, as time that another had */
	REASON_WAIT_MS = 500, /* for the reason why a connection broke, which is there at once */
	SUM_TASK = 16384, /* floats */
};

/* ---------------------------------------------------------------- waiting */

static inline void cpu_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

enum wait_for { WAIT_ARRIVED, WAIT_EPOCH, WAIT_JOINED };

/* 1: it is so, 0: not yet, -1: it will never be, because the rank is in a later epoch. */
static int condition(const struct collectives *c, const struct rank_line *line, enum wait_for what,
		     u64 target)
{
	if (what == WAIT_JOINED)
		return atomic_load(&line->pid) != 0;
	/* One that has arrived may have begun the next epoch already, also between these two looks: so the epoch is looked at
	 * first. */
	u64 epoch = atomic_load(&line->epoch);
	if (what == WAIT_ARRIVED && atomic_load_explicit(&line->arrived, memory_order_acquire) >= target)
		return 1;
	if (epoch > c->epoch)
		return -1;
	return what == WAIT_EPOCH && epoch == c->epoch;
}

static int spin(const struct collectives *c, const struct rank_line *line, enum wait_for what, u64 target)
{
	int state = condition(c, line, what, target);

	if (state)
		return state;
	u64 end = clock_now_ns() + SPIN_NS;
	do {
		for (u32 i = 0; i < PAUSES_A_CLOCK; i++) {
			cpu_pause();
			state = condition(c, line, what, target);
			if (state)
				return state;
		}
	} while (clock_now_ns() < end);
	return 0;
}

static int sleep_slice(const struct collectives *c, struct rank_line *line, enum wait_for what, u64 target)
{
	struct timespec slice = {.tv_nsec = SLICE_MS * 1000000L};

	u32 seen = atomic_load(&line->changes);
	atomic_fetch_add(&line->sleepers, 1);
	int state = condition(c, line, what, target);
	if (!state) {
		syscall(SYS_futex, &line->changes, FUTEX_WAIT, seen, &slice, NULL, 0);
		state = condition(c, line, what, target);
	}
	atomic_fetch_sub(&line->sleepers, 1);
	return state;
}

/* ERR_GONE when the rank will never come. */
static enum err check_rank(const struct collectives *c, u32 rank, struct err_msg *em)
{
	const struct rank_line *line = &c->shared->lines[rank];
	enum bridge_loss loss = (enum bridge_loss)atomic_load(&line->lost);

	if (process_is_dead(c->pidfds[rank]))
		return err_set(em, ERR_GONE, "worker %u (pid %d) has died", rank, atomic_load(&line->pid));
	if (loss != BRIDGE_NO_LOSS)
		return err_set(em, ERR_GONE, "worker %u on node %u %s", rank, rank / c->here, bridge_loss_text(loss));
	return ERR_OK;
}

/* How long to wait for a rank, when this one worked `own_ns` for the same. */
static u64 patience(const struct collectives *c, u32 rank, enum wait_for what, u64 own_ns)
{
	u64 usual = own_ns > c->usual_ns ? own_ns : c->usual_ns;

	if (what != WAIT_ARRIVED || usual > c->most_ns / COLLECTIVES_TIMES || (rank == 0 && c->first != 0))
		return c->most_ns;
	usual *= COLLECTIVES_TIMES;
	return usual > c->least_ns ? usual : c->least_ns;
}

static enum err wait_for_rank(struct collectives *c, u32 rank, enum wait_for what, u64 target, u64 own_ns,
			      struct err_msg *em)
{
	struct rank_line *line = &c->shared->lines[rank];
	int state = spin(c, line, what, target);
	u64 limit_ns = patience(c, rank, what, own_ns), waited_ns = 0, last_ns = state ? 0 : clock_now_ns();
	u32 beats = atomic_load(&line->beats);

	while (!state) {
		state = sleep_slice(c, line, what, target);
		if (state)
			break;
		enum err e = check_rank(c, rank, em);
		if (e)
			return e;
		u64 now = clock_now_ns(), slice = now - last_ns;
		last_ns = now;
		waited_ns += slice < SLICE_COUNTS_NS ? slice : (u64)SLICE_COUNTS_NS;
		u32 beat = atomic_load(&line->beats);
		if (beat != beats)
			waited_ns = 0;
		beats = beat;
		if (waited_ns > limit_ns)
			return err_set(em, ERR_TIMEOUT, "worker %u did not come within %llu ms", rank,
				       (unsigned long long)(limit_ns / MS));
	}
	if (state < 0)
		return err_set(em, ERR_ABORTED, "worker %u has begun a later epoch", rank);
	return ERR_OK;
}

static enum err wait_for_all(struct collectives *c, enum wait_for what, u64 target, struct err_msg *em)
{
	u64 arrived_ns = clock_now_ns(), own_ns = arrived_ns - c->left_ns;
	enum err e = ERR_OK;

	for (u32 r = 0; !e && r < c->ranks; r++)
		e = r == c->rank ? ERR_OK : wait_for_rank(c, r, what, target, own_ns, em);
	u64 now = clock_now_ns(), cycle = now - c->left_ns, left = c->usual_ns - c->usual_ns / 64;
	if (what == WAIT_ARRIVED)
		c->usual_ns = cycle > left ? cycle : left;
	c->left_ns = now;
	return e;
}

enum err collectives_wait_joined(struct collectives *c, u32 rank, struct err_msg *em)
{
	return wait_for_rank(c, rank, WAIT_JOINED, 0, 0, em);
}

/* ---------------------------------------------------------------- operations */

static void *part_of(const struct collectives *c, u32 rank, u64 sequence)
{
	size_t index = (size_t)(sequence % 2) * c->ranks + rank;

	return (char *)c->shared + HEAD_BYTES + index * c->buffer_bytes;
}

void *collectives_buffer(struct collectives *c)
{
	return part_of(c, c->rank, c->sequence);
}

/* Sending fails a moment before the thread that receives has found out which node is lost, and why. */
static enum err connection_broke(const struct collectives *c, struct err_msg *em)
{
	const struct timespec pause = {.tv_nsec = 1000 * 1000};

	for (u32 i = 0; i < REASON_WAIT_MS; i++) {
		enum err e = collectives_check(c, em);
		if (e)
			return e;
		nanosleep(&pause, NULL);
	}
	return err_set(em, ERR_GONE, "the connection to another node broke");
}

/* Shows this rank's part to all who read it, and waits for theirs. */
static enum err exchange(struct collectives *c, size_t bytes, bool for_rank_0, const void **parts, struct err_msg *em)
{
	struct rank_line *line = &c->shared->lines[c->rank];
	u64 sequence = c->sequence++;

	ASSERT(bytes <= c->buffer_bytes);
	for (u32 r = 0; r < c->ranks; r++)
		parts[r] = part_of(c, r, sequence);
	atomic_store_explicit(&line->arrived, c->sequence, memory_order_release);
	announce(line);
	if (c->bridge && bridge_send_part(c->bridge, sequence, parts[c->rank], bytes, for_rank_0))
		return connection_broke(c, em);
	return wait_for_all(c, WAIT_ARRIVED, c->sequence, em);
}

enum err collectives_all_gather(struct collectives *c, size_t bytes, const void **parts, struct err_msg *em)
{
	return exchange(c, bytes, false, parts, em);
}

enum err collectives_gather(struct collectives *c, size_t bytes, const void **parts, struct err_msg *em)
{
	return exchange(c, bytes, true, parts, em);
}

struct sum {
	const float *const *parts;
	u32 ranks;
	float *out;
	size_t count;
};

static void sum_task(void *arg, u32 task, u32 thread)
{
	const struct sum *s = arg;
	size_t begin = (size_t)task * SUM_TASK;
	size_t end = begin + SUM_TASK < s->count ? begin + SUM_TASK : s->count;
	float *restrict out = s->out;
	(void)thread;

	for (size_t i = begin; i < end; i++)
		out[i] = s->parts[0][i] + s->parts[1][i];
	for (u32 r = 2; r < s->ranks; r++)
		for (size_t i = begin; i < end; i++)
			out[i] += s->parts[r][i];
}

enum err collectives_all_reduce(struct collectives *c, float *out, size_t count, struct err_msg *em)
{
	const void *parts[COLLECTIVES_RANKS_MAX];

	ASSERT(count * sizeof(float) <= c->buffer_bytes && c->ranks >= 2);
	enum err e = collectives_all_gather(c, count * sizeof(float), parts, em);
	if (e)
		return e;
	struct sum s = {(const float *const *)parts, c->ranks, out, count};
	u32 tasks = (u32)((count + SUM_TASK - 1) / SUM_TASK);
	if (c->threads && tasks > 1)
		kern_threads_run(c->threads, tasks, sum_task, &s);
	else
		for (u32 i = 0; i < tasks; i++)
			sum_task(&s, i, 0);
	return ERR_OK;
}

/* Ranks may have left the last epoch in different operations. Each states how far it was before it announces
 * the epoch, and goes on from the farthest: nobody counts beyond that before all have announced it. */
enum err collectives_begin(struct collectives *c, u64 epoch, struct err_msg *em)
{
	struct rank_line *line = &c->shared->lines[c->rank];

	c->epoch = epoch;
	atomic_store(&line->base, c->sequence);
	atomic_store(&line->epoch, epoch);
	announce(line);
	if (c->bridge && bridge_send_epoch(c->bridge, epoch, c->sequence))
		return connection_broke(c, em);
	enum err e = wait_for_all(c, WAIT_EPOCH, 0, em);
	for (u32 r = 0; !e && r < c->ranks; r++) {
		u64 base = atomic_load(&c->shared->lines[r].base);
		c->sequence = base > c->sequence ? base : c->sequence;
	}
	return e;
}

void collectives_set_timeout(struct collectives *c, u32 least_ms, u32 most_ms)
{
	c->least_ns = least_ms * MS;
	c->most_ns = most_ms * MS;
}

void collectives_step(struct collectives *c)
{
	c->left_ns = clock_now_ns();
}

void collectives_beat(struct collectives *c)
{
	atomic_fetch_add_explicit(&c->shared->lines[c->rank].beats, 1, memory_order_relaxed);
}

u64 collectives_beats(const struct collectives *c)
{
	u64 sum = 0;

	for (u32 r = 0; r < c->ranks; r++)
		sum += atomic_load_explicit(&c->shared->lines[r].beats, memory_order_relaxed);
	return sum;
}

/* ---------------------------------------------------------------- other nodes */

static void *on_part(void *ctx, u32 rank, u64 sequence)
{
	return part_of(ctx, rank, sequence);
}

static void on_arrived(void *ctx, u32 rank, u64 sequence)
{
	struct rank_line *line = &((struct collectives *)ctx)->shared->lines[rank];

	atomic_store_explicit(&line->arrived, sequence + 1, memory_order_release);
	announce(line);
}

static void on_epoch(void *ctx, u32 rank, u64 epoch, u64 base)
{
	struct rank_line *line = &((struct collectives *)ctx)->shared->lines[rank];

	atomic_store(&line->base, base);
	atomic_store(&line->epoch, epoch);
	announce(line);
}

static void on_lost(void *ctx, u32 rank, enum bridge_loss loss)
{
	struct collectives *c = ctx;
	struct rank_line *line = &c->shared->lines[rank];

	atomic_store(&line->lost, (u32)loss);
	announce(line);
	if (loss == BRIDGE_LEFT)
		return;
	pthread_mutex_lock(&c->lost_mutex);
	c->any_lost = true;
	if (c->lost_fn)
		c->lost_fn(c->lost_ctx);
	pthread_mutex_unlock(&c->lost_mutex);
}

void collectives_on_lost(struct collectives *c, void (*fn)(void *ctx), void *ctx)
{
	pthread_mutex_lock(&c->lost_mutex);
	c->lost_fn = fn;
	c->lost_ctx = ctx;
	if (fn && c->any_lost)
		fn(ctx);
	pthread_mutex_unlock(&c->lost_mutex);
}

enum err collectives_build_bridge(struct collectives *c, const struct collectives_config *config, struct err_msg *em)
{
	const struct collectives_nodes *n = config->nodes;
	struct bridge_config b = {.rank = c->rank,
				  .ranks = c->ranks,
				  .node = n->index,
				  .nodes = n->count,
				  .address = n->address,
				  .port = n->port,
				  .options_hash = n->options_hash,
				  .part_bytes_max = c->buffer_bytes,
				  .join_timeout_ms = n->join_timeout_ms,
				  .waiting = n->waiting,
				  .waiting_ctx = n->waiting_ctx,
				  .sink = {c, on_part, on_arrived, on_epoch, on_lost}};

	cluster_secret_derive(n->secret, "workers", b.key);
	return bridge_join(&c->bridge, &b, &c->group, em);
}

u64 collectives_group(const struct collectives *c)
{
	return c->group;
}

int collectives_lost_fd(const struct collectives *c)
{
	return c->bridge ? bridge_lost_fd(c->bridge) : -1;
}

enum err collectives_check(const struct collectives *c, struct err_msg *em)
{
	const char *address;
	u32 node;
	enum bridge_loss loss = c->bridge ? bridge_first_loss(c->bridge, &node, &address) : BRIDGE_NO_LOSS;

	if (loss == BRIDGE_NO_LOSS)
		return ERR_OK;
	if (loss == BRIDGE_LEFT && node == 0)
		return err_set(em, ERR_SHUTDOWN, "node 0 (%s) has stopped the engine", address);
	return err_set(em, ERR_GONE, "node %u (%s) is lost: it %s", node, address, bridge_loss_text(loss));
}

void collectives_farewell(struct collectives *c)
{
	c->farewell = true;
}
