/* What changed between two steps, on its way to the device: diffs, lists, block copies, rows of rotary
 * tables. Runs in the worker in every step; queues copies out of pinned memory, which it writes and then
 * leaves alone until they are done. Nothing here decides anything: the STEP does, and batch_state.c has
 * checked it. */
#include <string.h>

#include "common/assert.h"
#include "ipc/ipc.h"
#include "proc_worker/gpu/gpu_priv.h"

/* ---------------------------------------------------------------- stages */

enum err gpu_stage_take(struct gpu *g, struct gpu_stage **out, struct err_msg *em)
{
	struct gpu_stage *s = &g->stages[g->next_stage++ % GPU_STAGES];

	*out = s;
	if (!s->queued)
		return ERR_OK;
	s->queued = false;
	return g->api->event_sync(s->copied, em);
}

enum err gpu_stage_copy(struct gpu *g, struct gpu_stage *s, void *to, size_t at, size_t bytes,
			struct err_msg *em)
{
	ASSERT(at + bytes <= g->stage_bytes);
	return g->api->copy(g->ctx.stream, to, s->memory + at, bytes, KERN_COPY_UP, em);
}

enum err gpu_stage_sent(struct gpu *g, struct gpu_stage *s, struct err_msg *em)
{
	enum err e = g->api->event_record(s->copied, g->ctx.stream, em);

	s->queued = !e;
	return e;
}

/* ---------------------------------------------------------------- the diff */

/* Where a diff that is written in pieces has got to. */
struct cursor {
	u32 add, token, block; /* the next add, and where its tokens and blocks begin; behind those of the STEP: g->anew */
	u32 grow;
};

/* Forks, and rows with another newest token, are added with all that they are: their tokens are known here, and beams
 * are few. */
static void list_anew(struct gpu *g, const struct ipc_step *s)
{
	g->anew_count = 0;
	for (u32 i = 0; i < s->fork_row_count; i++)
		g->anew[g->anew_count++] = s->fork_row[i];
	for (u32 i = 0; i < s->set_row_count; i++) {
		u32 j = 0;
		while (j < s->fork_row_count && s->fork_row[j] != s->set_row[i])
			j++;
		if (j == s->fork_row_count)
			g->anew[g->anew_count++] = s->set_row[i];
	}
}

/* Its blocks without those that grow in this step. */
static u32 blocks_before(const struct batch_state *b, const struct ipc_step *s, u32 row)
{
	u32 count = b->rows[row].block_count;

	for (u32 i = 0; i < s->grow_row_count; i++)
		count -= s->grow_row[i] == row;
	return count;
}

/* What goes into one piece. */
struct piece {
	u32 drops, adds, grows, runs;
};

static u32 add_words(const struct gpu *g, const struct batch_state *b, const struct ipc_step *s, u32 i)
{
	if (i < s->add_row_count)
		return KERN_ADD_WORDS + s->add_token_count[i] + s->add_block_count[i];
	u32 row = g->anew[i - s->add_row_count];
	return KERN_ADD_WORDS + b->known[row] + blocks_before(b, s, row);
}

/* As much as fits: all drops at first, then adds, then grows; runs last, with the last piece. */
static struct piece fit(const struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
			const struct cursor *at, size_t capacity)
{
	bool first = at->add == 0 && at->grow == 0;
	struct piece p = {.drops = first ? s->drop_row_count : 0};
	size_t used = KERN_DIFF_WORDS + p.drops + 2 * (size_t)s->run_row_count;

	while (at->add + p.adds < s->add_row_count + g->anew_count) {
		size_t words = 1 + add_words(g, b, s, at->add + p.adds);
		if (used + words > capacity)
			return p;
		used += words;
		p.adds++;
	}
	size_t grows = s->grow_row_count - at->grow, room = (capacity - used) / 3;
	p.grows = (u32)(grows < room ? grows : room);
	if (p.grows == grows)
		p.runs = s->run_row_count;
	return p;
}

static u32 bits_of(float f)
{
	u32 bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static void write_anew(u32 *to, const struct batch_state *b, const struct ipc_step *s, u32 row)
{
	const struct batch_row *r = &b->rows[row];
	u32 tokens = b->known[row], blocks = blocks_before(b, s, row);

	to[KERN_ADD_ROW] = row;
	to[KERN_ADD_TOKENS] = tokens;
	to[KERN_ADD_COMPUTED] = b->computed[row];
	to[KERN_ADD_PROMPT] = r->prompt_count;
	to[KERN_ADD_BLOCKS] = blocks;
	to[KERN_ADD_TEMPERATURE] = bits_of(r->params.temperature);
	to[KERN_ADD_TOP_P] = bits_of(r->params.top_p);
	to[KERN_ADD_MIN_P] = bits_of(r->params.min_p);
	to[KERN_ADD_TOP_K] = r->params.top_k;
	to[KERN_ADD_SEED_LOW] = (u32)r->params.seed;
	to[KERN_ADD_SEED_HIGH] = (u32)(r->params.seed >> 32);
	memcpy(to + KERN_ADD_WORDS, batch_state_tokens(b, row), tokens * sizeof(u32));
	memcpy(to + KERN_ADD_WORDS + tokens, batch_state_blocks(b, row), blocks * sizeof(u32));
}

static void write_add(u32 *to, const struct ipc_step *s, const struct cursor *at)
{
	u32 i = at->add, tokens = s->add_token_count[i], blocks = s->add_block_count[i];

	to[KERN_ADD_ROW] = s->add_row[i];
	to[KERN_ADD_TOKENS] = tokens;
	to[KERN_ADD_COMPUTED] = s->add_computed[i];
	to[KERN_ADD_PROMPT] = s->add_prompt_count[i];
	to[KERN_ADD_BLOCKS] = blocks;
	to[KERN_ADD_TEMPERATURE] = bits_of(s->add_temperature[i]);
	to[KERN_ADD_TOP_P] = bits_of(s->add_top_p[i]);
	to[KERN_ADD_MIN_P] = bits_of(s->add_min_p[i]);
	to[KERN_ADD_TOP_K] = s->add_top_k[i];
	to[KERN_ADD_SEED_LOW] = (u32)s->add_seed[i];
	to[KERN_ADD_SEED_HIGH] = (u32)(s->add_seed[i] >> 32);
	memcpy(to + KERN_ADD_WORDS, s->add_tokens + at->token, tokens * sizeof(u32));
	if (blocks)
		memcpy(to + KERN_ADD_WORDS + tokens, s->add_blocks + at->block, blocks * sizeof(u32));
}

/* The index of a grown block in its row's table: the last one of the step is the table's last. `grown` counts
 * from behind, so grows are looked at in reverse and in the order of the STEP alike. */
static void write_grows(struct gpu *g, const struct batch_state *b, const struct ipc_step *s, u32 first,
			u32 count, u32 *to)
{
	for (u32 i = s->grow_row_count; i-- > first;) {
		u32 row = s->grow_row[i], index = b->rows[row].block_count - ++g->grown[row];
		if (i >= first + count)
			continue; /* of a later piece */
		to[3 * (i - first)] = row;
		to[3 * (i - first) + 1] = index;
		to[3 * (i - first) + 2] = s->grow_block[i];
	}
	for (u32 i = first; i < s->grow_row_count; i++)
		g->grown[s->grow_row[i]] = 0;
}

static size_t write_piece(struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
			  const struct piece *p, struct cursor *at, u32 *words)
{
	u32 *to = words + KERN_DIFF_WORDS;

	words[KERN_DIFF_DROPS] = p->drops;
	words[KERN_DIFF_GROWS] = p->grows;
	words[KERN_DIFF_RUNS] = p->runs;
	words[KERN_DIFF_ADDS] = p->adds;
	for (u32 i = 0; i < p->drops; i++)
		*to++ = s->drop_row[i];
	write_grows(g, b, s, at->grow, p->grows, to);
	to += 3 * (size_t)p->grows;
	at->grow += p->grows;
	for (u32 i = 0; i < p->runs; i++) {
		*to++ = s->run_row[i];
		*to++ = s->run_count[i];
	}
	u32 *offsets = to;
	to += p->adds;
	for (u32 i = 0; i < p->adds; i++, at->add++) {
		offsets[i] = (u32)(to - words);
		u32 *record = to;
		to += add_words(g, b, s, at->add);
		if (at->add >= s->add_row_count) {
			write_anew(record, b, s, g->anew[at->add - s->add_row_count]);
			continue;
		}
		write_add(record, s, at);
		at->token += s->add_token_count[at->add];
		at->block += s->add_block_count[at->add];
	}
	return (size_t)(to - words) * sizeof(u32);
}

static enum err apply(struct gpu *g, const u32 *diff, struct err_msg *em)
{
	struct kern_apply_diff_args a = {.batch = &g->arena.batch, .diff = diff};

	return gpu_op(g->device_ops.apply_diff(&g->ctx, &a), "apply_diff", em);
}

static enum err apply_piece(struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
			    struct cursor *at, bool *last, struct err_msg *em)
{
	struct piece p = fit(g, b, s, at, g->stage_bytes / sizeof(u32));
	struct gpu_stage *stage;

	enum err e = gpu_stage_take(g, &stage, em);
	if (e)
		return e;
	size_t bytes = write_piece(g, b, s, &p, at, (u32 *)(void *)stage->memory);
	*last = at->add == s->add_row_count + g->anew_count && at->grow == s->grow_row_count;
	e = gpu_stage_copy(g, stage, g->arena.upload, 0, bytes, em);
	if (!e)
		e = gpu_stage_sent(g, stage, em);
	return e ? e : apply(g, (const u32 *)(const void *)g->arena.upload, em);
}

enum err gpu_apply(struct gpu *g, const struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	bool had_exceptions = g->has_exceptions, last = false;
	struct cursor at = {0};
	enum err e = ERR_OK;

	g->has_exceptions = s->run_row_count > 0;
	list_anew(g, s);
	if (!s->drop_row_count && !s->add_row_count && !g->anew_count && !s->grow_row_count && !s->run_row_count)
		return had_exceptions ? apply(g, g->arena.no_diff, em) : ERR_OK; /* back to the rule */
	while (!e && !last)
		e = apply_piece(g, b, s, &at, &last, em);
	return e;
}

/* ---------------------------------------------------------------- lists of rows */

/* Lists are collected in a stage until it is full. */
struct lists {
	struct gpu *g;
	struct gpu_stage *stage; /* NULL: none open */
	size_t used;
};

static enum err end_lists(struct lists *l, struct err_msg *em)
{
	enum err e = l->stage ? gpu_stage_sent(l->g, l->stage, em) : ERR_OK;

	l->stage = NULL;
	l->used = 0;
	return e;
}

static enum err send_list(struct lists *l, void *to, const void *from, u32 count, struct err_msg *em)
{
	size_t bytes = count * sizeof(u32);
	enum err e = l->used + bytes > l->g->stage_bytes ? end_lists(l, em) : ERR_OK;

	if (!e && !l->stage)
		e = gpu_stage_take(l->g, &l->stage, em);
	if (e)
		return e;
	memcpy(l->stage->memory + l->used, from, bytes);
	e = gpu_stage_copy(l->g, l->stage, to, l->used, bytes, em);
	l->used += bytes;
	return e;
}

/* Ids that must not come before the least length: those that would end the sequence. */
static u32 list_masked(const struct gpu *g, const struct batch_state *b, u32 row, u32 *masked)
{
	const struct batch_row *r = &b->rows[row];
	const struct model_config *m = g->config.model;
	u32 n = 0;

	if (!(r->params.flags & SAMPLING_IGNORE_EOS))
		for (u32 i = 0; i < m->eos_count; i++)
			masked[n++] = m->eos_ids[i];
	for (u32 i = 0; i < r->stop_count; i++)
		masked[n++] = b->stop_ids[(size_t)row * STOP_IDS_MAX + i];
	return n;
}

enum err gpu_apply_lists(struct gpu *g, const struct batch_state *b, const struct ipc_step *s,
			 struct err_msg *em)
{
	struct lists l = {.g = g};
	u32 masked[GPU_MASKED_MAX];
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < s->add_row_count + s->fork_row_count; i++) {
		u32 row = i < s->add_row_count ? s->add_row[i] : s->fork_row[i - s->add_row_count];
		const struct batch_row *r = &b->rows[row];
		size_t at = (size_t)row * BIAS_MAX;
		if (r->bias_count)
			e = send_list(&l, g->arena.bias_ids + at, b->bias_ids + at, r->bias_count, em);
		if (!e && r->bias_count)
			e = send_list(&l, g->arena.bias_values + at, b->bias_values + at, r->bias_count, em);
		u32 count = r->params.min_tokens ? list_masked(g, b, row, masked) : 0;
		if (!e && count)
			e = send_list(&l, g->arena.masked + (size_t)row * GPU_MASKED_MAX, masked, count, em);
	}
	return e ? e : end_lists(&l, em);
}

enum err gpu_send_allowed(struct gpu *g, const u32 *const *allowed, u32 count, struct err_msg *em)
{
	struct lists l = {.g = g};
	u32 words = (g->config.model->vocab_size + 31) / 32;
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < count; i++)
		if (allowed[i])
			e = send_list(&l, g->arena.allowed + (size_t)i * words, allowed[i], words, em);
	return e ? e : end_lists(&l, em);
}

/* ---------------------------------------------------------------- copies of blocks */

/* The next copy from `i` on that does not leave the device. */
static u32 skip_swaps(const struct batch_state *b, u32 i)
{
	u32 blocks = b->limits.block_count;

	while (i < b->copy_count && (b->copy_src[i] >= blocks || b->copy_dst[i] >= blocks))
		i++;
	return i;
}

enum err gpu_copy_blocks(struct gpu *g, const struct batch_state *b, struct err_msg *em)
{
	u32 most = (u32)(g->stage_bytes / (2 * sizeof(u32)));
	enum err e = ERR_OK;

	/* They have no order among each other, so they may be cut anywhere. */
	for (u32 at = skip_swaps(b, 0); !e && at < b->copy_count; at = skip_swaps(b, at)) {
		struct gpu_stage *s;
		u32 n = 0;
		e = gpu_stage_take(g, &s, em);
		if (e)
			return e;
		u32 *src = (u32 *)(void *)s->memory, *dst = src + most;
		for (; at < b->copy_count && n < most; at = skip_swaps(b, at + 1), n++) {
			src[n] = b->copy_src[at];
			dst[n] = b->copy_dst[at];
		}
		memmove(src + n, dst, n * sizeof(u32));
		e = gpu_stage_copy(g, s, g->arena.upload, 0, 2 * n * sizeof(u32), em);
		if (!e)
			e = gpu_stage_sent(g, s, em);
		struct kern_block_copy_args a = {.layers = g->arena.kv_layers,
						 .layer_count = g->kv_count,
						 .src = (const u32 *)(const void *)g->arena.upload,
						 .dst = (const u32 *)(const void *)g->arena.upload + n,
						 .count = n};
		if (!e)
			e = gpu_op(g->ops.block_copy(&g->ctx, &a), "block_copy", em);
	}
	return e;
}

/* ---------------------------------------------------------------- rotary tables by length */

static void list_positions(struct gpu *g, const struct batch_state *b)
{
	struct inputs *in = &g->rope_inputs;
	u32 at = 0;

	for (u32 i = 0; i < b->run_row_count; i++) {
		u32 row = b->run_rows[i];
		in->query_start[i] = at;
		in->prompt_count[i] = b->rows[row].prompt_count;
		in->added_count[i] = b->rows[row].added_tokens;
		for (u32 j = 0; j < b->run[row]; j++)
			in->positions[at++] = b->computed[row] + j;
	}
	in->query_start[b->run_row_count] = at;
	in->rows = b->run_row_count;
	in->tokens = at;
}

enum err gpu_upload_rope(struct gpu *g, const struct batch_state *b, struct err_msg *em)
{
	struct rope_tables *t = g->config.rope;
	u32 half = g->config.model->rope.dim / 2, tokens = b->tokens_run;
	bool dynamic = g->config.model->rope.kind == ROPE_DYNAMIC;
	struct gpu_stage *s;

	if (!t->far || tokens == 0)
		return ERR_OK;
	list_positions(g, b);
	enum err e = gpu_stage_take(g, &s, em);
	if (e)
		return e;
	size_t rows_bytes = tokens * sizeof(u32), angles = dynamic ? (size_t)tokens * half : 0;
	size_t first = (size_t)t->near * half, bytes = angles * sizeof(float);
	memcpy(s->memory, rope_tables_rows(t, &g->rope_inputs), rows_bytes);
	e = gpu_stage_copy(g, s, g->arena.rope_rows, 0, rows_bytes, em);
	if (!e && dynamic) {
		memcpy(s->memory + rows_bytes, t->cos + first, bytes);
		memcpy(s->memory + rows_bytes + bytes, t->sin + first, bytes);
		e = gpu_stage_copy(g, s, g->arena.cos + first, rows_bytes, bytes, em);
		if (!e)
			e = gpu_stage_copy(g, s, g->arena.sin + first, rows_bytes + bytes, bytes, em);
	}
	return e ? e : gpu_stage_sent(g, s, em);
}
