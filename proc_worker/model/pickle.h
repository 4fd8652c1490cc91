/* Python's pickles (protocols 2 to 5; docs.python.org/3/library/pickletools) as data: what the pickle would build is described, and nothing
 * of it is called, imported or run. Only what the dictionaries of weights that PyTorch saves consist of. */
#ifndef TERCET_PROC_WORKER_MODEL_PICKLE_H
#define TERCET_PROC_WORKER_MODEL_PICKLE_H

#include "common/arena.h"
#include "common/err.h"
#include "common/types.h"

enum pickle_kind {
	PICKLE_NONE,
	PICKLE_BOOL,   /* `integer` */
	PICKLE_INT,    /* `integer` */
	PICKLE_LONG,   /* more than 64 bits: `text`, little-endian, two's complement */
	PICKLE_FLOAT,  /* its value is not kept */
	PICKLE_STRING, /* `text` */
	PICKLE_BYTES,  /* `text` */
	PICKLE_TUPLE,  /* `items` */
	PICKLE_LIST,   /* `items` */
	PICKLE_DICT,   /* `items`: key, value, key, value ... */
	PICKLE_GLOBAL, /* `global` */
	PICKLE_CALL,   /* `global` would be called with `items` */
	PICKLE_PERSISTENT, /* `items`: the tuple by which something is meant that lies outside the pickle */
	PICKLE_MARK,	   /* none that is handed out */
};

enum pickle_use {
	PICKLE_NAMED,	/* may only be mentioned */
	PICKLE_CALLED,	/* may be called */
	PICKLE_MAPPING, /* may be called without arguments or with a list of pairs, and makes a dictionary; attributes that it is given are passed over */
};

/* A class or function that a pickle may name. */
struct pickle_global {
	const char *module, *name;
	enum pickle_use use;
	u32 id; /* the caller's */
};

struct pickle_value {
	enum pickle_kind kind;
	u32 count, capacity; /* of items, or bytes of text */
	union {
		i64 integer;
		const char *text; /* in the file, without a NUL behind it */
		const struct pickle_value **items;
	};
	union {
		const struct pickle_global *global;
		const struct pickle_value *before; /* of a PICKLE_PERSISTENT: the one in front of it in the pickle; NULL: there is none */
	};
};

struct pickle {
	const struct pickle_value *value;
	const struct pickle_value *persistent; /* the last one; NULL: there is none */
	u64 bytes;			       /* of the file that the pickle takes */
};

/* Reads the pickle that `data` begins with. ERR_FORMAT: it is none, or contradicts itself; says at which byte; ERR_UNSUPPORTED: it names
 * something other than `globals`, or does what dictionaries of weights do not; ERR_TOO_LONG: it needs more memory than any of them;
 * ERR_NO_MEMORY. Values lie in the arena, text in `data`; both must outlive them. Values may be part of themselves: do not descend without a bound. */
MUST_CHECK enum err pickle_read(struct pickle *p, struct arena *arena, const void *data, u64 bytes, const struct pickle_global *globals,
				u32 global_count, struct err_msg *em);

/* "a tuple", for messages. */
const char *pickle_kind_name(enum pickle_kind kind);
/* Whether it is a string of these bytes. */
bool pickle_is_string(const struct pickle_value *v, const char *text);
/* Text of a file for messages: cut, ended by NUL, without control characters or what is not ASCII. Returns `out`. */
const char *pickle_print_text(char *out, size_t bytes, const char *text, u64 text_bytes);

#endif
