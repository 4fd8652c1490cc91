/* Takes a CHUNK apart into events, one per entry, without copying. Runs in the client's thread. Never looks at
 * requests; never trusts a column's length before it was held against the others. */
#include "client/libtercet_priv.h"

#include <string.h>

#define COLUMN_FITS(name)                                                                                    \
	if (m->name##_count != m->req_id_count)                                                              \
		return err_set(em, ERR_FORMAT, "CHUNK: column " #name " has %u elements, %u entries are there",  \
			       m->name##_count, m->req_id_count);

static u64 sum(const u32 *values, u32 count)
{
	u64 total = 0;
	for (u32 i = 0; i < count; i++)
		total += values[i];
	return total;
}

static bool rising_below(const u32 *values, u32 count, u32 limit)
{
	for (u32 i = 0; i < count; i++)
		if (values[i] >= limit || (i && values[i] < values[i - 1]))
			return false;
	return true;
}

static enum err check_logprobs(const struct ipc_chunk *m, struct err_msg *em)
{
	bool fits = m->lp_count_count == m->lp_token_count && m->lp_rank_count == m->lp_token_count &&
		    m->lp_values_count == m->lp_ids_count && sum(m->lp_count, m->lp_count_count) == m->lp_ids_count &&
		    rising_below(m->lp_token, m->lp_token_count, m->tokens_count);
	bool prompt_fits = m->plp_position_count == m->plp_entry_count && m->plp_count_count == m->plp_entry_count &&
			   m->plp_rank_count == m->plp_entry_count && m->plp_values_count == m->plp_ids_count &&
			   sum(m->plp_count, m->plp_count_count) == m->plp_ids_count &&
			   rising_below(m->plp_entry, m->plp_entry_count, m->req_id_count);
	if (!fits || !prompt_fits)
		return err_set(em, ERR_FORMAT, "CHUNK: the %s columns do not fit together", fits ? "plp_" : "lp_");
	return ERR_OK;
}

enum err tercet_chunk_begin(struct chunk_cursor *c, const struct ipc_chunk *m, struct err_msg *em)
{
	COLUMN_FITS(first_token)
	COLUMN_FITS(token_count)
	COLUMN_FITS(text_bytes)
	COLUMN_FITS(prompt_count)
	COLUMN_FITS(cached_count)
	COLUMN_FITS(finish)
	COLUMN_FITS(stop_kind)
	COLUMN_FITS(stop_value)
	if (sum(m->token_count, m->req_id_count) != m->tokens_count ||
	    sum(m->text_bytes, m->req_id_count) != m->text_count)
		return err_set(em, ERR_FORMAT, "CHUNK: its entries do not add up to its tokens and text");
	for (u32 i = 0; i < m->req_id_count; i++)
		if (m->finish[i] > TERCET_FINISH_ERROR || m->stop_kind[i] > TERCET_STOP_STRING)
			return err_set(em, ERR_FORMAT, "CHUNK: entry %u ends in an unknown way", i);
	enum err e = check_logprobs(m, em);
	if (e == ERR_OK)
		*c = (struct chunk_cursor){.chunk = *m, .in_hand = true};
	return e;
}

/* Elements of the entry that owns tokens [c->token, token_end): either one per token or none. */
static void take_logprobs(struct chunk_cursor *c, u32 token_end, struct tercet_logprobs *out)
{
	const struct ipc_chunk *m = &c->chunk;
	u32 begin = c->lp;
	u32 ids = c->lp_ids;
	while (c->lp < m->lp_token_count && m->lp_token[c->lp] < token_end)
		c->lp_ids += m->lp_count[c->lp++];
	if (c->lp - begin != token_end - c->token || c->lp == begin)
		return;
	*out = (struct tercet_logprobs){.count = c->lp - begin,
					.counts = m->lp_count + begin,
					.ranks = m->lp_rank + begin,
					.ids = m->lp_ids + ids,
					.values = m->lp_values + ids};
}

static void take_prompt_logprobs(struct chunk_cursor *c, struct tercet_logprobs *out)
{
	const struct ipc_chunk *m = &c->chunk;
	u32 begin = c->plp;
	u32 ids = c->plp_ids;
	while (c->plp < m->plp_entry_count && m->plp_entry[c->plp] == c->entry)
		c->plp_ids += m->plp_count[c->plp++];
	if (c->plp == begin)
		return;
	*out = (struct tercet_logprobs){.count = c->plp - begin,
					.positions = m->plp_position + begin,
					.counts = m->plp_count + begin,
					.ranks = m->plp_rank + begin,
					.ids = m->plp_ids + ids,
					.values = m->plp_values + ids};
}

bool tercet_chunk_next(struct chunk_cursor *c, struct tercet_event *event)
{
	const struct ipc_chunk *m = &c->chunk;
	if (c->entry == m->req_id_count) {
		c->in_hand = false;
		return false;
	}
	u32 i = c->entry;
	*event = (struct tercet_event){
		.type = TERCET_EVENT_OUTPUT,
		.req_id = m->req_id[i],
		.error_text = "",
		.chunk = m->chunk,
		.first_token = m->first_token[i],
		.token_count = m->token_count[i],
		.tokens = m->tokens_count ? m->tokens + c->token : NULL,
		.text = m->text_count ? (const char *)m->text + c->text : "",
		.text_bytes = m->text_bytes[i],
		.prompt_count = m->prompt_count[i],
		.cached_count = m->cached_count[i],
		.finish = m->finish[i],
		.stop_kind = m->stop_kind[i],
		.stop_value = m->stop_value[i],
	};
	take_logprobs(c, c->token + m->token_count[i], &event->logprobs);
	take_prompt_logprobs(c, &event->prompt_logprobs);
	c->token += m->token_count[i];
	c->text += m->text_bytes[i];
	c->entry++;
	return true;
}

void tercet_chunk_skip(struct tercet_event *event, const struct output_part *part)
{
	struct tercet_logprobs *lp = &event->logprobs;
	if (!part->skip_tokens && !part->skip_bytes)
		return;
	event->first_token += part->skip_tokens;
	event->token_count -= part->skip_tokens;
	event->tokens += part->skip_tokens;
	event->text += part->skip_bytes;
	event->text_bytes -= part->skip_bytes;
	if (!lp->count || !part->skip_tokens)
		return;
	u32 ids = (u32)sum(lp->counts, part->skip_tokens);
	*lp = (struct tercet_logprobs){.count = lp->count - part->skip_tokens,
				       .counts = lp->counts + part->skip_tokens,
				       .ranks = lp->ranks + part->skip_tokens,
				       .ids = lp->ids + ids,
				       .values = lp->values + ids};
}
