/* Owns copies of the log-probabilities that lately went to the detokenizer; runs in the scheduler's I/O shell. Never
 * touches requests that list none, and never grows beyond its bounds. */
#include "proc_scheduler/kept_results.h"

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

static const u64 SECOND_NS = 1000000000u;

enum err kept_results_init(struct kept_results *k)
{
	*k = (struct kept_results){.ring = calloc(KEPT_RESULTS_MAX, sizeof(*k->ring))};
	return k->ring ? ERR_OK : ERR_NO_MEMORY;
}

static struct kept_result *at(const struct kept_results *k, u32 i)
{
	return &k->ring[(k->first + i) % KEPT_RESULTS_MAX];
}

static void forget_oldest(struct kept_results *k)
{
	struct kept_result *r = at(k, 0);

	free(r->frame);
	k->bytes -= r->bytes;
	*r = (struct kept_result){0};
	k->first = (k->first + 1) % KEPT_RESULTS_MAX;
	k->count--;
}

/* What is kept of a sequence has no holes: a result that cannot be kept makes all before it useless. */
static void forget_all(struct kept_results *k)
{
	while (k->count)
		forget_oldest(k);
}

static void index_fini(struct kept_results *k)
{
	map_fini(&k->index);
	free(k->firsts);
	free(k->wanted);
	k->firsts = NULL;
	k->wanted = NULL;
	k->index_count = 0;
}

void kept_results_fini(struct kept_results *k)
{
	if (k->ring)
		forget_all(k);
	free(k->ring);
	index_fini(k);
	buf_fini(&k->scratch);
	ipc_scratch_fini(&k->decoded);
	*k = (struct kept_results){0};
}

void kept_results_expire(struct kept_results *k, u64 now_ns)
{
	while (k->count && now_ns - at(k, 0)->time_ns > KEPT_RESULTS_AGE_S * SECOND_NS)
		forget_oldest(k);
}

/* ---------------------------------------------------------------- rows */

/* Columns of some rows of a RESULT, copied. */
struct rows {
	struct ipc_result m;
	u32 *words; /* owned: all columns of u32 */
	u64 *seqs, *prompt_seqs;
};

static u32 sum(const u32 *values, u32 count)
{
	u32 total = 0;

	for (u32 i = 0; i < count; i++)
		total += values[i];
	return total;
}

static bool fits(const struct ipc_result *m)
{
	return m->position_count == m->seq_count && m->token_count == m->seq_count &&
	       m->lp_count_count == m->lp_entry_count && m->lp_rank_count == m->lp_entry_count &&
	       m->lp_values_count == m->lp_ids_count && sum(m->lp_count, m->lp_count_count) == m->lp_ids_count &&
	       m->plp_position_count == m->plp_seq_count && m->plp_count_count == m->plp_seq_count &&
	       m->plp_rank_count == m->plp_seq_count && m->plp_values_count == m->plp_ids_count &&
	       sum(m->plp_count, m->plp_count_count) == m->plp_ids_count;
}

static bool rows_init(struct rows *r, const struct ipc_result *m)
{
	u32 rows = m->lp_entry_count, prompts = m->plp_seq_count;
	size_t words = 5 * (size_t)rows + 2 * (size_t)m->lp_ids_count + 3 * (size_t)prompts +
		       2 * (size_t)m->plp_ids_count;

	*r = (struct rows){.words = malloc((words + 2 * ((size_t)rows + prompts)) * sizeof(u32))};
	if (!r->words)
		return false;
	u32 *at_word = r->words + 2 * ((size_t)rows + prompts);
	r->seqs = (u64 *)(void *)r->words;
	r->prompt_seqs = r->seqs + rows;
	r->m = (struct ipc_result){.step = m->step, .seq = r->seqs, .plp_seq = r->prompt_seqs};
#define PLACE(column, count)     \
	r->m.column = at_word;   \
	at_word += (count);
	PLACE(position, rows)
	PLACE(token, rows)
	PLACE(lp_entry, rows)
	PLACE(lp_count, rows)
	PLACE(lp_rank, rows)
	PLACE(lp_ids, m->lp_ids_count)
	PLACE(plp_position, prompts)
	PLACE(plp_count, prompts)
	PLACE(plp_rank, prompts)
	PLACE(plp_ids, m->plp_ids_count)
#undef PLACE
	r->m.lp_values = (const f32 *)(const void *)at_word;
	r->m.plp_values = r->m.lp_values + m->lp_ids_count;
	return true;
}

#define WRITABLE(pointer) ((u32 *)(uintptr_t)(pointer))
#define WRITABLE_F(pointer) ((f32 *)(uintptr_t)(pointer))

/* Row `i` of the lists, whose ids begin at `ids`. */
static void rows_take(struct rows *r, const struct ipc_result *m, u32 i, u32 ids)
{
	struct ipc_result *to = &r->m;
	u32 row = m->lp_entry[i], n = to->seq_count, count = m->lp_count[i];

	r->seqs[n] = m->seq[row];
	WRITABLE(to->position)[n] = m->position[row];
	WRITABLE(to->token)[n] = m->token[row];
	WRITABLE(to->lp_entry)[n] = n;
	WRITABLE(to->lp_count)[n] = count;
	WRITABLE(to->lp_rank)[n] = m->lp_rank[i];
	memcpy(WRITABLE(to->lp_ids) + to->lp_ids_count, m->lp_ids + ids, count * sizeof(u32));
	memcpy(WRITABLE_F(to->lp_values) + to->lp_ids_count, m->lp_values + ids, count * sizeof(f32));
	to->seq_count = to->position_count = to->token_count = n + 1;
	to->lp_entry_count = to->lp_count_count = to->lp_rank_count = n + 1;
	to->lp_ids_count = to->lp_values_count = to->lp_ids_count + count;
}

static void rows_take_prompt(struct rows *r, const struct ipc_result *m, u32 i, u32 ids)
{
	struct ipc_result *to = &r->m;
	u32 n = to->plp_seq_count, count = m->plp_count[i];

	r->prompt_seqs[n] = m->plp_seq[i];
	WRITABLE(to->plp_position)[n] = m->plp_position[i];
	WRITABLE(to->plp_count)[n] = count;
	WRITABLE(to->plp_rank)[n] = m->plp_rank[i];
	memcpy(WRITABLE(to->plp_ids) + to->plp_ids_count, m->plp_ids + ids, count * sizeof(u32));
	memcpy(WRITABLE_F(to->plp_values) + to->plp_ids_count, m->plp_values + ids, count * sizeof(f32));
	to->plp_seq_count = to->plp_position_count = to->plp_count_count = to->plp_rank_count = n + 1;
	to->plp_ids_count = to->plp_values_count = to->plp_ids_count + count;
}

static bool is_beam(const struct ipc_result *m, u32 row)
{
	for (u32 i = 0; i < m->beam_entry_count; i++)
		if (m->beam_entry[i] == row)
			return true;
	return false;
}

/* All listed rows, or with `k` those of sequences that are wanted. */
static bool rows_select(struct rows *r, const struct ipc_result *m, const struct kept_results *k)
{
	u32 ids = 0, index;

	if (!rows_init(r, m))
		return false;
	for (u32 i = 0; i < m->lp_entry_count; ids += m->lp_count[i++])
		if (m->lp_entry[i] < m->seq_count && !is_beam(m, m->lp_entry[i]) &&
		    (!k || (map_get(&k->index, m->seq[m->lp_entry[i]], &index) && k->wanted[index])))
			rows_take(r, m, i, ids);
	ids = 0;
	for (u32 i = 0; i < m->plp_seq_count; ids += m->plp_count[i++])
		if (!k || (map_get(&k->index, m->plp_seq[i], &index) && k->wanted[index]))
			rows_take_prompt(r, m, i, ids);
	return true;
}

/* ---------------------------------------------------------------- keeping */

static u64 prompt_bit(u64 seq)
{
	return (u64)1 << (seq % 64);
}

void kept_results_add(struct kept_results *k, const struct ipc_result *m, u64 now_ns)
{
	struct rows rows;

	if ((m->lp_entry_count <= m->beam_entry_count && m->plp_seq_count == 0) || !fits(m))
		return;
	if (!rows_select(&rows, m, NULL)) {
		forget_all(k);
		return;
	}
	u64 prompts = 0;
	for (u32 i = 0; i < m->plp_seq_count; i++)
		prompts |= prompt_bit(m->plp_seq[i]);
	struct ipc_msg msg = {.type = IPC_TYPE_RESULT, .result = rows.m};
	buf_clear(&k->scratch);
	ipc_encode(&msg, &k->scratch);
	free(rows.words);
	char *frame = buf_ok(&k->scratch) ? malloc(k->scratch.bytes) : NULL;
	if (!frame) {
		forget_all(k);
		return;
	}
	memcpy(frame, k->scratch.data, k->scratch.bytes);
	if (k->count == KEPT_RESULTS_MAX)
		forget_oldest(k);
	*at(k, k->count++) = (struct kept_result){now_ns, prompts, (u32)k->scratch.bytes, frame};
	k->bytes += k->scratch.bytes;
	while (k->bytes > KEPT_RESULTS_BYTES_MAX)
		forget_oldest(k);
	kept_results_expire(k, now_ns);
}

/* ---------------------------------------------------------------- telling again */

static bool decode(struct kept_results *k, u32 i, struct ipc_msg *msg)
{
	const struct kept_result *r = at(k, i);

	return ipc_decode(r->frame, r->bytes, &k->decoded, msg, NULL) == ERR_OK;
}

static u32 count_rows(struct kept_results *k)
{
	struct ipc_msg msg;
	u64 rows = 0;

	for (u32 i = 0; i < k->count; i++)
		if (decode(k, i, &msg))
			rows += msg.result.seq_count + msg.result.plp_seq_count;
	return rows < UINT32_MAX ? (u32)rows : 0;
}

static void index_sequence(struct kept_results *k, u64 seq, u32 first)
{
	u32 index;

	if (map_get(&k->index, seq, &index)) {
		if (first < k->firsts[index])
			k->firsts[index] = first;
		return;
	}
	if (map_put(&k->index, seq, k->index_count) == ERR_OK)
		k->firsts[k->index_count++] = first;
}

void kept_results_begin(struct kept_results *k)
{
	struct ipc_msg msg;
	u32 rows = count_rows(k);

	index_fini(k);
	if (rows == 0)
		return;
	k->firsts = calloc(rows, sizeof(*k->firsts));
	k->wanted = calloc(rows, sizeof(*k->wanted));
	if (!k->firsts || !k->wanted || map_init(&k->index, rows, (u64)(uintptr_t)k->firsts) != ERR_OK) {
		index_fini(k);
		return;
	}
	for (u32 i = 0; i < k->count; i++) {
		if (!decode(k, i, &msg))
			continue;
		for (u32 j = 0; j < msg.result.seq_count; j++)
			index_sequence(k, msg.result.seq[j], msg.result.position[j]);
		for (u32 j = 0; j < msg.result.plp_seq_count; j++)
			index_sequence(k, msg.result.plp_seq[j], UINT32_MAX);
	}
}

u32 kept_results_open(struct kept_results *k, u64 seq, u32 output_count)
{
	u32 index;

	if (k->index_count == 0 || !map_get(&k->index, seq, &index))
		return output_count;
	k->wanted[index] = true;
	return k->firsts[index] < output_count ? k->firsts[index] : output_count;
}

bool kept_results_only_prompt(const struct kept_results *k, u64 seq)
{
	u32 index;

	return k->index_count && map_get(&k->index, seq, &index) && k->wanted[index] && k->firsts[index] == UINT32_MAX;
}

void kept_results_give(struct kept_results *k, kept_results_fn fn, void *ctx)
{
	struct ipc_msg msg;
	struct rows rows;

	for (u32 i = 0; k->index_count && i < k->count; i++) {
		if (!decode(k, i, &msg) || !rows_select(&rows, &msg.result, k))
			continue;
		if (rows.m.seq_count || rows.m.plp_seq_count)
			fn(ctx, &rows.m);
		free(rows.words);
	}
}

void kept_results_end(struct kept_results *k)
{
	index_fini(k);
}

void kept_results_give_prompt(struct kept_results *k, u64 seq, kept_results_fn fn, void *ctx)
{
	struct ipc_msg msg;
	struct rows rows;

	for (u32 i = 0; i < k->count; i++) {
		if (!(at(k, i)->prompts & prompt_bit(seq)) || !decode(k, i, &msg))
			continue;
		if (!rows_init(&rows, &msg.result))
			return;
		u32 ids = 0;
		for (u32 j = 0; j < msg.result.plp_seq_count; ids += msg.result.plp_count[j++])
			if (msg.result.plp_seq[j] == seq)
				rows_take_prompt(&rows, &msg.result, j, ids);
		if (rows.m.plp_seq_count)
			fn(ctx, &rows.m);
		free(rows.words);
	}
}
