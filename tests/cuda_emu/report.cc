/* What the emulation found, in words, and what it counted. */
#include <stdio.h>

#include "tests/cuda_emu/emu_priv.h"

static struct {
	char text[4000];
} report;
struct emu_counts emu_counted;

const char *emu_report(void)
{
	return report.text;
}

void emu_report_clear(void)
{
	report.text[0] = '\0';
}

void emu_report_set(const char *text)
{
	snprintf(report.text, sizeof(report.text), "%s", text);
	fputs(report.text, stderr);
}

struct emu_counts emu_counts(void)
{
	return emu_counted;
}

static bool same_wait(const struct emu_thread *a, const struct emu_thread *b)
{
	return a->wait.what == b->wait.what && a->wait.site.line == b->wait.site.line && a->wait.mask == b->wait.mask &&
	       a->wait.barrier == b->wait.barrier;
}

/* One line per group of lanes of a warp that wait in one place. */
static int describe_warp(const struct emu_block *b, u32 warp, char *text, size_t bytes)
{
	u32 left = b->warp[warp].alive;
	int n = 0;
	while (left != 0 && n < (int)bytes) {
		const struct emu_thread *first = &b->thread[warp * 32 + (u32)__builtin_ctz(left)];
		u32 lanes = 0;
		for (u32 l = 0; l < 32; l++) {
			if ((left >> l & 1) != 0 && same_wait(first, &b->thread[warp * 32 + l]))
				lanes |= 1u << l;
		}
		n += snprintf(text + n, bytes - (size_t)n, "  warp %u, lanes %08x wait in %s at %s:%d", warp, lanes,
			      first->wait.what, first->wait.site.file, first->wait.site.line);
		if (n < (int)bytes && first->wait.mask != 0)
			n += snprintf(text + n, bytes - (size_t)n, " for lanes %08x", first->wait.mask);
		if (n < (int)bytes && first->wait.barrier > 0)
			n += snprintf(text + n, bytes - (size_t)n, " (barrier %d: %u of %u threads)", first->wait.barrier,
				      b->barrier[first->wait.barrier].arrived, b->barrier[first->wait.barrier].expected);
		if (n < (int)bytes)
			n += snprintf(text + n, bytes - (size_t)n, "\n");
		left &= ~lanes;
	}
	return n < (int)bytes ? n : (int)bytes - 1;
}

void emu_report_deadlock(struct emu_block *b)
{
	const uint3 *i = &b->place.block_index;
	char text[sizeof(report.text)];
	int n = snprintf(text, sizeof(text), "cuda_emu: kernel %s, block (%u, %u, %u): deadlock, %u of %u threads wait:\n",
			 b->launch->name, i->x, i->y, i->z, b->alive, b->threads);
	for (u32 w = 0; w < b->warps && n < (int)sizeof(text) - 1; w++)
		n += describe_warp(b, w, text + n, sizeof(text) - (size_t)n);
	emu_report_set(text);
}
