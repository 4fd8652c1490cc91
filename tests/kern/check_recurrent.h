/* Rows of a step and their states, for the checks of ops that keep one of each sequence. */
#ifndef TERCET_TESTS_KERN_CHECK_RECURRENT_H
#define TERCET_TESTS_KERN_CHECK_RECURRENT_H

#include "tests/kern/check.h"

enum {
	CHECK_ROWS_MOST = 8,
	CHECK_ROWS_PATTERNS = 6,
	CHECK_LOOSE = 3, /* values behind each of a token's arrays that none has */
};

/* These ops need nothing in the scratch. */
extern const struct kern_limits check_recurrent_limits;

/* Slots are permuted, with some between them that are nobody's; every other row begins with what is a NaN in its state. */
struct check_rows {
	u32 query_start[CHECK_ROWS_MOST + 1], context[CHECK_ROWS_MOST], slots[CHECK_ROWS_MOST];
	u32 count, tokens;
	size_t size, stride, all; /* floats of a state, from one to the next, and of all */
	float *before;		  /* [all] the states that a run begins with */
};
void check_rows_make(struct check *c, struct check_rows *r, u32 pattern, size_t size);
struct kern_state check_rows_state(const struct check_rows *r, float *data);
/* A state to run on. */
float *check_rows_copy(struct check *c, const struct check_rows *r);
bool check_rows_begins(const struct check_rows *r, u32 row);
/* NULL, or that memory between states, or of slots that no row with tokens has, is not what it was. */
const char *check_rows_kept(const struct check_rows *r, const float *data);

/* Rows [0, tokens) of `stride` floats: NULL, or that something but columns [first, first + width) differs. */
const char *check_columns_kept(const float *before, const float *after, u32 tokens, u32 stride, size_t first, size_t width);

/* Runs the op on the rows of `state`; NULL, or what is wrong. */
typedef const char *(*check_piece_fn)(void *arg, const struct kern_state *state);
/* The tokens of each row in several calls of that row alone. */
const char *check_rows_pieces(struct check *c, const struct check_rows *r, float *data, check_piece_fn run, void *arg);

void check_recurrence(struct check *c, u32 target);
void check_selective_scan(struct check *c, u32 target);
void check_lru(struct check *c, u32 target);

#endif
