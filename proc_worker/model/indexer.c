/* Which tokens a query attends to, and attention to these. Runs in the worker, in every step of such models; owns no memory, never allocates. */
#include "proc_worker/model/indexer.h"

#include "common/assert.h"
#include "common/region.h"
#include "proc_worker/model/decoder_priv.h"

enum {
	SCORE_BYTES = 32 << 20,	  /* of the queries whose scores are there at once, of one at least */
	GATHER_BYTES = 2 << 20,	  /* likewise, of keys and values side by side: what a cache of a core's own holds; one a thread at least */
	GATHER_BLOCK = 32,	  /* keys of a block of these */
};

/* Whatever config.json says of other norms. */
static const f32 NORM_EPS = 1e-6f;

/* ---------------------------------------------------------------- memory */

static float *carve(char *base, size_t *offset, size_t count)
{
	return region_carve(base, offset, count * sizeof(float));
}

void indexer_lay_out_kept(struct decoder *d, char *base, size_t *kept, size_t tokens)
{
	const struct index_config *x = &d->config.model->index;

	d->indexer.chosen = x->top ? region_carve(base, kept, tokens * x->top * sizeof(u32)) : NULL;
}

/* Keys and values of one query in float32, the widest type. */
static size_t gathered_bytes(const struct decoder_config *c)
{
	const struct kern_kv kv = {.dtype = KERN_F32, .block_size = GATHER_BLOCK, .kv_heads = 1, .head_dim = c->model->head_dim};

	return 2 * (size_t)((c->model->index.top + GATHER_BLOCK - 1) / GATHER_BLOCK) * kern_kv_block_bytes(&kv);
}

static size_t bounded(size_t bytes, size_t one, size_t most)
{
	const size_t count = bytes / one > 0 ? bytes / one : 1;

	return count < most ? count : most;
}

void indexer_lay_out(struct decoder *d, char *base, size_t *offset, size_t tokens)
{
	const struct index_config *x = &d->config.model->index;
	struct indexer_memory *m = &d->indexer;
	const size_t context = (d->config.context_max + KERN_INDEX_KEYS - 1) / KERN_INDEX_KEYS * KERN_INDEX_KEYS;

	if (x->top == 0)
		return;
	ASSERT(d->config.context_max > x->top);
	m->score_stride = context;
	m->scored_most = (u32)bounded(SCORE_BYTES, context * sizeof(float), tokens);
	const size_t threads = kern_threads_count(d->config.ctx->threads), one = gathered_bytes(&d->config);
	const size_t at_once = bounded(threads * one > GATHER_BYTES ? threads * one : GATHER_BYTES, one, least(tokens, INDEXER_QUERIES));
	m->gathered_bytes = at_once * one;
	m->keys = carve(base, offset, tokens * x->width);
	m->normed = carve(base, offset, tokens * x->width);
	m->queries = carve(base, offset, tokens * x->heads * x->width);
	m->weights = carve(base, offset, tokens * x->heads);
	m->list = region_carve(base, offset, tokens * sizeof(*m->list));
	m->places = region_carve(base, offset, tokens * sizeof(*m->places));
	m->starts = region_carve(base, offset, (tokens + 1) * sizeof(*m->starts));
	m->contexts = region_carve(base, offset, tokens * sizeof(*m->contexts));
	m->tables = region_carve(base, offset, INDEXER_QUERIES * (size_t)((x->top + GATHER_BLOCK - 1) / GATHER_BLOCK) * sizeof(*m->tables));
	m->scores = carve(base, offset, m->scored_most * context);
	m->gathered = region_carve(base, offset, m->gathered_bytes);
}

/* ---------------------------------------------------------------- keys and queries */

/* Of `heads` that lie side by side, [tokens][heads * width], in place. */
static enum err rotate(struct decoder *d, u32 index, float *x, u32 heads, u32 tokens, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct model_config *m = c->model;
	const struct kern_rope_kv_args a = {.q = x,
					    .qkv = x,
					    .cos = c->rope->cos,
					    .sin = c->rope->sin,
					    .positions = d->rope_rows,
					    .kv = {.dtype = KERN_F32, .block_size = 1, .head_dim = m->index.width},
					    .tokens = tokens,
					    .heads = heads,
					    .rope_dim = m->layer_flags[index] & LAYER_NO_ROPE ? 0 : m->rope.dim,
					    .q_stride = heads * m->index.width,
					    .qkv_stride = heads * m->index.width,
					    .interleaved = m->index.interleaved};

	return decoder_failed(c->ops->rope_kv(c->ctx, &a), "rope_kv of an indexer", em);
}

static enum err product(struct decoder *d, float *out, const float *x, u32 stride, const struct kern_weight *w, const struct kern_weight *next, u32 tokens,
			struct err_msg *em)
{
	const struct kern_matmul_args a = {.out = out, .x = x, .w = w, .tokens = tokens, .x_stride = stride, .out_stride = w->n, .next = next};

	return decoder_failed(d->config.ops->matmul(d->config.ctx, &a), "matmul of an indexer", em);
}

static enum err write_keys(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, const struct kern_weight *next, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct layer_weights *w = &c->weights->layers[index];
	struct indexer_memory *m = &d->indexer;
	struct kern_layernorm_args norm = {.out = m->normed,
					   .x = m->keys,
					   .weight = w->index_k_norm,
					   .bias = w->index_k_norm_bias,
					   .eps = NORM_EPS,
					   .tokens = in->tokens,
					   .hidden = c->model->index.width};
	const struct kern_index_keys_args keys = {.keys = m->normed, .slots = in->slots, .kv = kv + c->model->layers, .tokens = in->tokens};

	enum err e = product(d, m->keys, d->input, w->index_k.k, &w->index_k, next, in->tokens, em);
	if (!e)
		e = decoder_failed(c->ops->layernorm(c->ctx, &norm), "layernorm", em);
	if (!e)
		e = rotate(d, index, m->normed, 1, in->tokens, em);
	return e ? e : decoder_failed(c->ops->index_keys(c->ctx, &keys), "index_keys", em);
}

/* Tokens of a row that see no more than `top`; those behind them choose. */
static u32 attend_to_all(u32 context, u32 tokens, u32 top)
{
	const u32 before = context - tokens;

	return before >= top ? 0 : top - before < tokens ? top - before : tokens;
}

/* Rows' tokens as attention has them. */
static u32 row_first(const struct decoder *d, const struct inputs *in, u32 row)
{
	return d->narrowed ? row : in->query_start[row];
}

/* The queries that choose, in the order of the step: fills the list, and where each one is in decoder.qkv. */
static void list_queries(struct decoder *d, const struct inputs *in)
{
	struct indexer_memory *m = &d->indexer;

	m->count = 0;
	for (u32 r = 0; r < in->rows; r++) {
		const u32 first = row_first(d, in, r), end = row_first(d, in, r + 1);
		for (u32 p = first + attend_to_all(in->context[r], end - first, d->config.model->index.top); p < end; p++) {
			m->places[m->count] = p;
			m->list[m->count++] = (struct kern_index_query){d->narrowed ? d->last[p] : p, r, in->context[r] - (end - 1 - p)};
		}
	}
}

enum err indexer_project(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	const struct layer_weights *w = &c->weights->layers[index];
	struct indexer_memory *m = &d->indexer;

	if (!model_chooses(c->model, index))
		return ERR_OK;
	ASSERT(!d->narrowed);
	list_queries(d, in);
	enum err e = write_keys(d, index, in, kv, m->count > 0 ? &w->index_weights : &w->attn_out, em);
	if (e || m->count == 0)
		return e;
	e = product(d, m->weights, d->input, w->index_weights.k, &w->index_weights, &w->index_q, in->tokens, em);
	if (!e)
		e = product(d, m->queries, d->low, w->qkv.n, &w->index_q, &w->attn_out, in->tokens, em);
	return e ? e : rotate(d, index, m->queries, c->model->index.heads, in->tokens, em);
}

/* ---------------------------------------------------------------- attention */

static enum err choose(struct decoder *d, const struct inputs *in, const struct kern_kv *keys, struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	struct indexer_memory *m = &d->indexer;
	enum err e = ERR_OK;

	for (u32 i = 0; !e && i < m->count; i += m->scored_most) {
		const struct kern_index_choose_args a = {.chosen = m->chosen,
							 .queries = m->queries,
							 .weights = m->weights,
							 .list = m->list + i,
							 .block_tables = in->block_tables,
							 .kv = keys,
							 .scores = m->scores,
							 .score_stride = m->score_stride,
							 .block_stride = in->block_stride,
							 .count = (u32)least(m->count - i, m->scored_most),
							 .heads = c->model->index.heads,
							 .top = c->model->index.top};
		e = decoder_failed(c->ops->index_choose(c->ctx, &a), "index_choose", em);
	}
	return e;
}

/* Rows side by side in decoder.qkv that attend to all they see. */
struct run {
	u32 first, tokens; /* places */
	u32 row, rows;
};

static enum err attend_run(struct decoder *d, const struct inputs *in, const struct kern_attention_args *like, const struct run *run, struct err_msg *em)
{
	struct kern_attention_args a = *like;

	if (run->tokens == 0)
		return ERR_OK;
	a.q = like->q + (size_t)run->first * like->stride;
	a.out = like->out + (size_t)run->first * like->stride;
	a.query_start = d->indexer.starts;
	a.context = d->indexer.contexts;
	a.block_tables = in->block_tables + (size_t)run->row * in->block_stride;
	a.rows = run->rows;
	a.tokens = run->tokens;
	return decoder_failed(d->config.ops->attention(d->config.ctx, &a), "attention", em);
}

/* Of the queries that do not choose. */
static enum err attend_whole(struct decoder *d, const struct inputs *in, const struct kern_attention_args *like, struct err_msg *em)
{
	struct indexer_memory *m = &d->indexer;
	struct run run = {0};
	enum err e = ERR_OK;

	for (u32 r = 0; !e && r < in->rows; r++) {
		const u32 first = row_first(d, in, r), tokens = row_first(d, in, r + 1) - first;
		const u32 whole = attend_to_all(in->context[r], tokens, d->config.model->index.top);
		if (whole == 0)
			continue;
		if (run.row + run.rows != r || run.first + run.tokens != first) {
			e = attend_run(d, in, like, &run, em);
			run = (struct run){.first = first, .row = r};
		}
		m->contexts[run.rows] = in->context[r] - (tokens - whole);
		m->starts[run.rows++] = run.tokens;
		m->starts[run.rows] = run.tokens += whole;
	}
	return e ? e : attend_run(d, in, like, &run, em);
}

/* Queries [at, at + count) of the list, side by side in decoder.qkv. */
static enum err attend_chosen(struct decoder *d, const struct inputs *in, const struct kern_attention_args *like, const struct kern_kv *to, u32 at, u32 count,
			      struct err_msg *em)
{
	const struct decoder_config *c = &d->config;
	struct indexer_memory *m = &d->indexer;
	const u32 top = c->model->index.top, blocks = (top + GATHER_BLOCK - 1) / GATHER_BLOCK;
	const struct kern_index_gather_args gather = {.from = &like->kv,
						      .to = to,
						      .chosen = m->chosen,
						      .list = m->list + at,
						      .block_tables = in->block_tables,
						      .block_stride = in->block_stride,
						      .count = count,
						      .top = top,
						      .apart = c->model->latent.rope};
	struct kern_attention_args a = *like;

	for (u32 i = 0; i < count; i++)
		m->contexts[i] = top;
	for (u32 i = 0; i < count * blocks; i++)
		m->tables[i] = i;
	a.q = like->q + (size_t)m->places[at] * like->stride;
	a.out = like->out + (size_t)m->places[at] * like->stride;
	a.kv = *to;
	a.query_start = d->single_start;
	a.context = m->contexts;
	a.block_tables = m->tables;
	a.block_stride = blocks;
	a.rows = a.tokens = count;
	enum err e = decoder_failed(c->ops->index_gather(c->ctx, &gather), "index_gather", em);
	return e ? e : decoder_failed(c->ops->attention(c->ctx, &a), "attention", em);
}

static enum err attend_each(struct decoder *d, const struct inputs *in, const struct kern_attention_args *like, struct err_msg *em)
{
	struct indexer_memory *m = &d->indexer;
	struct kern_kv to = {.dtype = like->kv.dtype, .block_size = GATHER_BLOCK, .kv_heads = 1, .head_dim = like->kv.head_dim};
	const size_t one = (size_t)((d->config.model->index.top + GATHER_BLOCK - 1) / GATHER_BLOCK) * kern_kv_block_bytes(&to);
	const u32 most = (u32)bounded(m->gathered_bytes, 2 * one, INDEXER_QUERIES);
	enum err e = ERR_OK;

	to.k = m->gathered;
	to.v = m->gathered + most * one;
	for (u32 i = 0, count; !e && i < m->count; i += count) {
		for (count = 1; count < most && i + count < m->count && m->places[i + count] == m->places[i] + count;)
			count++;
		e = attend_chosen(d, in, like, &to, i, count, em);
	}
	return e;
}

enum err indexer_attend(struct decoder *d, u32 index, const struct inputs *in, const struct kern_kv *kv, const struct kern_attention_args *a,
			struct err_msg *em)
{
	list_queries(d, in);
	if (d->indexer.count == 0)
		return decoder_failed(d->config.ops->attention(d->config.ctx, a), "attention", em);
	enum err e = model_chooses(d->config.model, index) ? choose(d, in, kv + d->config.model->layers, em) : ERR_OK;
	if (!e)
		e = attend_whole(d, in, a, em);
	return e ? e : attend_each(d, in, a, em);
}
