/* The template language: source -> nodes (jinja_lex, jinja_parse*) -> text (jinja_eval, jinja_exec, ...). */
#ifndef TERCET_TEXT_JINJA_PRIV_H
#define TERCET_TEXT_JINJA_PRIV_H

#include "common/arena.h"
#include "common/buf.h"
#include "common/err.h"
#include "text/jinja_value_priv.h"

enum {
	JINJA_SOURCE_MAX = 1 << 20,      /* bytes of a template */
	JINJA_DEPTH_MAX = 400,           /* nested expressions, blocks, calls and data */
	JINJA_STEP_BYTES = 16,           /* of text that one step may read or write */
	JINJA_RANGE_MAX = 100 * 1000,    /* as Jinja's sandbox has it */
	JINJA_ARGS_MAX = 8,              /* named parameters of a builtin */
};

/* What one rendering may take. Steps are evaluated nodes, items walked over, and pieces of text read or written: time
 * in all. */
struct jinja_limits {
	u64 steps;
	size_t output; /* bytes of the rendering, and of any one string */
	size_t memory; /* bytes of all values */
};
/* Templates of the model or the operator, and those of requests. */
#define JINJA_LIMITS ((struct jinja_limits){.steps = 20u << 20, .output = (size_t)64 << 20, .memory = (size_t)512 << 20})
#define JINJA_REQUEST_LIMITS ((struct jinja_limits){.steps = 4u << 20, .output = (size_t)8 << 20, .memory = (size_t)64 << 20})

/* ---------------------------------------------------------------- tokens */

enum tok_type {
	TOK_EOF,
	TOK_DATA,
	TOK_VARIABLE_BEGIN,
	TOK_VARIABLE_END,
	TOK_BLOCK_BEGIN,
	TOK_BLOCK_END,
	TOK_NAME,
	TOK_STRING,
	TOK_INTEGER,
	TOK_FLOAT,
	/* operators; the comparisons are together */
	TOK_ADD,
	TOK_SUB,
	TOK_MUL,
	TOK_DIV,
	TOK_FLOORDIV,
	TOK_MOD,
	TOK_POW,
	TOK_TILDE,
	TOK_EQ,
	TOK_NE,
	TOK_LT,
	TOK_LTEQ,
	TOK_GT,
	TOK_GTEQ,
	TOK_IN,    /* made by the parser */
	TOK_NOTIN,
	TOK_LPAREN,
	TOK_RPAREN,
	TOK_LBRACKET,
	TOK_RBRACKET,
	TOK_LBRACE,
	TOK_RBRACE,
	TOK_DOT,
	TOK_COMMA,
	TOK_COLON,
	TOK_PIPE,
	TOK_ASSIGN,
	TOK_SEMICOLON,
};

struct token_pos {
	u32 line;
	u32 column;
};
/* `text` is unescaped for strings, NUL-terminated, in the template's arena. */
struct tok {
	enum tok_type type;
	struct token_pos pos;
	const char *text;
	size_t bytes;
	int64_t integer;
	double number;
};
struct tok_list {
	struct tok *items; /* ends in TOK_EOF; heap */
	size_t count;
	size_t room;
};

/* Newlines are normalised and one at the end dropped, as Jinja does. ERR_FORMAT with line and column. */
MUST_CHECK enum err jinja_lex(struct tok_list *out, struct arena *arena, const char *source, size_t bytes,
			      struct err_msg *em);
/* Reads the escapes of a string literal into `out` (jinja_lex_string.c). */
MUST_CHECK enum err jinja_unescape(struct buf *out, const char *text, size_t bytes, struct token_pos pos,
				   struct err_msg *em);

/* ---------------------------------------------------------------- nodes */

enum node_kind {
	/* expressions */
	N_CONST,
	N_NAME,
	N_LIST,
	N_TUPLE,
	N_DICT,    /* items: key, value, key, value ... */
	N_COND,    /* a if b else c */
	N_OR,
	N_AND,
	N_NOT,
	N_COMPARE, /* a, then items with their op */
	N_BINARY,
	N_NEG,
	N_POS,
	N_CONCAT,
	N_GETATTR,
	N_GETITEM,
	N_SLICE,   /* a[items[0]:items[1]:items[2]], NULL for absent */
	N_CALL,
	N_FILTER,
	N_TEST,
	N_NSREF,   /* target of set ns.attr */
	/* statements */
	N_TEXT,
	N_PRINT,
	N_FOR,
	N_IF,
	N_SET,
	N_SETBLOCK,
	N_WITH,
	N_MACRO,
	N_CALLBLOCK,
	N_FILTERBLOCK,
	N_SCOPE,   /* a block of its own scope: generation, block, autoescape */
	N_BREAK,
	N_CONTINUE,
	NODE_KIND_COUNT
};

struct node_list {
	struct node **items;
	u32 count;
	u32 room;
};
/* Arguments of a call, filter or test. */
struct call_args {
	struct node_list positional;
	struct node_list named;  /* values; names beside them */
	const char **names;
	struct node *star;       /* *args */
	struct node *star_star;  /* **kwargs */
};
struct macro_def {
	const char *name;        /* interned; NULL for a call block's body */
	const char **params;     /* interned */
	u32 param_count;
	u32 default_count;       /* of the last ones */
	struct node **defaults;
	bool uses_caller;
	bool uses_varargs;
	bool uses_kwargs;
	bool has_caller_param;
	const char **unset;      /* as in nodes */
	struct node_list body;
};
/* One shape for all kinds; which fields count, the parser's functions say. */
struct node {
	u8 kind;
	u8 op;
	bool negated;            /* tests: is not */
	bool recursive;
	bool elif;               /* an if that is the elif of the one around it */
	struct token_pos pos;
	const char *name;        /* interned: names, attributes, filters, tests */
	struct jv value;
	struct node *a, *b, *c;
	struct node_list items;
	struct node_list body;
	struct node_list other;  /* else */
	struct call_args *args;
	struct macro_def *macro;
	const struct builtin *builtin; /* filters and tests; NULL: unknown, an error when reached */
	const char **unset;      /* names that start out unset in the node's scope, NULL behind the last; NULL: none */
	const char **unset_other; /* the same for a loop's else */
};

/* A parsed template; constant afterwards, shared by threads. */
struct jinja_template {
	struct arena arena;
	struct node_list body;
	const char **unset;      /* as in nodes */
	const char **names;      /* every name of the source, once; sorted by nothing */
	u32 name_count;
	u32 name_room;
};

MUST_CHECK enum err jinja_parse(struct jinja_template *t, const char *source, size_t bytes, struct err_msg *em);
void jinja_template_fini(struct jinja_template *t);
/* The interned name; NULL when the template does not mention it. */
const char *jinja_name(const struct jinja_template *t, const char *name, size_t bytes);

/* ---------------------------------------------------------------- rendering */

struct jvar {
	const char *name; /* interned */
	struct jv value;
};
struct jscope {
	struct jscope *parent;
	struct jvar *vars;
	u32 count;
	u32 room;
};
struct jloop {
	struct jv over;    /* list of what is walked */
	size_t index0;
	size_t count;
	u32 depth0;
	const struct node *node;  /* recursive loops: what to run again */
	struct jscope *scope;     /* where it was started */
	struct jv changed; /* arguments of the last loop.changed() */
	const char *error; /* raised behind the last item: what the iterable or the loop's test ended with; NULL: none */
};
struct jmacro {
	const struct macro_def *def;
	struct jscope *scope; /* where it was defined */
	struct token_pos pos;
};

/* What a call got, after * and ** were spread. */
struct jargs {
	struct jv *positional;
	size_t count;
	struct jentry *named; /* keys are strings */
	size_t named_count;
};

/* A filter, test, method or global. `params` names the parameters behind the value ("old,new,count"); `required` of
 * them have to be given. A trailing "*" in `params` takes any further arguments: read them from `all`. */
typedef bool (*builtin_fn)(struct jinja *j, struct jv self, const struct jv *args, const struct jargs *all,
			   struct jv *out);
struct builtin {
	const char *name;
	builtin_fn run;
	const char *params;
	u8 required;
};

/* One rendering. */
struct jinja {
	const struct jinja_template *template;
	struct arena arena;
	struct jscope *scope;
	struct buf *out;         /* where statements write to */
	const struct node *at;   /* what is being evaluated, for error positions */
	struct jinja_limits limits;
	u64 steps;
	u32 depth;
	int64_t now_s;
	bool failed;
	bool raised;             /* by raise_exception: the message is the template's own */
	bool limited;            /* a limit was reached: nothing goes on behind it */
	struct err_msg error;
};

enum jflow { JFLOW_NEXT, JFLOW_BREAK, JFLOW_CONTINUE, JFLOW_FAIL };

/* Records an error at the current node and answers false. */
bool jinja_fail(struct jinja *j, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* "out of memory" or the limit that was reached. */
bool jinja_fail_memory(struct jinja *j);
/* Counts a step, and one more for every few bytes of text that are read or written. False after recording the error at
 * the limit. */
bool jinja_charge(struct jinja *j, size_t bytes);
/* Takes the recorded error back, for raising it later with jinja_raise_again: Python meets it only when a walk gets
 * there. False: it cannot be put off. */
bool jinja_put_off_error(struct jinja *j, const char **out);
bool jinja_raise_again(struct jinja *j, const char *error);
/* Using an undefined value. */
bool jinja_fail_undefined(struct jinja *j, struct jv v);
/* Deeper by one; false (and the error) at the limit. Leave with j->depth--. */
bool jinja_enter(struct jinja *j);
void *jinja_alloc(struct jinja *j, size_t bytes); /* NULL after recording the error */
char *jinja_printf(struct jinja *j, const char *fmt, ...) PRINTF_LIKE(2, 3);

bool jinja_eval(struct jinja *j, const struct node *n, struct jv *out);
enum jflow jinja_exec(struct jinja *j, const struct node_list *body);
/* Runs a body into a string. */
enum jflow jinja_capture(struct jinja *j, const struct node_list *body, struct jv *out);
bool jinja_assign(struct jinja *j, const struct node *target, struct jv value);
/* The loop body over another iterable, as loop(...) does. */
bool jinja_recurse(struct jinja *j, struct jloop *loop, struct jv over, struct jv *out);

/* A scope where the names in `unset` (NULL: none) are undefined until they are assigned. NULL on error; does not enter
 * it. */
struct jscope *jinja_scope_push(struct jinja *j, struct jscope *parent, const char *const *unset);
/* Forgets everything in the scope, back to how it began. */
bool jinja_scope_reset(struct jinja *j, struct jscope *s, const char *const *unset);
bool jinja_scope_set(struct jinja *j, struct jscope *s, const char *name, struct jv value);
bool jinja_lookup(struct jinja *j, const char *name, struct jv *out);

/* Calls. */
bool jinja_eval_args(struct jinja *j, const struct call_args *args, struct jargs *out);
bool jinja_call(struct jinja *j, struct jv callee, struct jargs *args, struct jv *out);
bool jinja_call_macro(struct jinja *j, const struct jmacro *m, struct jargs *args, struct jv *out);
bool jinja_call_builtin(struct jinja *j, const struct builtin *b, struct jv self, struct jargs *args, struct jv *out);

/* Tables. NULL when there is no such name. */
const struct builtin *jinja_filter_find(const char *name);
const struct builtin *jinja_test_find(const char *name);
const struct builtin *jinja_global_find(const char *name);
const struct builtin *jinja_method_find(enum jv_type type, const char *name);
extern const struct builtin jinja_string_filters[], jinja_sequence_filters[], jinja_value_filters[];
extern const struct builtin jinja_markup_filters[], jinja_wrap_filters[], jinja_pprint_filters[];
extern const struct builtin jinja_string_methods[], jinja_split_methods[];

/* Argument helpers: false after recording a TypeError. A missing argument takes the fallback. */
bool jinja_arg_int(struct jinja *j, struct jv v, int64_t fallback, int64_t *out);
bool jinja_arg_bool(struct jv v, bool fallback);
bool jinja_arg_string(struct jinja *j, struct jv v, const char *what, struct jstr **out);

#endif
