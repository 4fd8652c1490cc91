/* Owns the KV cells of the fake worker; runs in the scheduler's unit tests, in the simulator and in no
 * process of the engine. Never forgives: what a real worker would compute wrongly is an error here. */
#include "tests/sim/fake_worker.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "common/step_digest.h"

static u64 extend(u64 prefix, u32 token)
{
	return step_digest_mix(prefix * 0x9e3779b97f4a7c15u + token + 1) | 1;
}

static u32 sample(u64 prefix, u32 vocab_size)
{
	return (u32)(step_digest_mix(prefix ^ 0x7e5ce7) % vocab_size);
}

u32 fake_next_token(const u32 *tokens, u32 count, u32 vocab_size)
{
	u64 prefix = 1;

	for (u32 i = 0; i < count; i++)
		prefix = extend(prefix, tokens[i]);
	return sample(prefix, vocab_size);
}

/* Multiples of an eighth, so that sums are exact and often equal. */
static u32 best_tokens(u64 prefix, u32 vocab_size, u32 n, u32 *ids, f32 *values)
{
	u32 count = 0;

	for (u32 id = 0; id < vocab_size; id++) {
		f32 value = -(f32)(1 + step_digest_mix(prefix ^ (id * 0x51ed27ull + 77)) % 40) / 8;
		if (id == sample(prefix, vocab_size))
			value = -0.125f; /* the sampled one is the best, or one of them */
		u32 at = count;
		while (at > 0 && value > values[at - 1])
			at--;
		if (at == n)
			continue;
		count += count < n;
		memmove(&ids[at + 1], &ids[at], (count - at - 1) * sizeof(u32));
		memmove(&values[at + 1], &values[at], (count - at - 1) * sizeof(f32));
		ids[at] = id;
		values[at] = value;
	}
	return count;
}

u32 fake_best_tokens(const u32 *tokens, u32 count, u32 vocab_size, u32 n, u32 *ids, f32 *values)
{
	u64 prefix = 1;

	for (u32 i = 0; i < count; i++)
		prefix = extend(prefix, tokens[i]);
	return best_tokens(prefix, vocab_size, n, ids, values);
}

static void *zeroed(size_t count, size_t bytes)
{
	void *p = calloc(count, bytes);

	ASSERT(p);
	return p;
}

void fake_worker_init(struct fake_worker *w, const struct batch_limits *l)
{
	struct err_msg em;

	memset(w, 0, sizeof(*w));
	enum err e = batch_state_create(&w->batch, l, &em);
	ASSERT(e == ERR_OK);
	w->cells = zeroed(((size_t)l->block_count + l->host_block_count) * l->block_size, sizeof(u64));
	w->prefix = zeroed((size_t)l->rows_max * (l->max_model_len + 1), sizeof(u64));
	w->hashed = zeroed(l->rows_max, sizeof(u32));
	w->hashed_for = zeroed(l->rows_max, sizeof(u64));
	w->state = zeroed((size_t)l->rows_max + l->state_slots, sizeof(u64));
	w->writer_step = zeroed(l->block_count, sizeof(u64));
	w->writer_row = zeroed(l->block_count, sizeof(u32));
}

void fake_worker_fini(struct fake_worker *w)
{
	batch_state_destroy(&w->batch);
	ipc_scratch_fini(&w->scratch);
	buf_fini(&w->frame);
	free(w->cells);
	free(w->prefix);
	free(w->hashed);
	free(w->hashed_for);
	free(w->state);
	free(w->writer_step);
	free(w->writer_row);
}

void fake_worker_reset(struct fake_worker *w, u32 block_count, u32 max_model_len)
{
	const struct batch_limits *l = &w->batch->created;
	struct err_msg em;
	enum err e = batch_state_reset(w->batch, block_count, max_model_len, &em);

	ASSERT(e == ERR_OK);
	memset(w->cells, 0, ((size_t)l->block_count + l->host_block_count) * l->block_size * sizeof(u64));
	memset(w->hashed_for, 0, l->rows_max * sizeof(u64));
	memset(w->state, 0, ((size_t)l->rows_max + l->state_slots) * sizeof(u64));
	memset(w->writer_step, 0, l->block_count * sizeof(u64));
}

/* Hashes of the row's prefixes: [n] is that of its first n tokens. */
static const u64 *prefixes(struct fake_worker *w, u32 row)
{
	const struct batch_state *b = w->batch;
	u64 *p = w->prefix + (size_t)row * (b->created.max_model_len + 1);

	if (w->hashed_for[row] != b->rows[row].incarnation) {
		w->hashed_for[row] = b->rows[row].incarnation;
		w->hashed[row] = 0;
		p[0] = 1 + (u64)b->rows[row].lora; /* adapters share no KV */
	}
	const u32 *tokens = batch_state_tokens(b, row);
	/* The newest token may have been set to another one since. */
	if (b->rows[row].params.beam_width && w->hashed[row] > b->computed[row])
		w->hashed[row] = b->computed[row];
	for (; w->hashed[row] < b->known[row]; w->hashed[row]++)
		p[w->hashed[row] + 1] = extend(p[w->hashed[row]], tokens[w->hashed[row]]);
	for (u32 i = b->known[row]; i < b->known[row] + b->drafts[row]; i++) /* until the step ends */
		p[i + 1] = extend(p[i], tokens[i]);
	return p;
}

static u64 next_guess(struct fake_worker *w)
{
	w->guesses += 0x9e3779b97f4a7c15u;
	return step_digest_mix(w->guesses);
}

/* Guesses as many tokens as there is room for, or fewer, of which some are right. */
static void guess(struct fake_worker *w)
{
	struct batch_state *b = w->batch;
	u32 tokens[64];

	for (u32 i = 0; b->limits.draft_max && i < b->sample_count; i++) {
		u32 row = b->sample_rows[i], room = batch_state_draft_room(b, row);
		u64 prefix = prefixes(w, row)[b->known[row]];
		room = room < COUNT_OF(tokens) ? room : (u32)COUNT_OF(tokens);
		u32 count = room - (u32)(next_guess(w) % (room + 1)) / 2;
		for (u32 j = 0; j < count; j++) {
			bool right = next_guess(w) % 5 > 0;
			tokens[j] = right ? sample(prefix, b->limits.vocab_size) : (u32)(next_guess(w) % b->limits.vocab_size);
			prefix = extend(prefix, tokens[j]);
		}
		if (count)
			batch_state_draft(b, row, tokens, count);
	}
	batch_state_drafts_end(b);
}

/* What comes behind an end is the scheduler's to pass over. */
static bool never_ends(void *ctx, u32 row, u32 output, u32 token)
{
	(void)ctx;
	(void)row;
	(void)output;
	(void)token;
	return false;
}

static void copy_blocks(struct fake_worker *w)
{
	const struct batch_state *b = w->batch;
	size_t n = b->limits.block_size;

	for (u32 i = 0; i < b->copy_count; i++)
		memcpy(w->cells + b->copy_dst[i] * n, w->cells + b->copy_src[i] * n, n * sizeof(u64));
}

static enum err write_row(struct fake_worker *w, u32 row, struct err_msg *em)
{
	const struct batch_state *b = w->batch;
	const u64 *prefix = prefixes(w, row);
	const u32 *blocks = batch_state_blocks(b, row);
	u32 size = b->limits.block_size;

	for (u32 p = b->computed[row]; p < b->computed[row] + b->run[row] + b->drafts[row]; p++) {
		u32 block = blocks[p / size];
		if (w->writer_step[block] == b->step && w->writer_row[block] != row)
			return err_set(em, ERR_INTERNAL, "rows %u and %u write block %u in step %llu", row,
				       w->writer_row[block], block, (unsigned long long)b->step);
		w->writer_step[block] = b->step;
		w->writer_row[block] = row;
		w->cells[(size_t)block * size + p % size] = prefix[p + 1];
	}
	return ERR_OK;
}

static enum err read_row(struct fake_worker *w, u32 row, struct err_msg *em)
{
	const struct batch_state *b = w->batch;
	const u64 *prefix = prefixes(w, row);
	const u32 *blocks = batch_state_blocks(b, row);
	u32 size = b->limits.block_size;

	for (u32 p = 0; p < b->computed[row] + b->run[row] + b->drafts[row]; p++)
		if (w->cells[(size_t)blocks[p / size] * size + p % size] != prefix[p + 1])
			return err_set(em, ERR_INTERNAL,
				       "step %llu, row %u: block %u does not hold the KV of position %u",
				       (unsigned long long)b->step, row, blocks[p / size], p);
	return ERR_OK;
}

/* A row's state is what its tokens have made of it so far, or its source's. */
static void move_states(struct fake_worker *w)
{
	const struct batch_state *b = w->batch;

	u64 *saved = w->state + b->created.rows_max;

	for (u32 i = 0; i < b->load_count; i++)
		w->state[b->load_row[i]] = saved[b->load_slot[i]];
	for (u32 i = 0; i < b->fork_count; i++)
		w->state[b->fork_row[i]] = w->state[b->fork_src[i]];
	for (u32 i = 0; i < b->run_row_count; i++) {
		u32 row = b->run_rows[i], end = b->computed[row] + b->run[row];
		const u32 *tokens = batch_state_tokens(b, row);
		u64 state = b->computed[row] ? w->state[row] : 1 + (u64)b->rows[row].lora;
		for (u32 p = b->computed[row]; p < end; p++) {
			state = extend(state, tokens[p]);
			if (b->save_tokens[row] == p + 1)
				saved[b->save_slot[row]] = state;
		}
		w->state[row] = state;
	}
}

static enum err check_states(struct fake_worker *w, struct err_msg *em)
{
	const struct batch_state *b = w->batch;

	for (u32 i = 0; i < b->run_row_count; i++) {
		u32 row = b->run_rows[i], end = b->computed[row] + b->run[row];
		if (w->state[row] != prefixes(w, row)[end])
			return err_set(em, ERR_INTERNAL, "step %llu, row %u: its state is not that of its first %u tokens",
				       (unsigned long long)b->step, row, end);
	}
	return ERR_OK;
}

/* All rows write before any reads, as in every layer of a model. */
static enum err forward(struct fake_worker *w, struct err_msg *em)
{
	const struct batch_state *b = w->batch;
	enum err e = ERR_OK;

	copy_blocks(w);
	for (u32 i = 0; !e && i < b->run_row_count; i++)
		e = write_row(w, b->run_rows[i], em);
	for (u32 i = 0; !e && i < b->run_row_count; i++)
		e = read_row(w, b->run_rows[i], em);
	if (e || !b->limits.recurrent)
		return e;
	move_states(w);
	return check_states(w, em);
}

static void list_beam(struct fake_result *out, u32 i, u64 prefix, const struct batch_state *b, u32 row)
{
	u32 *ids = out->lp_ids + out->list_count;
	f32 *values = out->lp_values + out->list_count;
	u32 n = out->beam_count++;
	u32 count = best_tokens(prefix, b->limits.vocab_size, (u32)sampling_listed(&b->rows[row].params), ids + 1, values + 1);

	ids[0] = out->token[i];
	values[0] = -0.125f;
	out->beam_entry[n] = i;
	out->lp_rank[n] = 1;
	out->lp_count[n] = count + 1;
	out->list_count += count + 1;
}

enum err fake_worker_step(struct fake_worker *w, const struct ipc_step *step, struct fake_result *out,
			  struct err_msg *em)
{
	struct ipc_msg sent = {.type = IPC_TYPE_STEP, .sequence = step->step, .epoch = 1, .step = *step};
	struct ipc_msg received;
	struct batch_state *b = w->batch;

	buf_clear(&w->frame);
	ipc_encode(&sent, &w->frame);
	w->frame_bytes += w->frame.bytes;
	enum err e = ipc_decode(w->frame.data, w->frame.bytes, &w->scratch, &received, em);
	if (!e)
		e = batch_state_apply(b, &received.step, em);
	if (!e) {
		guess(w);
		e = forward(w, em);
	}
	if (e)
		return e;
	for (u32 i = 0; i < b->sample_count; i++)
		out->token[i] = sample(prefixes(w, b->sample_rows[i])[batch_state_sample_index(b, i)], b->limits.vocab_size);
	u32 kept[IPC_ROWS_MAX];
	if (b->draft_count)
		(void)batch_state_accept(b, out->token, kept, never_ends, NULL);
	out->step = step->step;
	out->count = b->sample_count;
	out->beam_count = out->list_count = 0;
	for (u32 i = 0; i < b->sample_count; i++) {
		u32 row = b->sample_rows[i];
		out->seq[i] = b->rows[row].seq;
		out->position[i] = batch_state_sample_index(b, i) - b->rows[row].prompt_count;
		u64 prefix = prefixes(w, row)[b->known[row]];
		if (b->rows[row].params.beam_width)
			list_beam(out, i, prefix, b, row);
	}
	batch_state_commit(b, out->token);
	return ERR_OK;
}

struct ipc_result fake_result_message(const struct fake_result *r)
{
	return (struct ipc_result){
		.step = r->step,
		.seq = r->seq,
		.seq_count = r->count,
		.position = r->position,
		.position_count = r->count,
		.token = r->token,
		.token_count = r->count,
		.beam_entry = r->beam_entry,
		.beam_entry_count = r->beam_count,
		.lp_entry = r->beam_entry,
		.lp_entry_count = r->beam_count,
		.lp_count = r->lp_count,
		.lp_count_count = r->beam_count,
		.lp_rank = r->lp_rank,
		.lp_rank_count = r->beam_count,
		.lp_ids = r->lp_ids,
		.lp_ids_count = r->list_count,
		.lp_values = r->lp_values,
		.lp_values_count = r->list_count,
	};
}
