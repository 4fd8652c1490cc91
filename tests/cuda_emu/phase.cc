/* Barriers in shared memory (mbarrier). Their state is in their eight bytes, who waits in the block's list. */
#include "tests/cuda_emu/emu_priv.h"

struct phase {
	u16 magic, expected, left; /* of the phase that goes on */
	u8 parity;
	u8 unfenced; /* bit 0: one of those that have arrived has copies that products cannot see; bit 1: of the phase before */
};
static_assert(sizeof(struct phase) == sizeof(u64), "as on a device");
enum { MAGIC = 0x6d62 };

static struct phase *find(u64 *barrier, const char *what, struct emu_site site)
{
	struct phase *p = reinterpret_cast<struct phase *>(barrier);
	emu_align(barrier, sizeof(*barrier), what, site.file, site.line);
	if (!emu_shared_contains(&emu_now->shared, barrier, sizeof(*barrier)))
		emu_trap(cudaErrorIllegalAddress, site.file, site.line, "%s: %p is not in shared memory", what,
			 static_cast<void *>(barrier));
	if (p->magic != MAGIC)
		emu_trap(cudaErrorLaunchFailure, site.file, site.line, "%s: no cu_phase_init has made this barrier", what);
	return p;
}

void emu_phase_init(u64 *barrier, u32 count, struct emu_site site)
{
	const struct phase made = {MAGIC, (u16)count, (u16)count, 0, 0};
	emu_align(barrier, sizeof(*barrier), "cu_phase_init", site.file, site.line);
	if (count == 0 || count > EMU_THREADS_MAX || !emu_shared_contains(&emu_now->shared, barrier, sizeof(*barrier)))
		emu_trap(cudaErrorLaunchFailure, site.file, site.line, "cu_phase_init of %p for %u", static_cast<void *>(barrier),
			 count);
	memcpy(barrier, &made, sizeof(made));
}

void emu_phase_arrive(u64 *barrier, struct emu_site site)
{
	struct emu_block *b = emu_now;
	struct phase *p = find(barrier, "cu_phase_arrive", site);
	p->unfenced |= emu_self->unfenced;
	if (--p->left > 0)
		return;
	p->left = p->expected;
	p->parity ^= 1;
	p->unfenced = (u8)(p->unfenced << 1 & 2);
	emu_race_barrier(b, site);
	for (struct emu_phase_waiters &w : b->phase) {
		if (w.barrier != barrier)
			continue;
		for (u32 i = 0; i < b->warps; i++) {
			emu_make_ready(b, i, w.waiting[i]);
			w.waiting[i] = 0;
		}
		w.barrier = NULL;
	}
}

/* The copies come when they are waited for, so at once. */
void emu_phase_arrive_copied(u64 *barrier, struct emu_site site)
{
	emu_self->copies.group++;
	emu_cp_wait(0);
	emu_phase_arrive(barrier, site);
}

/* The list's entry for the barrier. */
static struct emu_phase_waiters *waiters(struct emu_block *b, const u64 *barrier, struct emu_site site)
{
	for (struct emu_phase_waiters &w : b->phase)
		if (w.barrier == barrier)
			return &w;
	for (struct emu_phase_waiters &w : b->phase)
		if (w.barrier == NULL) {
			w.barrier = barrier;
			return &w;
		}
	emu_trap(cudaErrorLaunchFailure, site.file, site.line, "threads wait for more than %d barriers", EMU_PHASES);
}

void emu_phase_wait(u64 *barrier, u32 parity, struct emu_site site)
{
	struct emu_block *b = emu_now;
	const struct phase *p = find(barrier, "cu_phase_wait", site);
	while (p->parity == (parity & 1)) {
		waiters(b, barrier, site)->waiting[emu_self->warp] |= 1u << emu_self->lane;
		emu_wait("cu_phase_wait", site, 0, -1);
	}
	emu_self->tainted |= (p->unfenced & 2) != 0;
}
