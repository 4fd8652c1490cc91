/* How long a step of a small model takes on the emulated device, op by op: what an end-to-end test waits for. One JSON
 * line each: time of the processor, which is what an emulated device needs, best of several runs. Shapes are those of
 * demo/; every layer has the weights of the first. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/kern/device.h"

enum {
	HIDDEN = 256,
	INTERMEDIATE = 704,
	LAYERS = 6,
	HEADS = 8,
	KV_HEADS = 4,
	HEAD_DIM = 32,
	QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
	VOCAB = 4096,
	ROWS = 8, /* that the batch has room for */
	LENGTH = 512,
	BLOCK = 16,
	PROMPT = 64,
	CONTEXT = 100, /* of a row that decodes */
	RUNS = 8,
	BLOCKS = 8, /* of threads that fill the emulated device */
	SCRATCH_BYTES = 1 << 20,
};

struct model {
	struct kern_weight qkv, out, gate_up, down, head;
	float *norm, *cos, *sin, *logits, *x, *qkv_out;
	u16 *table, *normed, *wide, *q, *attended, *acted;
	struct kern_kv kv;
	struct kern_batch batch;
	struct kern_build_inputs_args in;
	struct kern_attention_plan plan;
	u32 *diff, *sampled;
	u32 tokens; /* of the step */
};

/* ---------------------------------------------------------------- the model and its batch */

static struct kern_weight weight(struct device *d, u32 n, u32 k)
{
	struct kern_weight plain, w;
	struct err_msg em = {""};
	float *values = check_floats(&d->check, (size_t)n * k, false);
	void *packed = check_alloc(&d->check, kern_weight_bytes(n, k, KERN_BF16, 0)),
	     *memory = check_alloc(&d->check, kern_weight_device_bytes(n, k, KERN_BF16));
	if (kern_weight_pack(&plain, values, KERN_F32, k, n, k, KERN_BF16, packed, NULL, 0, &em) ||
	    kern_weight_to_device(&w, &plain, memory, NULL, &em))
		printf("%s\n", em.text);
	w.data = device_upload(d, memory, kern_weight_device_bytes(n, k, KERN_BF16));
	return w;
}

static void *zeros(struct device *d, size_t bytes)
{
	void *host = check_alloc(&d->check, bytes);
	memset(host, 0, bytes);
	return device_upload(d, host, bytes);
}

static void make_model(struct device *d, struct model *m)
{
	const size_t cache = (size_t)(LENGTH / BLOCK) * KV_HEADS * BLOCK * HEAD_DIM * sizeof(u16);
	*m = (struct model){.qkv = weight(d, QKV, HIDDEN),
			    .out = weight(d, HIDDEN, HEADS * HEAD_DIM),
			    .gate_up = weight(d, 2 * INTERMEDIATE, HIDDEN),
			    .down = weight(d, HIDDEN, INTERMEDIATE),
			    .head = weight(d, VOCAB, HIDDEN)};
	(void)device_floats(d, HIDDEN, false, &m->norm);
	(void)device_floats(d, (size_t)LENGTH * HEAD_DIM / 2, false, &m->cos);
	(void)device_floats(d, (size_t)LENGTH * HEAD_DIM / 2, false, &m->sin);
	(void)device_bf16s(d, (size_t)VOCAB * HIDDEN, false, &m->table);
	m->logits = device_alloc(d, (size_t)ROWS * VOCAB * sizeof(float));
	m->x = zeros(d, (size_t)PROMPT * HIDDEN * sizeof(float));
	m->qkv_out = zeros(d, (size_t)PROMPT * QKV * sizeof(float));
	m->normed = zeros(d, (size_t)PROMPT * HIDDEN * sizeof(u16));
	m->wide = zeros(d, (size_t)PROMPT * 2 * INTERMEDIATE * sizeof(u16));
	m->q = zeros(d, (size_t)PROMPT * HEADS * HEAD_DIM * sizeof(u16));
	m->attended = zeros(d, (size_t)PROMPT * HEADS * HEAD_DIM * sizeof(u16));
	m->acted = zeros(d, (size_t)PROMPT * INTERMEDIATE * sizeof(u16));
	m->kv = (struct kern_kv){.k = zeros(d, cache),
				 .v = zeros(d, cache),
				 .dtype = KERN_BF16,
				 .block_size = BLOCK,
				 .kv_heads = KV_HEADS,
				 .head_dim = HEAD_DIM};
}

/* One row of the batch, which computes `tokens` tokens, the last of `known`. */
static void make_batch(struct device *d, struct model *m, u32 known, u32 tokens)
{
	u32 diff[KERN_DIFF_WORDS + 1 + KERN_ADD_WORDS + CONTEXT + LENGTH / BLOCK + 2] = {0},
	    *add = diff + KERN_DIFF_WORDS;
	struct kern_batch *b = &m->batch;
	*b = (struct kern_batch){
		.rows = ROWS, .token_stride = LENGTH, .block_stride = LENGTH / BLOCK, .block_size = BLOCK};
	b->known = zeros(d, ROWS * sizeof(u32));
	b->computed = zeros(d, ROWS * sizeof(u32));
	b->run = zeros(d, ROWS * sizeof(u32));
	b->prompt = zeros(d, ROWS * sizeof(u32));
	b->tokens = zeros(d, (size_t)ROWS * LENGTH * sizeof(u32));
	b->blocks = zeros(d, (size_t)ROWS * b->block_stride * sizeof(u32));
	b->params = zeros(d, ROWS * sizeof(struct kern_sample_row));
	diff[KERN_DIFF_RUNS] = diff[KERN_DIFF_ADDS] = 1;
	add[0] = 0;
	add[1] = tokens;
	add[2] = KERN_DIFF_WORDS + 3;
	add += 3;
	add[KERN_ADD_ROW] = 0;
	add[KERN_ADD_TOKENS] = known;
	add[KERN_ADD_COMPUTED] = known - tokens;
	add[KERN_ADD_PROMPT] = known;
	add[KERN_ADD_BLOCKS] = LENGTH / BLOCK;
	for (u32 i = 0; i < known; i++)
		add[KERN_ADD_WORDS + i] = check_random(&d->check, VOCAB);
	for (u32 i = 0; i < LENGTH / BLOCK; i++)
		add[KERN_ADD_WORDS + known + i] = i;
	m->diff = device_upload(d, diff, sizeof(diff));
	m->sampled = zeros(d, ROWS * sizeof(u32));
	m->tokens = tokens;
	m->in = (struct kern_build_inputs_args){
		.batch = b, .tokens = tokens, .samples = 1, .vocab = VOCAB, .logits = m->logits};
	m->in.ids = zeros(d, tokens * sizeof(u32));
	m->in.positions = zeros(d, tokens * sizeof(u32));
	m->in.slots = zeros(d, tokens * sizeof(i64));
	m->in.query_start = zeros(d, (ROWS + 1) * sizeof(u32));
	m->in.context = zeros(d, ROWS * sizeof(u32));
	m->in.sample_index = zeros(d, sizeof(u32));
	m->in.sample_rows = zeros(d, sizeof(u32));
	m->in.sample = zeros(d, sizeof(struct kern_sample_row));
	m->in.counts = zeros(d, 2 * sizeof(u32));
	m->plan.limits = (struct kern_attention_limits){.tokens = tokens,
							.rows = ROWS,
							.queries = tokens,
							.heads = HEADS,
							.kv_heads = KV_HEADS,
							.head_dim = HEAD_DIM,
							.blocks = BLOCKS};
	m->plan.memory = device_alloc(d, kern_attention_plan_bytes(&m->plan.limits));
}

/* ---------------------------------------------------------------- ops */

static u64 cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

static void print_time(const char *step, const char *op, u32 times, u64 ns, double *total_ms)
{
	*total_ms += (double)ns * 1e-6 * times;
	printf("{\"bench\":\"emulated\",\"step\":\"%s\",\"op\":\"%s\",\"times\":%u,\"us\":%.0f}\n", step, op, times,
	       (double)ns * 1e-3);
}

/* Runs `call` RUNS times; `times`: how often a step has it. */
#define TIME(op, count, call)                                                    \
	do {                                                                     \
		u64 best = UINT64_MAX;                                           \
		for (u32 run_ = 0; run_ < RUNS; run_++) {                        \
			const u64 began = cpu_ns();                        \
			const char *problem = device_problem(d, (call));         \
			const u64 took = cpu_ns() - began;                 \
			best = took < best ? took : best;                        \
			if (problem)                                             \
				printf("%s: %s: %s\n", step, (op), problem);     \
		}                                                                \
		print_time(step, (op), (count), best, &total_ms);             \
	} while (0)

static struct kern_matmul_args product(const struct model *m, const void *x, const struct kern_weight *w, void *out,
				       u32 out_stride, const struct kern_matmul_fusion *fusion)
{
	struct kern_matmul_args a = {.x = x,
				     .w = w,
				     .tokens = m->tokens,
				     .x_stride = w->k,
				     .out_stride = out_stride,
				     .dtype = fusion ? KERN_F32 : KERN_BF16, /* a norm's */
				     .out_dtype = out == m->x || out == m->qkv_out ? KERN_F32 : KERN_BF16,
				     .fusion = fusion};
	a.out = out;
	return a;
}

static struct kern_rope_kv_args rope_args(const struct model *m)
{
	struct kern_rope_kv_args r = {.cos = m->cos,
				      .sin = m->sin,
				      .positions = m->in.positions,
				      .slots = m->in.slots,
				      .kv = m->kv,
				      .tokens = m->tokens,
				      .heads = HEADS,
				      .rope_dim = HEAD_DIM,
				      .dtype = KERN_BF16};
	r.q_bf16 = m->q;
	r.qkv = m->qkv_out;
	return r;
}

static struct kern_attention_args attention_args(const struct model *m)
{
	struct kern_attention_args a = {.kv = m->kv,
					.query_start = m->in.query_start,
					.context = m->in.context,
					.block_tables = m->batch.blocks,
					.block_stride = m->batch.block_stride,
					.rows = ROWS,
					.tokens = m->tokens,
					.heads = HEADS,
					.scale = 0.17f,
					.dtype = KERN_BF16,
					.plan = &m->plan};
	a.q_bf16 = m->q;
	a.out_bf16 = m->attended;
	return a;
}

/* The layers of a step with few tokens: four products with what surrounds them, and the attention. */
static double time_decode_layers(struct device *d, const struct model *m, const char *step)
{
	double total_ms = 0;
	const struct kern_rope_kv_args rope = rope_args(m);
	const struct kern_matmul_fusion in = {.norm_weight = m->norm, .norm_eps = 1e-5f, .rope = &rope},
				   act = {.norm_weight = m->norm, .norm_eps = 1e-5f, .act_mul = true};
	const struct kern_matmul_args qkv = product(m, m->x, &m->qkv, NULL, 0, &in),
				      gate_up = product(m, m->x, &m->gate_up, m->acted, INTERMEDIATE, &act);
	const struct kern_attention_args attention = attention_args(m);
	struct kern_matmul_args out = product(m, m->attended, &m->out, m->x, HIDDEN, NULL),
				down = product(m, m->acted, &m->down, m->x, HIDDEN, NULL);
	out.accumulate = down.accumulate = true;
	TIME("qkv with norm and rope", LAYERS, d->ops.matmul(&d->ctx, &qkv));
	TIME("attention", LAYERS, d->ops.attention(&d->ctx, &attention));
	TIME("out", LAYERS, d->ops.matmul(&d->ctx, &out));
	TIME("gate_up with norm and act_mul", LAYERS, d->ops.matmul(&d->ctx, &gate_up));
	TIME("down", LAYERS, d->ops.matmul(&d->ctx, &down));
	return total_ms;
}

/* Those of a step with many. */
static double time_prefill_layers(struct device *d, const struct model *m, const char *step)
{
	double total_ms = 0;
	struct kern_rmsnorm_args norm = {.weight = m->norm, .eps = 1e-5f, .tokens = m->tokens, .hidden = HIDDEN,
					 .dtype = KERN_BF16};
	struct kern_act_mul_args act = {.tokens = m->tokens, .size = INTERMEDIATE, .dtype = KERN_BF16};
	const struct kern_rope_kv_args rope = rope_args(m);
	const struct kern_attention_args attention = attention_args(m);
	const struct kern_matmul_args qkv = product(m, m->normed, &m->qkv, m->qkv_out, QKV, NULL),
				      gate_up = product(m, m->normed, &m->gate_up, m->wide, 2 * INTERMEDIATE, NULL);
	struct kern_matmul_args out = product(m, m->attended, &m->out, m->x, HIDDEN, NULL),
				down = product(m, m->acted, &m->down, m->x, HIDDEN, NULL);
	out.accumulate = down.accumulate = true;
	norm.x = m->x;
	norm.out_bf16 = m->normed;
	act.gate_up_bf16 = m->wide;
	act.out_bf16 = m->acted;
	TIME("rmsnorm", 2 * LAYERS, d->ops.rmsnorm(&d->ctx, &norm));
	TIME("qkv", LAYERS, d->ops.matmul(&d->ctx, &qkv));
	TIME("rope_kv", LAYERS, d->ops.rope_kv(&d->ctx, &rope));
	TIME("attention", LAYERS, d->ops.attention(&d->ctx, &attention));
	TIME("out", LAYERS, d->ops.matmul(&d->ctx, &out));
	TIME("gate_up", LAYERS, d->ops.matmul(&d->ctx, &gate_up));
	TIME("act_mul", LAYERS, d->ops.act_mul(&d->ctx, &act));
	TIME("down", LAYERS, d->ops.matmul(&d->ctx, &down));
	return total_ms;
}

static void time_step(struct device *d, struct model *m, const char *step)
{
	double total_ms = 0;
	static const u32 nothing[KERN_DIFF_WORDS];
	const struct kern_apply_diff_args apply = {&m->batch, m->diff},
					  none = {&m->batch, device_upload(d, nothing, sizeof(nothing))};
	const struct kern_attention_plan_args plan = {&m->plan, m->in.query_start, m->in.context, ROWS};
	struct kern_embedding_args embedding = {.ids = m->in.ids, .table = m->table, .table_dtype = KERN_BF16,
						.tokens = m->tokens, .hidden = HIDDEN, .rows = VOCAB};
	const struct kern_matmul_fusion norm = {.norm_weight = m->norm, .norm_eps = 1e-5f};
	struct kern_matmul_args head = product(m, m->x, &m->head, m->logits, VOCAB, &norm);
	const struct kern_sample_args sample = {m->in.sample, m->sampled, 1, VOCAB};
	const struct kern_commit_args commit = {&m->batch, m->sampled, m->in.sample_rows, m->in.counts};
	embedding.out = m->x;
	head.tokens = 1;
	head.out_dtype = KERN_F32;
	TIME("apply_diff", 0, d->device_ops.apply_diff(&d->ctx, &none));
	TIME("apply_diff", 1, d->device_ops.apply_diff(&d->ctx, &apply));
	TIME("build_inputs", 1, d->device_ops.build_inputs(&d->ctx, &m->in));
	TIME("attention_plan", 1, d->device_ops.attention_plan(&d->ctx, &plan));
	TIME("embedding", 1, d->ops.embedding(&d->ctx, &embedding));
	total_ms += (m->tokens <= KERN_FUSED_TOKENS ? time_decode_layers : time_prefill_layers)(d, m, step);
	TIME("logits", 1, d->ops.matmul(&d->ctx, &head));
	TIME("sample", 1, d->ops.sample(&d->ctx, &sample));
	TIME("commit", 0, d->device_ops.commit(&d->ctx, &commit)); /* last: it ends the step */
	printf("{\"bench\":\"emulated\",\"step\":\"%s\",\"tokens\":%u,\"ms\":%.1f}\n", step, m->tokens, total_ms);
}

void device_bench(struct device *d)
{
	struct model m;
	struct err_msg em = {""};
	make_model(d, &m);
	const struct kern_cuda_config config = {device_alloc(d, SCRATCH_BYTES), SCRATCH_BYTES, NULL};
	d->ctx.scratch = device_alloc(d, SCRATCH_BYTES);
	d->ctx.scratch_bytes = SCRATCH_BYTES;
	if (kern_cuda_create(&d->ctx.device, &config, &em) != ERR_OK) {
		printf("%s\n", em.text);
		return;
	}
	const u32 kept = d->buffer_count;
	make_batch(d, &m, CONTEXT, 1);
	time_step(d, &m, "decode");
	(void)device_release(d, kept);
	make_batch(d, &m, PROMPT, PROMPT);
	time_step(d, &m, "prefill");
	kern_cuda_destroy(&d->ctx.device);
	d->ctx.scratch = NULL;
	(void)device_release(d, 0);
	(void)check_release(&d->check, 0);
}
