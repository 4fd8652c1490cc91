#include "tests/unit/proc_worker/fake_gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "ipc/ipc.h"

enum { ROWS_MAX = 64 };

struct slot {
	u64 step, started_ns, done_ns;
	u32 count, tokens[ROWS_MAX];
};

struct gpu {
	struct gpu_config config;
	u32 blocks;
	struct slot ring[GPU_RING];
	u64 last_step, last_done_ns;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	bool aborted;
};

struct fake_gpu fake_gpu;

/* One that has failed is left behind, and no leak. */
static struct gpu *volatile latest;

u32 fake_gpu_token(u64 seq, u32 position, u32 vocab)
{
	return (u32)(seq * 7 + position * 3) % vocab;
}

enum err gpu_check(const struct gpu_config *c, struct err_msg *em)
{
	(void)c;
	if (fake_gpu.unsupported)
		return err_set(em, ERR_UNSUPPORTED, "the fake has no kernels for this");
	return ERR_OK;
}

enum err gpu_create(struct gpu **out, const struct gpu_config *c, struct err_msg *em)
{
	(void)em;
	ASSERT(c->limits.rows_max <= ROWS_MAX && c->weights->dtype == KERN_BF16);
	struct gpu *g = calloc(1, sizeof(*g));
	ASSERT(g);
	g->config = *c;
	pthread_mutex_init(&g->mutex, NULL);
	pthread_cond_init(&g->changed, NULL);
	c->progress(c->progress_ctx, 1, "faking");
	fake_gpu.created++;
	*out = latest = g;
	return ERR_OK;
}

void gpu_destroy(struct gpu **g)
{
	if (!*g)
		return;
	pthread_mutex_destroy(&(*g)->mutex);
	pthread_cond_destroy(&(*g)->changed);
	free(*g);
	*g = NULL;
	fake_gpu.destroyed++;
}

enum err gpu_take_blocks(struct gpu *g, u32 blocks, struct err_msg *em)
{
	(void)em;
	ASSERT(blocks == FAKE_GPU_BLOCKS && !g->blocks);
	g->blocks = blocks;
	return ERR_OK;
}

enum err gpu_take_host_blocks(struct gpu *g, u32 blocks, struct err_msg *em)
{
	ASSERT(g->blocks && blocks > 0);
	fake_gpu.host_blocks = blocks;
	return fake_gpu.no_host_blocks ? err_set(em, ERR_NO_MEMORY, "no pinned memory") : ERR_OK;
}

u32 gpu_block_count(const struct gpu *g)
{
	return g->blocks ? g->blocks : FAKE_GPU_BLOCKS;
}

u32 gpu_state_slots(const struct gpu *g)
{
	const struct state_memory *s = g->config.states;

	return s->stride ? s->slots - g->config.limits.rows_max : 0;
}

u64 gpu_state_bytes(const struct gpu *g)
{
	return g->config.states->stride * g->config.states->slots * sizeof(float);
}

u64 gpu_weight_bytes(const struct gpu *g)
{
	(void)g;
	return 12345;
}

void gpu_weight_types(const struct gpu *g, char *text, size_t bytes)
{
	(void)g;
	snprintf(text, bytes, "%s", kern_dtype_name(KERN_BF16));
}

u64 gpu_kv_block_bytes(const struct gpu *g)
{
	(void)g;
	return 2048;
}

enum err gpu_begin(struct gpu *g, struct err_msg *em)
{
	(void)em;
	g->last_step = 0;
	fake_gpu.begins++;
	return ERR_OK;
}

enum err gpu_forward(struct gpu *g, const struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	ASSERT(b->applied && s->step == b->step && s->step == g->last_step + 1);
	if (s->step == fake_gpu.refuse_at)
		return err_set(em, ERR_DEVICE, "the fake refuses");
	g->last_step = s->step;
	return ERR_OK;
}

static u32 sample(const struct gpu *g, const struct batch_state *b, u32 row)
{
	const struct batch_row *r = &b->rows[row];
	u32 vocab = g->config.model->vocab_size;

	return fake_gpu_token(r->seq, b->known[row] - r->prompt_count, vocab);
}

/* Of a row with a mask its lowest token. */
static u32 lowest(const u32 *allowed, u32 vocab)
{
	for (u32 id = 0; id < vocab; id++)
		if (allowed[id / 32] >> id % 32 & 1)
			return id;
	return vocab;
}

enum err gpu_sample(struct gpu *g, const struct batch_state *b, const u32 *const *allowed, struct err_msg *em)
{
	struct slot *slot = &g->ring[b->step % GPU_RING];
	u64 now = clock_now_ns();
	(void)em;

	ASSERT(b->applied && b->step == g->last_step);
	slot->count = b->sample_count;
	for (u32 i = 0; i < b->sample_count; i++)
		slot->tokens[i] = allowed && allowed[i] ? lowest(allowed[i], g->config.model->vocab_size)
							: sample(g, b, b->sample_rows[i]);
	slot->started_ns = now > g->last_done_ns ? now : g->last_done_ns;
	slot->done_ns = g->last_done_ns = slot->started_ns + fake_gpu.step_us * 1000;
	slot->step = b->step;
	fake_gpu.sampled++;
	return ERR_OK;
}

bool gpu_recorded(const struct gpu *g)
{
	return g->last_step == fake_gpu.record_at;
}

enum err gpu_wait(struct gpu *g, u64 step, struct err_msg *em)
{
	const struct slot *slot = &g->ring[step % GPU_RING];

	ASSERT(slot->step == step);
	if (step == fake_gpu.fail_at)
		return err_set(em, ERR_DEVICE, "an illegal memory access was encountered");
	if (step == fake_gpu.hang_at) {
		pthread_mutex_lock(&g->mutex);
		while (!g->aborted || fake_gpu.stubborn)
			pthread_cond_wait(&g->changed, &g->mutex);
		pthread_mutex_unlock(&g->mutex);
		return err_set(em, ERR_DEVICE, "aborted");
	}
	while (clock_now_ns() < slot->done_ns || (fake_gpu.held_from && step >= fake_gpu.held_from))
		usleep(50);
	return ERR_OK;
}

enum err gpu_result(struct gpu *g, u64 step, struct gpu_result *out, struct err_msg *em)
{
	const struct slot *slot = &g->ring[step % GPU_RING];

	if (slot->step != step)
		return err_set(em, ERR_NOT_FOUND, "no such step");
	*out = (struct gpu_result){.step = step,
				   .count = slot->count,
				   .tokens = slot->tokens,
				   .started_ns = slot->started_ns,
				   .done_ns = slot->done_ns};
	return ERR_OK;
}

void gpu_abort(struct gpu *g)
{
	pthread_mutex_lock(&g->mutex);
	g->aborted = true;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->mutex);
	fake_gpu.aborts++;
}
