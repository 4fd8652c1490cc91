/* How grammars are held. A front end writes rules as networks over bytes (struct gb); gb_finish checks them and makes the
 * constant `struct grammar`. States walk it through `struct grammar_cache`: sets of nodes (dsets, the deterministic form
 * of one rule), stacks of dsets to return to, and places (sets of dsets with their stacks), all made when first needed. */
#ifndef TERCET_TEXT_GRAMMAR_PRIV_H
#define TERCET_TEXT_GRAMMAR_PRIV_H

#include <stdatomic.h>

#include "common/arena.h"
#include "common/buf.h"
#include "text/grammar.h"

#define GRAMMAR_NONE UINT32_MAX
/* Stands in front of the text of a special token in a vocabulary; no text has it, so only grammars that name it reach
 * such a token. */
#define GRAMMAR_SPECIAL_BYTE 0xff

enum {
	GRAMMAR_NODES_MAX = 200 * 1000,
	GRAMMAR_EDGES_MAX = 600 * 1000,
	GRAMMAR_RULES_MAX = 8192,
	GRAMMAR_REPEAT_MAX = 65535,
	GRAMMAR_DEPTH_MAX = 240,      /* calls inside calls while a text is read */
	GRAMMAR_INLINE_NODES = 30000, /* a repetition of more is made of calls */
	GRAMMAR_EXPR_LEVELS = 200,    /* brackets inside brackets in a source */
};

/* ---------------------------------------------------------------- sets of code points */

struct code_range {
	u32 first;
	u32 last;
};
/* Sorted, disjoint and not adjacent once code_set_finish has run; in an arena. */
struct code_set {
	struct code_range *ranges;
	u32 count;
	u32 capacity;
};

bool code_set_add(struct arena *a, struct code_set *s, u32 first, u32 last); /* false: out of memory */
bool code_set_add_set(struct arena *a, struct code_set *s, const struct code_set *other);
void code_set_finish(struct code_set *s);
/* All code points but those of the finished `s` (and surrogates). */
bool code_set_negate(struct arena *a, struct code_set *s);

/* ---------------------------------------------------------------- expressions */

enum gexpr_kind {
	GEXPR_EMPTY,
	GEXPR_SET,    /* one code point of the set, in UTF-8 */
	GEXPR_CAT,
	GEXPR_ALT,
	GEXPR_REPEAT, /* `max` GRAMMAR_NONE: no end */
	GEXPR_CALL,
};
struct gexpr {
	enum gexpr_kind kind;
	u32 min, max; /* GEXPR_CALL: min 1 says that the rule eats a byte at least */
	u32 rule;
	struct code_set set;
	struct gexpr *first; /* children, linked by `next` */
	struct gexpr *next;
};

/* ---------------------------------------------------------------- networks being built */

enum gedge_kind { GEDGE_EMPTY, GEDGE_BYTES, GEDGE_CALL };
struct gb_edge {
	u32 from, to;
	u32 rule; /* GEDGE_CALL */
	u8 kind;
	u8 lo, hi;     /* GEDGE_BYTES */
	bool begins;   /* a code point of an expression */
};
struct grammar_rule {
	u32 start, accept;
	const char *name; /* for messages while building; NULL afterwards */
};
/* `copies` copies of `size` nodes each, one behind the other from `base` on; each eats a byte at least. Far from the end
 * one copy is as good as another. `backwards`: the text goes from high nodes to low ones, and behind the lowest `behind` more
 * copies come. */
struct grammar_repeat {
	u32 base, size, copies;
	u32 behind;
	bool backwards;
};
/* The code points of some general categories, bit i of `wanted` being utf8proc's category i. */
struct category {
	u32 wanted;
	struct code_set set;
	struct category *next;
};
/* Rules that are the same in every grammar that has them: what tokens mean inside them is remembered with the vocabulary. Each
 * is the nodes from start up to end, without calls. */
enum common_rule { COMMON_STRING, COMMON_SPACE, COMMON_INTEGER, COMMON_NUMBER, COMMON_RULES };
struct node_range {
	u32 start, end; /* equal: the grammar has no such rule */
};
/* Growing never fails at the call: `err` is set, what follows does nothing, and gb_finish answers it. */
struct gb {
	struct arena arena;
	u32 node_count;
	struct gb_edge *edges;
	u32 edge_count, edge_capacity;
	struct grammar_rule *rules;
	u32 rule_count, rule_capacity;
	struct grammar_repeat *repeats;
	u32 repeat_count, repeat_capacity;
	u32 depth_max;
	struct node_range common[COMMON_RULES];
	struct category *categories; /* of \p{...}, found before; in the arena */
	bool json; /* code points are those of a string in JSON: quotes, backslashes and controls are escaped */
	bool flat; /* no calls: repetitions are written out */
	u32 look_level; /* products inside products */
	u32 products;	/* that were begun */
	u64 looks;	/* at their edges */
	enum err err;
	struct err_msg em;
};

/* For readers of a text of `bytes`, at most which is *at. Whether `c` is next; and whether `word` is: then *at is behind it. */
bool grammar_peek(const char *text, size_t bytes, size_t at, char c);
bool grammar_take(const char *text, size_t bytes, size_t *at, const char *word);
/* `digits` hexadecimal digits at text[*at], which is then behind them; false: not so many. */
bool grammar_read_hex(const char *text, size_t bytes, size_t *at, u32 digits, u32 *out);

void gb_init(struct gb *b);
void gb_fini(struct gb *b);
/* Sets `err` if none is set. */
void gb_fail(struct gb *b, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);
u32 gb_node(struct gb *b);
void gb_empty(struct gb *b, u32 from, u32 to);
void gb_bytes(struct gb *b, u32 from, u32 to, u8 lo, u8 hi);
void gb_call(struct gb *b, u32 from, u32 to, u32 rule);
/* A rule with fresh start and accept nodes. Rule 0 is the root. `name` borrowed. */
u32 gb_rule(struct gb *b, const char *name);
/* The same, ending at `accept`, where other rules may end, too: so they share how they end. */
u32 gb_rule_to(struct gb *b, const char *name, u32 accept);
/* Tells a repetition that was written (struct grammar_repeat). */
void gb_tell_repeat(struct gb *b, struct grammar_repeat repeat);
/* Each of these continues at `from` and returns where it ends. */
u32 gb_text(struct gb *b, u32 from, const char *text, size_t bytes);
u32 gb_set(struct gb *b, u32 from, const struct code_set *s);
u32 gb_expr(struct gb *b, u32 from, const struct gexpr *e);
/* One of `count` texts, as a trie. Sorts them. */
struct gb_string {
	const char *text;
	size_t bytes;
};
u32 gb_strings(struct gb *b, u32 from, struct gb_string *strings, size_t count);
/* An expression in the syntax of GRAMMAR_REGEX; `search`: it may be found anywhere in the text. Offsets in messages
 * count from the expression's begin. */
u32 gb_regex(struct gb *b, u32 from, const char *pattern, size_t bytes, bool search);
/* The same where the text has min to max code points; max GRAMMAR_NONE: any number from min on. */
u32 gb_regex_of(struct gb *b, u32 from, const char *pattern, size_t bytes, bool search, u32 min, u32 max);
/* Whether `e` may match the empty text. */
bool gexpr_nullable(const struct gexpr *e);
/* Shared by regex and EBNF: \d, \w, \s and their negations. False: `letter` is none of them, or out of memory. */
bool code_set_class(struct arena *a, struct code_set *s, char letter);

/* ---- several expressions over one text (grammar_product.c) ---- */

enum { PRODUCT_PARTS_MAX = 60 };
struct product {
	struct gb *b;	   /* the target; it keeps failures */
	struct gb scratch; /* the parts' networks, one behind the other */
	struct {
		u32 start, end;
	} parts[PRODUCT_PARTS_MAX];
	u32 count;
	u32 *first_edge, *order; /* of the scratch, once parts are held against texts; no more parts then */
	u64 final;  /* bit i: behind a text that part i matches nothing follows */
	u64 needed; /* bit i: texts that part i cannot match any more need not be followed */
};
void product_init(struct product *p, struct gb *b);
void product_fini(struct product *p);
/* The next part: product_begin's node, networks of p->scratch without calls from it on, product_end with where it ends,
 * which returns the part's number. */
u32 product_begin(struct product *p);
u32 product_end(struct product *p, u32 end);
u32 product_regex(struct product *p, const char *pattern, size_t bytes, bool search);
u32 product_length(struct product *p, u32 min, u32 max); /* in code points; max GRAMMAR_NONE: any number */
/* Where a text goes on of which the parts of `matching` match; GRAMMAR_NONE: it may not end so. */
typedef u32 (*product_exit_fn)(void *ctx, u64 matching);
/* Writes them all at once as a deterministic network from `from` on, which leaves through `exit`. */
void product_put(struct product *p, u32 from, product_exit_fn exit, void *ctx);
/* The parts that match a text. */
u64 product_match(struct product *p, const char *text, size_t bytes);

/* Checks rules and makes `*out`, with one reference. The errors of grammar_compile. */
MUST_CHECK enum err gb_finish(struct gb *b, struct grammar **out, struct err_msg *em);

/* Front ends: write rule 0. Failures go to `b`. */
void grammar_read_choice(struct gb *b, const char *source, size_t bytes);
void grammar_read_schema(struct gb *b, u32 flags, const char *source, size_t bytes);
void grammar_read_object(struct gb *b, u32 flags);
void grammar_read_ebnf(struct gb *b, const char *source, size_t bytes);
void grammar_read_parts(struct gb *b, u32 flags, const char *source, size_t bytes);

/* ---------------------------------------------------------------- the constant form */

struct grammar_edge {
	u32 to;
	u32 rule; /* GEDGE_CALL */
	u8 kind;
	u8 lo, hi; /* GEDGE_BYTES */
};
struct grammar {
	_Atomic u32 references;
	u32 node_count;
	u32 *first_edge; /* [node_count + 1] */
	struct grammar_edge *edges;
	bool *accepts; /* [node_count]: a rule is over here */
	u8 *height; /* [node_count]: calls inside calls that the way to the rule's end takes at least; above depth_max: no way */
	u32 rule_count;
	struct grammar_rule *rules;
	u32 repeat_count;
	struct grammar_repeat *repeats;
	u32 depth_max;
	struct node_range common[COMMON_RULES];
	u32 class_count;
	u8 class_of[256]; /* bytes that no edge tells apart */
	u8 class_byte[256];
	struct grammar_cache *caches; /* one a vocabulary, while states use them */
};

/* ---------------------------------------------------------------- vocabularies */

/* A node of the trie, in preorder: its subtree is [index + 1, skip). */
struct trie_node {
	u32 skip;
	u32 token; /* the first one with these bytes, or GRAMMAR_NONE; more of them: grammar_vocab.same */
	u16 depth;
	u8 byte;
	bool same; /* more than one token has these bytes */
};
/* What a dset of one rule says about tokens whatever the stack: those that end inside (or with) the rule, and the nodes of the trie
 * at which the rule is over and more bytes follow. */
struct local_mask {
	u32 *bits; /* mask words; NULL: the list */
	u32 *tokens;
	u32 token_count;
	u32 *pops;
	u32 pop_count;
	u16 need;
	bool borrowed; /* from the vocabulary */
};
/* The local mask of a dset of a common rule; its nodes count from the rule's start. */
struct common_local {
	u32 rule, node_count;
	u32 *nodes;
	struct local_mask mask;
};
struct grammar_vocab {
	u32 size;
	u32 *eos;
	u32 eos_count;
	struct trie_node *nodes; /* [0] is the root, of depth 0 */
	u32 node_count;
	u32 *same;  /* [size]: the next token of the same bytes, or GRAMMAR_NONE */
	u32 *first; /* [size + 1]: where a token's bytes begin; none: not allowed */
	char *pool;
	u32 token_bytes_max;
	u8 *deep;        /* [node]: bytes of the longest token of its subtree, at most 255 */
	u32 *short_bits; /* mask of the tokens of at most TOKEN_SHORT bytes */
	struct common_local *common;
	u32 common_count, common_capacity;
	size_t common_bytes;
	struct grammar_cache *caches; /* of all grammars */
	size_t learnt_bytes;          /* theirs together, as far as they have told */
	size_t learnt_bytes_max;      /* beyond that all of them forget */
	size_t learnt_bytes_kept;     /* what they had when they had forgotten all they could */
};

/* ---------------------------------------------------------------- caches */

enum {
	/* In about nanoseconds of a Zen 5. */
	EFFORT_NODE = 24,  /* a node that a closure looks at, */
	EFFORT_TARGET = 7, /* or a step over a byte */
	EFFORT_CONFIG = 100,
	EFFORT_TRIE = 6, /* a node of the trie of tokens */
};
enum {
	PLACE_UNKNOWN = 0,
	PLACE_DEAD = 1,
	STACK_BOTTOM = 0,
	TOKEN_SHORT = 16,
};
/* How far from the ends of repetitions places are taken for one: as far as any token reaches, or any short one. */
enum alias_kind { ALIAS_ANY, ALIAS_SHORT, ALIAS_KINDS };
struct dset_call {
	u32 rule;
	u32 back; /* the dset to go on at */
};
struct dset {
	u32 nodes_at, node_count; /* in cache->pool: sorted */
	u32 calls_at, call_count; /* in cache->calls; GRAMMAR_NONE: not looked up */
	u32 local;                /* index into cache->locals, or GRAMMAR_NONE */
	u32 alias[ALIAS_KINDS];   /* the same far from the ends of repetitions; GRAMMAR_NONE: not looked up */
	u64 key; /* of what it is, equal in every process: what is in order by it does not depend on history */
	u8 height;
	bool accepts;
	bool eats;  /* has edges over bytes */
	bool calls; /* has edges that call */
};
struct stack_cell {
	u32 back; /* dset */
	u32 below;
	u32 depth;
	u32 alias[ALIAS_KINDS];
	u64 key;
};
struct config {
	u32 dset;
	u32 stack;
};
struct place {
	u32 configs_at, config_count; /* in cache->configs: sorted */
	u32 mask;                     /* index into cache->masks, or GRAMMAR_NONE */
	u16 need;                     /* the depth that making it looked for */
	bool ends;                    /* the bottom was reached: the text is whole, or (in local walks) a rule is over */
};
struct intern {
	u32 *slots; /* index + 1; 0: empty */
	u32 mask;
	u32 count;
};
struct grammar_cache {
	struct grammar_cache *next;          /* of the same grammar */
	struct grammar_cache *next_in_vocab;
	size_t told_bytes;                   /* that are in vocab->learnt_bytes */
	struct grammar *grammar;
	struct grammar_vocab *vocab;
	struct grammar_state *states; /* all that use it */

	struct dset *dsets;
	u32 dset_count, dset_capacity;
	u32 *dset_next; /* [dset][class]: dset; 0: unknown, 1: none */
	struct intern dset_table;
	struct u32_vec pool;
	struct dset_call *calls;
	u32 call_count, call_capacity;

	struct stack_cell *stacks;
	u32 stack_count, stack_capacity;
	struct intern stack_table;

	struct place *places;
	u32 place_count, place_capacity;
	u32 *place_next; /* [place][class] */
	struct intern place_table;
	struct config *configs;
	u32 config_count, config_capacity;
	u32 start; /* place */

	struct local_mask *locals;
	u32 local_count, local_capacity;
	struct local_mask *masks; /* whole masks of places */
	u32 mask_count, mask_capacity;
	size_t mask_bytes; /* of locals and masks */
	u64 effort;	   /* what all walks took so far, in about nanoseconds; counted, so that every process gets the same */
	u64 effort_max;	   /* beyond that steps that are not known yet are refused */
	bool walks_are_large; /* a walk over all tokens from a place of many configurations found no room */

	u32 *seen; /* [node]: stamp of the last closure that saw it */
	u32 stamp;
	struct u32_vec nodes, pending, lists; /* scratch of closures over nodes and of their steps */
	struct config *work;        /* scratch of a closure over configurations */
	u32 work_count, work_capacity;
	u16 work_need;
	bool work_ends;
	u32 *rule_start; /* [rule]: dset; 0: not made */
};

/* Whether a text can begin: ERR_TOO_LONG where the grammar is too ambiguous for that; ERR_NO_MEMORY. */
MUST_CHECK enum err cache_check(struct grammar *g);
/* The cache of `g` for `v`, made where there is none, with the place at the start. ERR_NO_MEMORY. */
MUST_CHECK enum err cache_acquire(struct grammar_cache **out, struct grammar *g, struct grammar_vocab *v);
/* Ends it where no state uses it any more. */
void cache_release(struct grammar_cache *c);
/* The place behind one byte: PLACE_DEAD where it may not come. ERR_TOO_LONG: the cache is full; ERR_TIMEOUT: c->effort_max is
 * reached; ERR_NO_MEMORY. These, and that nothing is changed then, are the errors of all below. */
MUST_CHECK enum err cache_make_step(struct grammar_cache *c, u32 place, u8 byte, u32 *next);
static inline enum err cache_step(struct grammar_cache *c, u32 place, u8 byte, u32 *next)
{
	*next = c->place_next[(size_t)place * c->grammar->class_count + c->grammar->class_of[byte]];
	return *next != PLACE_UNKNOWN ? ERR_OK : cache_make_step(c, place, byte, next);
}
/* The place where a frame is over and what is below it goes on. `stack` is not the bottom. */
MUST_CHECK enum err cache_pop(struct grammar_cache *c, u32 stack, u32 *place);
/* The place of this one configuration alone. */
MUST_CHECK enum err cache_single(struct grammar_cache *c, struct config config, u32 *place);
/* The same place far from the ends of repetitions: the masks of both are equal, for tokens of the kind. */
MUST_CHECK enum err cache_alias(struct grammar_cache *c, u32 place, enum alias_kind kind, u32 *alias);
/* Forgets everything but where the states are; places have other numbers then. ERR_NO_MEMORY: nothing changed. */
MUST_CHECK enum err cache_flush(struct grammar_cache *c);
/* Time to forget, at the next occasion. */
bool cache_is_large(const struct grammar_cache *c);
/* Tells the vocabulary how much memory the cache takes; all caches of the vocabulary forget where that is too much for
 * them together. */
void cache_tell_bytes(struct grammar_cache *c);
/* Forgets masks. */
void cache_drop_masks(struct grammar_cache *c);

/* The parts of cache_*, by file. grammar_dset.c: */
void intern_fini(struct intern *t);
typedef bool (*intern_equal_fn)(const struct grammar_cache *c, u32 index, const void *key);
/* The index of `key`, or GRAMMAR_NONE. */
u32 intern_find(const struct intern *t, const struct grammar_cache *c, u32 hash, intern_equal_fn equal, const void *key);
/* Room for one more; `hash_of` tells the hashes of what is there. False: out of memory. */
bool intern_reserve(struct intern *t, const struct grammar_cache *c, u32 (*hash_of)(const struct grammar_cache *c, u32 index));
void intern_put(struct intern *t, u32 hash, u32 index);
bool cache_grow(void *array, u32 count, u32 *capacity, size_t size);
/* The dset of c->nodes (not sorted, not closed). 1: empty. */
MUST_CHECK enum err dset_of_nodes(struct grammar_cache *c, u32 *dset);
MUST_CHECK enum err dset_step(struct grammar_cache *c, u32 dset, u32 class_index, u32 *next);
MUST_CHECK enum err dset_find_calls(struct grammar_cache *c, u32 dset);
MUST_CHECK enum err dset_of_rule(struct grammar_cache *c, u32 rule, u32 *dset);
MUST_CHECK enum err dset_alias(struct grammar_cache *c, u32 dset, enum alias_kind kind, u32 *alias);

struct grammar_state {
	struct grammar_cache *cache;
	struct grammar_state *next, *prev; /* in cache->states */
	u32 place;
	bool ended; /* behind an eos */
	u64 debt;   /* effort that its tokens have not paid for yet */
};

void local_mask_fini(struct local_mask *l);
/* Writes the mask of `place` without the eos. */
MUST_CHECK enum err mask_write(struct grammar_cache *c, u32 place, u32 *bits);

#endif
