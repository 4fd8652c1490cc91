/* What a STEP says of the states that rows keep: who begins with a saved one, and whose are saved when it has run. Runs in the worker, inside
 * batch_state_apply. Never touches a state: it says which. */
#include "proc_worker/batch_state_priv.h"

#include "ipc/ipc.h"

enum err batch_state_load(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	b->load_count = 0;
	for (u32 i = 0; b->limits.recurrent && i < s->add_row_count; i++) {
		if (s->add_computed[i] == 0)
			continue;
		u32 n = b->load_count;
		if (n == s->load_slot_count)
			return err_set(em, ERR_INVALID, "add_computed[%u] is %u, and load_slot has %u elements: no state is named for the row", i,
				       s->add_computed[i], n);
		if (s->load_slot[n] >= b->limits.state_slots)
			return err_set(em, ERR_INVALID, "load_slot[%u] is %u; it must be below %u", n, s->load_slot[n], b->limits.state_slots);
		b->load_row[n] = s->add_row[i];
		b->load_slot[n] = s->load_slot[n];
		b->load_count++;
	}
	if (b->load_count < s->load_slot_count)
		return err_set(em, ERR_INVALID, "load_slot has %u elements; %u rows are added that begin with a state", s->load_slot_count,
			       b->load_count);
	return ERR_OK;
}

static enum err check_save(const struct batch_state *b, const struct ipc_step *s, u32 i, struct err_msg *em)
{
	u32 row = s->save_row[i], slot = s->save_slot[i], tokens = s->save_tokens[i];

	if (row >= b->created.rows_max || !batch_state_present(b, row))
		return err_set(em, ERR_INVALID, "save_row[%u]: there is no row %u", i, row);
	if (slot >= b->limits.state_slots)
		return err_set(em, ERR_INVALID, "save_slot[%u] is %u; it must be below %u", i, slot, b->limits.state_slots);
	if (tokens <= b->computed[row] || tokens > b->computed[row] + b->run[row])
		return err_set(em, ERR_INVALID, "save_tokens[%u] is %u; of row %u this step runs the tokens behind %u, up to %u", i, tokens, row,
			       b->computed[row], b->computed[row] + b->run[row]);
	if (b->save_tokens[row])
		return err_set(em, ERR_INVALID, "save_row[%u]: the state of row %u is saved twice", i, row);
	if (b->state_stamp[slot] == s->step)
		return err_set(em, ERR_INVALID, "save_slot[%u]: two states are saved in slot %u", i, slot);
	return ERR_OK;
}

enum err batch_state_save(struct batch_state *b, const struct ipc_step *s, struct err_msg *em)
{
	for (u32 i = 0; i < s->save_row_count; i++) {
		enum err e = check_save(b, s, i, em);
		if (e)
			return e;
		b->state_stamp[s->save_slot[i]] = s->step;
		b->save_tokens[s->save_row[i]] = s->save_tokens[i];
		b->save_slot[s->save_row[i]] = s->save_slot[i];
	}
	b->save_count = s->save_row_count;
	return ERR_OK;
}
