/* What the files of the emulation share. */
#ifndef CUDA_EMU_PRIV_H
#define CUDA_EMU_PRIV_H

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/emu.h"
#include "tests/cuda_emu/emu_asan.h"

/* ---------------------------------------------------------------- the processor */

/* Wider vectors where there are any, with the same results: no multiply-add is fused. */
#ifdef __x86_64__
#define EMU_AVX2 __attribute__((target("avx2")))
static inline bool emu_has_avx2(void)
{
	static const bool has = __builtin_cpu_supports("avx2");
	return has;
}
#else
#define EMU_AVX2
static inline bool emu_has_avx2(void)
{
	return false;
}
#endif

/* Inner loops over arrays of the emulation's own, of fixed bounds: sanitizers would only make them scalar. And what each switch from
 * thread to thread goes through. */
#define EMU_PLAIN __attribute__((no_sanitize("address", "undefined")))

/* ---------------------------------------------------------------- random numbers */

struct emu_random {
	u64 state;
};
/* splitmix64 (Steele, Lea, Flood 2014) */
static inline u64 emu_random_next(struct emu_random *r)
{
	u64 z = r->state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static inline u32 emu_random_below(struct emu_random *r, u32 n)
{
	return (u32)((emu_random_next(r) >> 32) * n >> 32);
}

/* ---------------------------------------------------------------- fibers (fiber.cc) */

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(CUDA_EMU_UCONTEXT)
#define EMU_OWN_SWITCH 1
/* emu_switch(void **save, void *restore): keeps what a callee has to keep on the stack, leaves its address in
 * *save, goes on with the stack at `restore`. */
extern "C" void emu_switch(void **save, void *restore);
#else
#include <ucontext.h>
#endif

struct emu_fiber {
#ifdef EMU_OWN_SWITCH
	void *sp;
#else
	ucontext_t context;
#endif
	char *stack;
	size_t stack_bytes;
	void *fake_stack; /* of AddressSanitizer */
	const void *bottom; /* the host's, found out at the first switch away from it */
};

typedef void (*emu_fiber_fn)(void);
/* A fiber runs `fn`, which must never return; it is left by switching away. */
struct emu_fiber *emu_fiber_take(emu_fiber_fn fn);
/* The fiber is suspended or is the running one, which leaves it right after. It can be taken again, and goes on
 * behind the switch that left it. */
void emu_fiber_give(struct emu_fiber *f);
/* The thread of the host itself, as something to switch to. */
struct emu_fiber *emu_fiber_host(void);
#if defined(EMU_ASAN) || !defined(EMU_OWN_SWITCH)
void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to);
#else
static inline void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to)
{
	emu_switch(&from->sp, to->sp);
}
#endif
bool emu_fiber_is_stack(const void *p);
/* Forgets whatever runs on any fiber. Called from the host. */
void emu_fiber_reset(void);

/* ---------------------------------------------------------------- shared memory (shared.cc) */

/* Poison: NaN in every float format, -1 in every integer one. */
enum { EMU_POISON = 0xff, EMU_SHARED_ARRAYS = 24 };
enum { EMU_SHARED_STATIC_MAX = 48 << 10, EMU_SHARED_MAX = 227 << 10 }; /* compute capability 9.0 */

struct emu_shared_array {
	const void *key; /* NULL: the dynamic one */
	const char *name;
	unsigned char *data;
	size_t bytes;
};
/* The shared memory of a block: the dynamic array and every static one, each of its exact size between red zones. */
struct emu_shared {
	unsigned char *arena;
	struct emu_cell *cells; /* who touched each byte of the arena; NULL: races are not looked for (race.cc) */
	size_t used, static_bytes, dynamic_bytes;
	u32 count;
	struct emu_shared_array array[EMU_SHARED_ARRAYS];
};
/* For a new launch: forgets the arrays of the last one. */
void emu_shared_begin(struct emu_shared *s, size_t dynamic_bytes);
void emu_shared_end(struct emu_shared *s);
/* For a new block: poisons all arrays. */
void emu_shared_poison(struct emu_shared *s);
/* The array beside which something was written, or NULL. */
const char *emu_shared_overrun(const struct emu_shared *s);
/* NULL: over the limit. */
void *emu_shared_array(struct emu_shared *s, const void *key, const char *name, size_t bytes);
size_t emu_shared_arena_bytes(void);
bool emu_shared_contains(const struct emu_shared *s, const void *p, size_t bytes);

/* ---------------------------------------------------------------- blocks (block.cc) */

struct emu_schedule {
	enum emu_order order;
	struct emu_random random;
};

enum { EMU_THREADS_MAX = 1024, EMU_WARPS_MAX = 32, EMU_BARRIERS = 16, EMU_MEETINGS = 8, EMU_PRODUCTS = 16, EMU_PHASES = 32 };

/* Lanes of a warp that wait for each other, known by their mask. */
struct emu_meeting {
	u32 mask, arrived;
	emu_warp_fn fn;
	const char *what;
	struct emu_site site; /* of the first to arrive */
};

/* A product in flight (wgmma.cc). */
struct emu_wgmma : emu_wgmma_call {
	float *d[32];
	const u32 *a[32];
	u32 group;
	bool first; /* on these results: they were `before` */
	float before[32][128];
};

struct emu_products {
	struct emu_wgmma list[EMU_PRODUCTS]; /* oldest first */
	u32 count, group;
	bool fenced;
};

struct emu_warp {
	u32 alive, ready; /* lanes: not returned; able to go on and not running */
	u32 epoch;	  /* cu_syncwarp since the block began */
	u32 meetings;	  /* with lanes in them */
	struct emu_meeting *latest;
	struct emu_meeting meeting[EMU_MEETINGS];
	struct emu_lane lane[32];
	struct emu_products products;
};

struct emu_barrier {
	u32 arrived, expected, votes; /* expected 0: all threads */
	bool unfenced;		      /* one of them has copies that products cannot see */
	u32 waiting[EMU_WARPS_MAX];   /* lanes */
	const char *what;
	struct emu_site site;
	u32 result; /* votes of the last time all met */
};

/* Threads that wait for a barrier in shared memory. */
struct emu_phase_waiters {
	const u64 *barrier; /* NULL: none */
	u32 waiting[EMU_WARPS_MAX]; /* lanes */
};

/* EARLY: waits for the kernel before its own. */
enum emu_block_state { EMU_RUNNING, EMU_DONE, EMU_STOPPED, EMU_EARLY };
struct emu_block {
	u64 number; /* in its grid */
	const struct emu_launch *launch;
	struct emu_schedule *schedule;
	struct emu_place place;
	u32 threads, warps, alive, ready_warps, warp_now, favourite;
	bool may_go_on; /* past cu_grid_wait */
	enum emu_block_state state;
	cudaError_t error;
	u32 epoch; /* of its last barrier, over all blocks */
	u32 ordinal; /* no two blocks have the same; 0: races are not looked for */
	struct emu_site barrier_site; /* the last one of this block */
	struct emu_shared shared;
	struct emu_warp warp[EMU_WARPS_MAX];
	struct emu_barrier barrier[EMU_BARRIERS];
	struct emu_phase_waiters phase[EMU_PHASES];
	struct emu_thread thread[EMU_THREADS_MAX];
};
/* The block that runs, or NULL. */
extern struct emu_block *emu_now;

/* The running thread waits until others make it ready. */
void emu_wait(const char *what, struct emu_site site, u32 mask, i32 barrier);
void emu_make_ready(struct emu_block *b, u32 warp, u32 lanes);
/* The running thread may have to let others go first, as the schedule says. */
void emu_maybe_yield(void);

/* Runs all blocks of a launch, one after another; `early`, if not NULL, is one of them that has begun. What stopped it
 * is in emu_report. */
cudaError_t emu_run(const struct emu_launch *launch, struct emu_schedule *schedule, struct emu_block *early);
/* Runs one block of a dependent launch up to its cu_grid_wait, before the kernel that comes before it: a device may do
 * so. NULL, *error: it was stopped. One at a time. */
struct emu_block *emu_run_early(const struct emu_launch *launch, struct emu_schedule *schedule, cudaError_t *error);

/* After a thread has returned: are those who wait for it complete without it? (barrier.cc, warp.cc) */
void emu_barrier_thread_gone(struct emu_block *b);
void emu_warp_lane_gone(struct emu_block *b, u32 warp);

/* ---------------------------------------------------------------- races (race.cc) */

enum emu_access { EMU_READ, EMU_WRITE, EMU_ATOMIC_ACCESS };
void emu_race_check(bool on);
void emu_race_begin_launch(void);
void emu_race_begin_block(struct emu_block *b);
void emu_race_barrier(struct emu_block *b, struct emu_site site);
size_t emu_cell_bytes(void); /* of struct emu_cell */
/* The cells of an allocation of device or pinned memory, made when they are first asked for (memory.cc). */
struct emu_cells {
	const unsigned char *start;
	size_t bytes; /* 0: other memory */
	struct emu_cell *cells;
	u64 frees; /* what is known of memory holds until this number changes */
};
struct emu_cells emu_memory_cells(const void *p);
extern u64 emu_memory_frees;
/* The running thread touches memory: stops the kernel if that is a race. */
void emu_touch(const void *p, size_t bytes, enum emu_access access, struct emu_site site);

/* ---------------------------------------------------------------- faults (signals.cc) */

/* Faults of the calling thread while it runs a block are the device's. */
void emu_faults_catch(void);

/* ---------------------------------------------------------------- reports (report.cc) */

/* "where everybody waits", for a deadlock */
void emu_report_deadlock(struct emu_block *b);
void emu_report_set(const char *text);
extern struct emu_counts emu_counted;

#endif
