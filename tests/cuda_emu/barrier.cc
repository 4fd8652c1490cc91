/* Barriers of a block. Threads that have returned count as arrived at cu_sync, as on devices since Volta. */
#include "tests/cuda_emu/emu_priv.h"

static void open_barrier(struct emu_block *b, u32 id)
{
	struct emu_barrier *r = &b->barrier[id];
	emu_race_barrier(b, r->site);
	r->result = r->votes;
	r->arrived = r->votes = r->expected = 0;
	for (u32 i = 0; i < b->threads && r->unfenced; i++)
		b->thread[i].tainted = true; /* of a named barrier some did not wait: nobody is hurt by a fence */
	r->unfenced = false;
	for (u32 w = 0; w < b->warps; w++) {
		emu_make_ready(b, w, r->waiting[w]);
		r->waiting[w] = 0;
	}
}

void emu_barrier_thread_gone(struct emu_block *b)
{
	if (b->barrier[0].arrived > 0 && b->barrier[0].arrived == b->alive)
		open_barrier(b, 0);
}

u32 emu_barrier_all(bool v, const char *what, struct emu_site site)
{
	struct emu_block *b = emu_now;
	struct emu_barrier *r = &b->barrier[0];
	r->unfenced |= emu_self->unfenced;
	if (r->arrived == 0) {
		r->what = what;
		r->site = site;
	} else if (r->site.line != site.line || (r->site.file != site.file && strcmp(r->site.file, site.file) != 0))
		emu_trap(cudaErrorLaunchFailure, site.file, site.line,
			 "divergent barrier: this thread comes to %s while others of its block wait in %s at %s:%d", what,
			 r->what, r->site.file, r->site.line);
	r->votes += v;
	if (++r->arrived == b->alive)
		open_barrier(b, 0);
	else {
		r->waiting[emu_self->warp] |= 1u << emu_self->lane;
		emu_wait(what, site, 0, 0);
	}
	return r->result;
}

void emu_barrier_named(u32 id, u32 threads, bool wait, struct emu_site site)
{
	struct emu_block *b = emu_now;
	struct emu_barrier *r = &b->barrier[id];
	r->unfenced |= emu_self->unfenced;
	if (threads == 0 || threads % 32 != 0 || threads > b->threads)
		emu_trap(cudaErrorLaunchFailure, site.file, site.line,
			 "barrier %u for %u threads: it has to be a multiple of 32, at most the block's %u", id, threads,
			 b->threads);
	if (r->arrived > 0 && r->expected != threads)
		emu_trap(cudaErrorLaunchFailure, site.file, site.line,
			 "barrier %u for %u threads here, and for %u where others wait", id, threads, r->expected);
	r->expected = threads;
	r->site = site;
	if (++r->arrived == threads)
		open_barrier(b, id);
	else if (wait) {
		r->waiting[emu_self->warp] |= 1u << emu_self->lane;
		emu_wait("cu_barrier_sync", site, 0, (i32)id);
	}
}
