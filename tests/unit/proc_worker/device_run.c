#include "tests/unit/proc_worker/device_run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proc_worker/model/tensor_names.h"

#define OK(call) cr_assert_eq(call, ERR_OK, "%s", em.text)

enum { PAUSE_EVERY = 16 };

static struct err_msg em;

/* ---------------------------------------------------------------- opening */

static void lay_out_states(struct device_run *d)
{
	size_t floats[MODEL_LAYERS_MAX];

	for (u32 i = 0; i < d->model.layers; i++)
		floats[i] = recurrent_floats(&d->model, &d->shard, i);
	OK(state_memory_lay_out(&d->states, floats, d->model.layers, d->config.rows_max + (u32)COUNT_OF(d->saved_tokens), &em));
}

static void read_model(struct device_run *d)
{
	const struct device_run_config *c = &d->config;

	OK(model_config_read(&d->model, c->model_dir, &em));
	OK(model_shard_init(&d->shard, &d->model, 0, 1, &em));
	OK(safetensors_open(&d->checkpoint, c->model_dir, &em));
	OK(tensor_names_add(d->checkpoint, &d->model, &em));
	d->plan = (struct weights_plan){.config = &d->model,
					.shard = &d->shard,
					.checkpoint = d->checkpoint,
					.dtype = KERN_BF16,
					.matrix_dtype = c->matrix_dtype ? c->matrix_dtype : KERN_BF16,
					.caps = kern_caps_detect()};
	OK(model_weights_check(&d->plan, &em));
	OK(rope_tables_init(&d->rope, &d->model.rope, model_local_rope(&d->model), c->max_model_len, c->tokens_max, &em));
	lay_out_states(d);
}

struct gpu_config device_run_config(struct device_run *d)
{
	const struct device_run_config *c = &d->config;

	return (struct gpu_config){.device = &d->device,
				   .model = &d->model,
				   .shard = &d->shard,
				   .weights = &d->plan,
				   .rope = &d->rope,
				   .states = &d->states,
				   .limits = {c->rows_max, c->tokens_max, c->max_model_len, c->block_size},
				   .kv_dtype = c->kv_dtype ? c->kv_dtype : KERN_BF16,
				   .graphs = c->graphs,
				   .memory_utilization = 0.5};
}

void device_run_read(struct device_run *d, const struct device_run_config *config)
{
	memset(d, 0, sizeof(*d));
	d->config = *config;
	d->rows = (struct request_rows){.rows_max = config->rows_max,
					.tokens_max = config->tokens_max,
					.block_size = config->block_size,
					.chunk = config->chunk,
					.random = config->seed};
	setenv("TERCET_CUDA_KERNELS", CUDA_EMU_OBJECT, 1);
	setenv("CUDA_EMU_SCHEDULE", "random:5", 0); /* streams run as late as they may: no event is missing by luck */
	OK(device_open(&d->device, 0, &em));
	read_model(d);
}

void device_run_open(struct device_run *d, const struct device_run_config *config)
{
	device_run_read(d, config);
	struct gpu_config gc = device_run_config(d);
	OK(gpu_create(&d->gpu, &gc, &em));
	cr_assert_geq(gpu_block_count(d->gpu), config->blocks);
	OK(gpu_take_blocks(d->gpu, config->blocks, &em));
	if (config->host_blocks)
		OK(gpu_take_host_blocks(d->gpu, config->host_blocks, &em));
	struct batch_limits limits = {.rows_max = config->rows_max,
				      .tokens_max = config->tokens_max,
				      .max_model_len = config->max_model_len,
				      .block_size = config->block_size,
				      .block_count = config->blocks,
				      .vocab_size = d->model.vocab_size,
				      .host_block_count = config->host_blocks,
				      .recurrent = d->states.stride > 0,
				      .state_slots = gpu_state_slots(d->gpu)};
	OK(batch_state_create(&d->batch, &limits, &em));
	mirror_init(&d->mirror, config->block_size);
	request_rows_init(&d->rows, config->blocks);
	for (u32 i = 0; i < config->host_blocks; i++)
		d->free_host[d->free_host_count++] = i;
}

void device_run_close(struct device_run *d)
{
	gpu_destroy(&d->gpu);
	cr_assert_null(d->gpu);
	batch_state_destroy(&d->batch);
	rope_tables_fini(&d->rope);
	state_memory_fini(&d->states);
	safetensors_close(&d->checkpoint);
	device_close(&d->device);
}

/* ---------------------------------------------------------------- planning */

/* In the step that drops the row. */
static void swap_out(struct device_run *d, u32 row, u32 index)
{
	const struct mirror_row *m = &d->mirror.rows[row];
	u32 count = (m->computed + d->config.block_size - 1) / d->config.block_size;

	if (count > d->free_host_count)
		return;
	for (u32 i = 0; i < count; i++) {
		u32 host = d->free_host[--d->free_host_count];
		d->host_of[index][i] = host;
		mirror_copy(&d->mirror, m->blocks[i], d->config.blocks + host);
	}
	d->host_count[index] = count;
	d->host_computed[index] = m->computed;
	d->swapped_out += count;
	d->swaps_out |= count > 0;
}

/* In the step that adds it again; how many tokens are computed then. */
static u32 swap_in(struct device_run *d, u32 index, const u32 *blocks)
{
	u32 count = d->host_count[index];

	for (u32 i = 0; i < count; i++) {
		u32 host = d->host_of[index][i];
		mirror_copy(&d->mirror, d->config.blocks + host, blocks[i]);
		d->free_host[d->free_host_count++] = host;
	}
	d->swapped_in += count;
	d->host_count[index] = 0;
	return count ? d->host_computed[index] : 0;
}

/* Drops the row, but not the blocks that hold the tokens behind which its state was saved. */
static void drop_and_hold(struct device_run *d, u32 row, u32 index)
{
	const struct mirror_row *m = &d->mirror.rows[row];
	struct request_rows *r = &d->rows;
	u32 count = m->block_count, held = (d->saved_tokens[index] + d->config.block_size - 1) / d->config.block_size;

	memcpy(d->held[index], m->blocks, held * sizeof(u32));
	d->held_count[index] = held;
	request_rows_drop(r, &d->mirror, row);
	u32 *freed = r->free_blocks + r->free_count - count;
	memmove(freed, freed + held, (count - held) * sizeof(u32));
	r->free_count -= held;
}

/* The first of the blocks become those that were held; how many tokens they have. */
static u32 take_held(struct device_run *d, u32 index, u32 *blocks)
{
	for (u32 i = 0; i < d->held_count[index]; i++) {
		d->rows.free_blocks[d->rows.free_count++] = blocks[i];
		blocks[i] = d->held[index][i];
	}
	u32 tokens = d->held_count[index] ? d->saved_tokens[index] : 0;
	d->held_count[index] = 0;
	return tokens;
}

static u32 run_of(const struct mirror *m, u32 row)
{
	for (u32 i = 0; i < m->msg.run_row_count; i++)
		if (m->run_row[i] == row)
			return m->run_count[i];
	return m->rows[row].known - m->rows[row].computed == 1;
}

/* Of rows that run, behind any of their tokens. */
static void save_states(struct device_run *d)
{
	for (u32 row = 0; d->config.save_every && row < d->config.rows_max; row++) {
		u32 run = d->mirror.rows[row].present ? run_of(&d->mirror, row) : 0;
		if (run == 0 || request_rows_draw(&d->rows) % d->config.save_every)
			continue;
		u32 index = (u32)d->rows.of_row[row], tokens = d->mirror.rows[row].computed + 1 + request_rows_draw(&d->rows) % run;
		mirror_save(&d->mirror, row, index, tokens);
		d->saved_tokens[index] = tokens;
		d->saves++;
	}
}

static void drop_rows(struct device_run *d)
{
	for (u32 row = 0; row < d->config.rows_max; row++) {
		int i = d->rows.of_row[row];
		if (i < 0)
			continue;
		if (d->planned[i] == d->rows.requests[i].output_count) {
			d->done[i] = true;
			request_rows_drop(&d->rows, &d->mirror, row);
		} else if (d->config.preempt_every && request_rows_draw(&d->rows) % d->config.preempt_every == 0) {
			d->started[i] = false;
			swap_out(d, row, (u32)i);
			drop_and_hold(d, row, (u32)i);
		}
	}
}

static void add(struct device_run *d, u32 row, u32 index)
{
	u32 blocks[MIRROR_BLOCKS], count = request_rows_take_blocks(&d->rows, index, blocks);
	u32 computed = swap_in(d, index, blocks), saved = take_held(d, index, blocks);

	request_rows_add(&d->rows, &d->mirror, row, index, blocks, count, saved ? saved : computed);
	if (saved)
		mirror_load(&d->mirror, index);
	d->loads += saved > 0;
	d->started[index] = true;
}

/* A preempted request comes back when its tokens are known. */
static void add_rows(struct device_run *d)
{
	for (u32 row = 0; row < d->config.rows_max; row++) {
		u32 first = request_rows_draw(&d->rows) % d->request_count;
		for (u32 i = 0; d->rows.of_row[row] < 0 && i < d->request_count; i++) {
			u32 index = (first + i) % d->request_count;
			bool waits = d->planned[index] != d->rows.requests[index].outputs;
			waits |= d->swaps_out && d->host_count[index]; /* no step does both */
			if (!d->started[index] && !waits && request_rows_draw(&d->rows) % 3)
				add(d, row, index);
		}
	}
}

/* ---------------------------------------------------------------- steps */

static void take_logprobs(struct device_run *d, const struct device_flight *f, const struct gpu_result *r)
{
	for (u32 i = 0, at = 0; i < r->lp.entries; at += r->lp.count[i++]) {
		u32 entry = r->lp.entry[i];
		struct logprob_list l = {r->lp.count[i], r->lp.rank[i], r->lp.ids + at, r->lp.values + at};
		request_take_logprobs(&d->rows.requests[f->request[entry]], f->output[entry], &l);
	}
	for (u32 i = 0, at = 0; i < r->plp_entries; at += r->plp_count[i++]) {
		struct logprob_list l = {r->plp_count[i], r->plp_rank[i], r->plp_ids + at, r->plp_values + at};
		u32 row = 0;
		while (row < MIRROR_ROWS && f->seq[row] != r->plp_seq[i])
			row++;
		cr_assert_lt(row, MIRROR_ROWS);
		request_take_prompt_logprobs(&d->rows.requests[f->of_row[row]], r->plp_position[i], &l);
	}
}

/* The oldest step in flight. */
static void collect(struct device_run *d)
{
	struct device_flight *f = &d->flights[d->first_flight++ % GPU_RING];
	struct gpu_result r;

	OK(gpu_wait(d->gpu, f->step, &em));
	OK(gpu_result(d->gpu, f->step, &r, &em));
	cr_assert_eq(r.count, f->count);
	cr_assert_leq(r.started_ns, r.done_ns);
	for (u32 i = 0; i < r.count; i++) {
		struct driver_request *q = &d->rows.requests[f->request[i]];
		cr_assert_lt(r.tokens[i], d->model.vocab_size);
		cr_assert_eq(q->outputs, f->output[i]);
		q->output[q->outputs++] = r.tokens[i];
	}
	struct batch_tokens known = {.count = f->count,
				     .rows = f->row,
				     .incarnation = f->incarnation,
				     .index = f->index,
				     .tokens = r.tokens};
	batch_state_tokens_known(d->batch, &known);
	take_logprobs(d, f, &r);
}

static void drain(struct device_run *d)
{
	while (d->first_flight < d->next_flight)
		collect(d);
}

static void capture(struct device_run *d, struct device_flight *f)
{
	const struct batch_state *b = d->batch;

	*f = (struct device_flight){.step = b->step, .count = b->sample_count};
	for (u32 row = 0; row < d->config.rows_max; row++) {
		f->seq[row] = b->rows[row].seq;
		f->of_row[row] = d->rows.of_row[row];
	}
	for (u32 i = 0; i < b->sample_count; i++) {
		u32 row = b->sample_rows[i], request = (u32)d->rows.of_row[row];
		f->request[i] = request;
		f->output[i] = d->planned[request]++;
		f->row[i] = row;
		f->index[i] = b->known[row];
		f->incarnation[i] = b->rows[row].incarnation;
	}
}

static void step(struct device_run *d, const struct ipc_step *s)
{
	static const u32 unknown[MIRROR_ROWS];

	OK(batch_state_apply(d->batch, s, &em));
	OK(gpu_forward(d->gpu, d->batch, s, &em));
	OK(gpu_sample(d->gpu, d->batch, NULL, &em));
	capture(d, &d->flights[d->next_flight++ % GPU_RING]);
	batch_state_advance(d->batch);
	(void)mirror_commit(&d->mirror, unknown);
	while (d->next_flight - d->first_flight > d->config.depth)
		collect(d);
}

static bool all_done(const struct device_run *d)
{
	for (u32 i = 0; i < d->request_count; i++)
		if (!d->done[i])
			return false;
	return true;
}

void device_run_requests(struct device_run *d, struct driver_request *requests, u32 count)
{
	cr_assert_leq(count, COUNT_OF(d->done));
	d->rows.requests = requests;
	d->request_count = count;
	memset(d->planned, 0, sizeof(d->planned));
	memset(d->started, 0, sizeof(d->started));
	memset(d->done, 0, sizeof(d->done));
	memset(d->host_count, 0, sizeof(d->host_count));
	memset(d->saved_tokens, 0, sizeof(d->saved_tokens));
	while (!all_done(d)) {
		cr_assert_lt(d->steps++, 10000);
		mirror_begin(&d->mirror);
		d->swaps_out = false;
		drop_rows(d);
		add_rows(d);
		request_rows_plan(&d->rows, &d->mirror, PAUSE_EVERY);
		save_states(d);
		step(d, mirror_end(&d->mirror));
	}
	drain(d);
}

/* ---------------------------------------------------------------- comparing */

static double worse(double a, double b)
{
	return fabs(a) > b || isnan(a) ? fabs(a) : b;
}

static void add_difference(struct device_difference *d, double x)
{
	d->worst_logprob = worse(x, d->worst_logprob);
	d->mean_logprob += fabs(x); /* a sum until all are there */
	d->compared++;
	d->far += !(fabs(x) < 0.2);
}

static double log_sum_exp(const float *logits, u32 vocab)
{
	double best = -INFINITY, sum = 0;

	for (u32 i = 0; i < vocab; i++)
		best = logits[i] > best ? logits[i] : best;
	for (u32 i = 0; i < vocab; i++)
		sum += exp(logits[i] - best);
	return best + log(sum);
}

/* What the CPU's ops make of its own logits for output `i`: all that sampling looks at, without a sampler. */
static u32 cpu_choice(struct runner *r, const struct driver_request *q, u32 i, const float *own,
		      float *best_is_better_by)
{
	static u32 seen[MIRROR_TOKENS], outputs[MIRROR_TOKENS], masked[EOS_IDS_MAX + STOP_IDS_MAX];
	struct sampling_params greedy = {.temperature = 0, .repetition_penalty = 1, .top_p = 1};
	const struct sampling_params *p = q->params ? q->params : &greedy;
	u32 vocab = r->model.vocab_size, distinct = 0, n = 0, token, best = 0;
	float *logits = malloc(vocab * sizeof(float));

	memcpy(logits, own, vocab * sizeof(float));
	for (u32 k = 0; k < q->prompt_count + i; k++) {
		u32 id = k < q->prompt_count ? q->prompt[k] : q->output[k - q->prompt_count], at = 0;
		while (at < distinct && seen[at] != id)
			at++;
		if (at == distinct) {
			seen[distinct] = id;
			outputs[distinct++] = 0;
		}
		outputs[at] += k >= q->prompt_count;
	}
	for (u32 k = 0; i < p->min_tokens && k < q->stop_count; k++)
		masked[n++] = q->stop_ids[k];
	for (u32 k = 0; i < p->min_tokens && !(p->flags & SAMPLING_IGNORE_EOS) && k < r->model.eos_count; k++)
		masked[n++] = r->model.eos_ids[k];
	struct kern_logits_row row = {.logits = logits,
				      .repetition_penalty = p->repetition_penalty,
				      .presence_penalty = p->presence_penalty,
				      .frequency_penalty = p->frequency_penalty,
				      .seen_ids = seen,
				      .seen_outputs = outputs,
				      .seen_count = distinct,
				      .bias_ids = q->bias_ids,
				      .bias_values = q->bias_values,
				      .bias_count = q->bias_count,
				      .masked_ids = masked,
				      .masked_count = n};
	struct kern_sample_row sample = {.logits = logits,
					 .temperature = p->temperature,
					 .top_p = p->top_p,
					 .min_p = p->min_p,
					 .top_k = p->top_k,
					 .seed = p->seed,
					 .position = i};
	struct kern_logits_args la = {.rows = &row, .row_count = 1, .vocab = vocab};
	struct kern_sample_args sa = {.rows = &sample, .tokens = &token, .row_count = 1, .vocab = vocab};
	cr_assert_eq(r->ops.logits(&r->ctx, &la), ERR_OK);
	cr_assert_eq(r->ops.sample(&r->ctx, &sa), ERR_OK);
	for (u32 v = 1; v < vocab; v++)
		best = logits[v] > logits[best] ? v : best;
	*best_is_better_by = logits[best] - logits[q->output[i]];
	free(logits);
	return token;
}

/* Of one request; `logits` [tokens][vocab] are the CPU's for its prompt and outputs. */
static void compare_request(struct runner *r, const struct driver_request *q, const float *logits,
			    struct device_difference *d)
{
	u32 vocab = r->model.vocab_size;

	for (u32 i = 1; i < q->prompt_count; i++) {
		const float *own = logits + (size_t)(i - 1) * vocab;
		double sum = log_sum_exp(own, vocab);
		for (u32 k = 0; k < q->plp_count[i]; k++)
			add_difference(d, q->plp_values[i][k] - (own[q->plp_ids[i][k]] - sum));
	}
	for (u32 i = 0; i < q->outputs; i++) {
		const float *own = logits + (size_t)(q->prompt_count + i - 1) * vocab;
		double sum = log_sum_exp(own, vocab);
		float better;
		d->same += cpu_choice(r, q, i, own, &better) == q->output[i];
		d->outputs++;
		if (!q->params || q->params->temperature == 0)
			d->worst_choice = worse(better, d->worst_choice);
		for (u32 k = 0; k < q->lp_count[i]; k++)
			add_difference(d, q->lp_values[i][k] - (own[q->lp_ids[i][k]] - sum));
	}
}

struct device_difference device_compare(const struct device_run_config *c,
					const struct driver_request *requests, u32 count)
{
	static struct driver driver;
	static struct driver_request again;
	static u32 tokens[MIRROR_TOKENS];
	struct device_difference d = {0};
	struct driver_config config = {.model_dir = c->model_dir,
				       .dtype = OPTION_DTYPE_BFLOAT16,
				       .kv_dtype = c->kv_dtype == KERN_I8	? OPTION_KV_DTYPE_INT8
						   : c->kv_dtype == KERN_F8E4M3 ? OPTION_KV_DTYPE_FP8
										: OPTION_KV_DTYPE_BFLOAT16,
				       .ranks = 1,
				       .threads = 1,
				       .caps = kern_caps_detect(),
				       .rows_max = 8,
				       .tokens_max = 512,
				       .block_size = 16,
				       .chunk = 256};

	driver_open(&driver, &config);
	u32 vocab = driver.runners[0]->model.vocab_size;
	for (u32 i = 0; i < count; i++) {
		const struct driver_request *q = &requests[i];
		u32 n = q->prompt_count + q->outputs - 1;
		memcpy(tokens, q->prompt, q->prompt_count * sizeof(u32));
		memcpy(tokens + q->prompt_count, q->output, q->outputs * sizeof(u32));
		again = (struct driver_request){.prompt = tokens, .prompt_count = n, .output_count = 1};
		again.prompt_logits = malloc((size_t)n * vocab * sizeof(float));
		driver_run(&driver, &again, 1);
		compare_request(driver.runners[0], q, again.prompt_logits, &d);
		free(again.prompt_logits);
	}
	driver_close(&driver);
	d.mean_logprob /= d.compared ? d.compared : 1;
	return d;
}
