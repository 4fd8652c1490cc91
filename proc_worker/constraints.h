/* Rows whose output a grammar constrains: compiles the grammars, follows every row's text and says which tokens may come
 * next. All of that is done by one thread of its own, beside the forward where there is one:
 *
 *     constraints_begin(c, b)      after batch_state_apply, when the tokens before this step's are known
 *     ... forward ...
 *     constraints_finish(c)        before sampling; ends what was begun
 *
 * Nothing of a row is ever sent or kept but in the batch: a row that the thread has not seen, because it is new, preempted,
 * copied or survived a crash, is followed from its first output on. */
#ifndef TERCET_PROC_WORKER_CONSTRAINTS_H
#define TERCET_PROC_WORKER_CONSTRAINTS_H

#include "proc_worker/batch_state.h"

enum { CONSTRAINT_FAILURES_MAX = 8 };

struct constraints_config {
	const char *model_dir; /* of the tokenizer; read while constraints_create's thread loads */
	u32 rows_max, vocab;
	u32 samples_max; /* of a step; 0: rows_max */
	const u32 *eos_ids; /* borrowed */
	u32 eos_count;
};

/* A row that cannot go on: it is sampled without a grammar from then on, and told once. */
struct constraint_failure {
	u64 seq;
	struct err_msg text;
};

/* Of one step; lives until the next begin. */
struct constraints_step {
	const u32 *const *allowed; /* [sample_count] as struct kern_logits_row takes them; NULL: the row is free, or, behind
				      drafts of a row that is not, they are none that its grammar allows */
	const struct constraint_failure *failures;
	u32 failure_count;
	u32 masks, compiled; /* how many were made */
	u64 work_ns;	     /* of the thread */
};

struct constraints;

/* Starts the thread, which loads tokenizer and vocabulary; returns at once. ERR_NO_MEMORY. The caller owns `*out`. */
MUST_CHECK enum err constraints_create(struct constraints **out, const struct constraints_config *config,
				       struct err_msg *em);
void constraints_destroy(struct constraints **c); /* NULL accepted */
/* Waits until all is loaded. Why no row can be constrained; "" when they can. Borrowed. */
const char *constraints_problem(struct constraints *c);

/* Of an applied step; `b` is only read, and must not change until constraints_finish. At once done where no row has a
 * grammar. Never blocks. */
void constraints_begin(struct constraints *c, const struct batch_state *b);
/* Waits for the thread. NULL where no row that runs has a grammar. */
const struct constraints_step *constraints_finish(struct constraints *c);

#endif
