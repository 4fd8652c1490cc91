/* The stack machine that reads pickles, for its files alone: values and instructions (pickle.c), names and calls (pickle_calls.c). */
#ifndef TERCET_PROC_WORKER_MODEL_PICKLE_PRIV_H
#define TERCET_PROC_WORKER_MODEL_PICKLE_PRIV_H

#include "proc_worker/model/pickle.h"

struct pickle_machine {
	const u8 *data, *at, *end;
	struct arena *arena;
	const struct pickle_global *globals;
	u32 global_count;
	struct pickle_value **stack;
	u32 depth, stack_capacity;
	struct pickle_value **memo; /* NULL: nothing was put there */
	u32 memo_count, memo_capacity;
	const struct pickle_value *persistent;
	struct err_msg *em;
};

/* All set m->em where they fail: ERR_FORMAT of what is no pickle, ERR_UNSUPPORTED of what weights do not need, ERR_TOO_LONG, ERR_NO_MEMORY. Values
 * lie in the arena. */

/* A line of text, without its end; `*text` lies in the data. */
MUST_CHECK enum err pickle_take_line(struct pickle_machine *m, const char **text, u32 *bytes);
/* The last `count` values of the stack, none of them a mark, which stay there. */
MUST_CHECK enum err pickle_top(struct pickle_machine *m, u32 count, struct pickle_value ***out);
/* Puts a copy of `value` on the stack. */
MUST_CHECK enum err pickle_push_new(struct pickle_machine *m, struct pickle_value value);
/* Adds `count` items to those of `v`. */
MUST_CHECK enum err pickle_append(struct pickle_machine *m, struct pickle_value *v, struct pickle_value *const *items, u32 count);

/* Instructions. A name by two lines, or by two strings of the stack, becomes a value; */
MUST_CHECK enum err pickle_named_by_lines(struct pickle_machine *m);
MUST_CHECK enum err pickle_named_by_stack(struct pickle_machine *m);
/* a name and a tuple become what a call of it would be; */
MUST_CHECK enum err pickle_call(struct pickle_machine *m);
/* attributes of a dictionary are dropped; */
MUST_CHECK enum err pickle_build(struct pickle_machine *m);
/* and a tuple becomes a persistent id. */
MUST_CHECK enum err pickle_persistent(struct pickle_machine *m);

#endif
