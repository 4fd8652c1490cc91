/* Reads pickles as data: a stack machine that puts values together and runs nothing. Runs in the worker while it loads. Owns its stack
 * and its memo. Never trusts a length, and never resolves a name but by the caller's table. */
#include "proc_worker/model/pickle_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	STACK_MAX = 4 * 1024 * 1024,
	MEMO_MAX = 16 * 1024 * 1024,
	PROTOCOL_MAX = 5,
	LONG_BYTES = 8, /* of integers that fit i64 */
};
static const size_t MEMORY_MAX = (size_t)1 << 30;

const char *pickle_kind_name(enum pickle_kind kind)
{
	static const char *const names[] = {"None", "a truth value", "an integer", "a large integer", "a float", "a string", "bytes",
					    "a tuple", "a list", "a dictionary", "a class or function", "a call", "a persistent id", "a mark"};

	return names[kind];
}

bool pickle_is_string(const struct pickle_value *v, const char *text)
{
	return v->kind == PICKLE_STRING && v->count == strlen(text) && !memcmp(v->text, text, v->count);
}

const char *pickle_print_text(char *out, size_t bytes, const char *text, u64 text_bytes)
{
	size_t n = text_bytes < bytes - 1 ? (size_t)text_bytes : bytes - 1;

	for (size_t i = 0; i < n; i++)
		out[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
	out[n] = 0;
	return out;
}

/* ---------------------------------------------------------------- bytes */

static enum err truncated(struct pickle_machine *m)
{
	return err_set(m->em, ERR_FORMAT, "truncated: it ends at byte %llu, inside an instruction or before the last one",
		       (unsigned long long)(m->end - m->data));
}

/* The next `bytes` bytes stay where they are. */
static enum err take(struct pickle_machine *m, u64 bytes, const u8 **out)
{
	*out = m->at;
	if (bytes > (u64)(m->end - m->at))
		return truncated(m);
	m->at += bytes;
	return ERR_OK;
}

/* A number of 1 to 8 bytes without a sign. */
static enum err take_number(struct pickle_machine *m, u32 bytes, u64 *out)
{
	const u8 *p;
	enum err e = take(m, bytes, &p);

	*out = 0;
	for (u32 i = 0; !e && i < bytes; i++)
		*out |= (u64)p[i] << 8 * i;
	return e;
}

/* Text up to the end of the line. */
enum err pickle_take_line(struct pickle_machine *m, const char **text, u32 *bytes)
{
	const u8 *end = memchr(m->at, '\n', (size_t)(m->end - m->at));

	*text = NULL;
	*bytes = 0;
	if (!end)
		return truncated(m);
	*text = (const char *)m->at;
	*bytes = end - m->at > UINT32_MAX ? UINT32_MAX : (u32)(end - m->at);
	m->at = end + 1;
	return ERR_OK;
}

/* ---------------------------------------------------------------- values */

static enum err no_memory(struct pickle_machine *m)
{
	if (m->arena->limit_bytes && m->arena->used_bytes > m->arena->limit_bytes / 2)
		return err_set(m->em, ERR_TOO_LONG, "its values take more than %zu bytes", m->arena->limit_bytes);
	return err_set(m->em, ERR_NO_MEMORY, "out of memory");
}

static enum err push(struct pickle_machine *m, struct pickle_value *v)
{
	if (m->depth == m->stack_capacity) {
		u32 capacity = m->stack_capacity ? 2 * m->stack_capacity : 256;
		if (capacity > STACK_MAX)
			return err_set(m->em, ERR_TOO_LONG, "more than %d values on its stack", STACK_MAX);
		struct pickle_value **grown = realloc(m->stack, capacity * sizeof(*grown));
		if (!grown)
			return err_set(m->em, ERR_NO_MEMORY, "out of memory");
		m->stack = grown;
		m->stack_capacity = capacity;
	}
	m->stack[m->depth++] = v;
	return ERR_OK;
}

enum err pickle_push_new(struct pickle_machine *m, struct pickle_value value)
{
	struct pickle_value *v = arena_alloc(m->arena, sizeof(*v));

	if (!v)
		return no_memory(m);
	*v = value;
	return push(m, v);
}

static enum err push_int(struct pickle_machine *m, enum pickle_kind kind, i64 integer)
{
	return pickle_push_new(m, (struct pickle_value){.kind = kind, .integer = integer});
}

/* Text behind its length, of so many bytes. */
static enum err push_text(struct pickle_machine *m, enum pickle_kind kind, u32 length_bytes)
{
	const u8 *text = NULL;
	u64 bytes;

	enum err e = take_number(m, length_bytes, &bytes);
	if (!e)
		e = take(m, bytes, &text);
	if (!e && bytes > UINT32_MAX)
		e = err_set(m->em, ERR_TOO_LONG, "a text of %llu bytes", (unsigned long long)bytes);
	return e ? e : pickle_push_new(m, (struct pickle_value){.kind = kind, .count = (u32)bytes, .text = (const char *)text});
}

static enum err push_long(struct pickle_machine *m, u32 length_bytes)
{
	const u8 *p = NULL;
	u64 bytes, v = 0;

	enum err e = take_number(m, length_bytes, &bytes);
	if (!e)
		e = take(m, bytes, &p);
	if (e)
		return e;
	if (bytes > LONG_BYTES)
		return bytes > UINT32_MAX ? err_set(m->em, ERR_TOO_LONG, "an integer of %llu bytes", (unsigned long long)bytes)
					  : pickle_push_new(m, (struct pickle_value){.kind = PICKLE_LONG, .count = (u32)bytes, .text = (const char *)p});
	for (u32 i = 0; i < bytes; i++)
		v |= (u64)p[i] << 8 * i;
	if (bytes > 0 && bytes < LONG_BYTES && p[bytes - 1] & 0x80)
		v |= ~(u64)0 << 8 * bytes;
	return push_int(m, PICKLE_INT, (i64)v);
}

/* The last `count` values of the stack. */
enum err pickle_top(struct pickle_machine *m, u32 count, struct pickle_value ***out)
{
	*out = m->stack;
	if (count > m->depth)
		return err_set(m->em, ERR_FORMAT, "it takes more from its stack than there is");
	*out += m->depth - count;
	for (u32 i = 0; i < count; i++)
		if ((*out)[i]->kind == PICKLE_MARK)
			return err_set(m->em, ERR_FORMAT, "it takes a mark for a value");
	return ERR_OK;
}

/* How many values lie behind the last mark. */
static enum err count_to_mark(struct pickle_machine *m, u32 *count)
{
	for (*count = 0; *count < m->depth; (*count)++)
		if (m->stack[m->depth - 1 - *count]->kind == PICKLE_MARK)
			return ERR_OK;
	return err_set(m->em, ERR_FORMAT, "it goes back to a mark that is not there");
}

enum err pickle_append(struct pickle_machine *m, struct pickle_value *v, struct pickle_value *const *items, u32 count)
{
	if (count > v->capacity - v->count) {
		u64 needed = (u64)v->count + count, capacity = 2 * (u64)v->capacity > needed ? 2 * (u64)v->capacity : needed;
		if (capacity > UINT32_MAX)
			return err_set(m->em, ERR_TOO_LONG, "more than %u items", UINT32_MAX);
		const struct pickle_value **grown = arena_alloc(m->arena, (size_t)capacity * sizeof(*grown));
		if (!grown)
			return no_memory(m);
		if (v->count)
			memcpy(grown, v->items, v->count * sizeof(*grown));
		v->items = grown;
		v->capacity = (u32)capacity;
	}
	for (u32 i = 0; i < count; i++)
		v->items[v->count++] = items[i];
	return ERR_OK;
}

/* The last `count` values, and `below` more under them, become one of this kind. */
static enum err gather(struct pickle_machine *m, enum pickle_kind kind, u32 count, u32 below)
{
	struct pickle_value v = {.kind = kind}, **items;

	enum err e = pickle_top(m, count, &items);
	if (!e && kind == PICKLE_DICT && count % 2)
		e = err_set(m->em, ERR_FORMAT, "a key without a value");
	if (!e && count)
		e = pickle_append(m, &v, items, count);
	if (e)
		return e;
	m->depth -= count + below;
	return pickle_push_new(m, v);
}

static enum err gather_to_mark(struct pickle_machine *m, enum pickle_kind kind)
{
	u32 count;
	enum err e = count_to_mark(m, &count);

	return e ? e : gather(m, kind, count, 1);
}

/* The last `count` values are added to the list or dictionary below them and the mark, if there is one. */
static enum err extend(struct pickle_machine *m, enum pickle_kind kind, u32 count, u32 marks)
{
	struct pickle_value **items, *into;

	enum err e = pickle_top(m, count, &items);
	if (e)
		return e;
	m->depth -= count + marks;
	if (m->depth == 0 || m->stack[m->depth - 1]->kind != kind)
		return err_set(m->em, m->depth ? ERR_UNSUPPORTED : ERR_FORMAT, "it adds to %s; only %s is read so",
			       m->depth ? pickle_kind_name(m->stack[m->depth - 1]->kind) : "nothing", pickle_kind_name(kind));
	into = m->stack[m->depth - 1];
	if (kind == PICKLE_DICT && count % 2)
		return err_set(m->em, ERR_FORMAT, "a key without a value");
	return pickle_append(m, into, items, count);
}

static enum err extend_to_mark(struct pickle_machine *m, enum pickle_kind kind)
{
	u32 count;
	enum err e = count_to_mark(m, &count);

	return e ? e : extend(m, kind, count, 1);
}

/* ---------------------------------------------------------------- the memo */

static enum err memo_put(struct pickle_machine *m, u64 index)
{
	struct pickle_value **v;

	enum err e = pickle_top(m, 1, &v);
	if (e)
		return e;
	if (index >= MEMO_MAX)
		return err_set(m->em, ERR_TOO_LONG, "place %llu of the memo; %d are read", (unsigned long long)index, MEMO_MAX);
	if (index > (u64)(m->at - m->data)) /* places are taken in turn, by an instruction each: memory is bound by the file's length */
		return err_set(m->em, ERR_FORMAT, "place %llu of the memo, in front of which most would be empty", (unsigned long long)index);
	if (index >= m->memo_capacity) {
		u32 capacity = 2 * m->memo_capacity > index ? 2 * m->memo_capacity : (u32)index + 256;
		struct pickle_value **grown = realloc(m->memo, capacity * sizeof(*grown));
		if (!grown)
			return err_set(m->em, ERR_NO_MEMORY, "out of memory");
		memset(grown + m->memo_capacity, 0, (capacity - m->memo_capacity) * sizeof(*grown));
		m->memo = grown;
		m->memo_capacity = capacity;
	}
	m->memo_count += m->memo[index] == NULL;
	m->memo[index] = *v;
	return ERR_OK;
}

/* At the place whose number comes in so many bytes. */
static enum err memo_put_at(struct pickle_machine *m, u32 index_bytes)
{
	u64 index;
	enum err e = take_number(m, index_bytes, &index);

	return e ? e : memo_put(m, index);
}

static enum err memo_get(struct pickle_machine *m, u32 index_bytes)
{
	u64 index;

	enum err e = take_number(m, index_bytes, &index);
	if (e)
		return e;
	if (index >= m->memo_capacity || !m->memo[index])
		return err_set(m->em, ERR_FORMAT, "it takes place %llu of its memo, where nothing is", (unsigned long long)index);
	return push(m, m->memo[index]);
}

/* ---------------------------------------------------------------- instructions */

static enum err skip(struct pickle_machine *m, u32 bytes)
{
	const u8 *p;

	return take(m, bytes, &p);
}

static enum err pop(struct pickle_machine *m)
{
	if (m->depth == 0)
		return err_set(m->em, ERR_FORMAT, "it takes more from its stack than there is");
	m->depth--;
	return ERR_OK;
}

static enum err pop_to_mark(struct pickle_machine *m)
{
	u32 count;
	enum err e = count_to_mark(m, &count);

	m->depth -= e ? 0 : count + 1;
	return e;
}

/* Frames say how much may be read at once; all of the file is there anyway. */
static enum err frame(struct pickle_machine *m)
{
	u64 bytes;
	enum err e = take_number(m, 8, &bytes);

	return !e && bytes > (u64)(m->end - m->at) ? truncated(m) : e;
}

static enum err protocol(struct pickle_machine *m)
{
	u64 version;
	enum err e = take_number(m, 1, &version);

	if (!e && version > PROTOCOL_MAX)
		return err_set(m->em, ERR_UNSUPPORTED, "a pickle of protocol %llu; those up to %d are read", (unsigned long long)version, PROTOCOL_MAX);
	return e;
}

static enum err number(struct pickle_machine *m, u32 bytes)
{
	u64 v;
	enum err e = take_number(m, bytes, &v);

	return e ? e : push_int(m, PICKLE_INT, bytes == 4 ? (i32)(u32)v : (i64)v);
}

/* Values that come out of nothing but the bytes behind the instruction. */
static enum err run_value(struct pickle_machine *m, u8 op, bool *known)
{
	switch (op) {
	case 'N':
		return pickle_push_new(m, (struct pickle_value){.kind = PICKLE_NONE});
	case 0x88:
	case 0x89:
		return push_int(m, PICKLE_BOOL, op == 0x88);
	case 'J':
		return number(m, 4);
	case 'K':
		return number(m, 1);
	case 'M':
		return number(m, 2);
	case 0x8a:
		return push_long(m, 1);
	case 0x8b:
		return push_long(m, 4);
	case 'G': {
		enum err e = skip(m, 8);
		return e ? e : pickle_push_new(m, (struct pickle_value){.kind = PICKLE_FLOAT});
	}
	case 'X':
	case 'T': /* of Python 2, where text is bytes */
		return push_text(m, PICKLE_STRING, 4);
	case 0x8c:
	case 'U':
		return push_text(m, PICKLE_STRING, 1);
	case 0x8d:
		return push_text(m, PICKLE_STRING, 8);
	case 'B':
		return push_text(m, PICKLE_BYTES, 4);
	case 'C':
		return push_text(m, PICKLE_BYTES, 1);
	case 0x8e:
	case 0x96:
		return push_text(m, PICKLE_BYTES, 8);
	default:
		*known = false;
		return ERR_OK;
	}
}

/* Collections, which are put together of what is on the stack. */
static enum err run_collection(struct pickle_machine *m, u8 op, bool *known)
{
	switch (op) {
	case '(':
		return pickle_push_new(m, (struct pickle_value){.kind = PICKLE_MARK});
	case ')':
		return pickle_push_new(m, (struct pickle_value){.kind = PICKLE_TUPLE});
	case ']':
		return pickle_push_new(m, (struct pickle_value){.kind = PICKLE_LIST});
	case '}':
		return pickle_push_new(m, (struct pickle_value){.kind = PICKLE_DICT});
	case 't':
		return gather_to_mark(m, PICKLE_TUPLE);
	case 'l':
		return gather_to_mark(m, PICKLE_LIST);
	case 'd':
		return gather_to_mark(m, PICKLE_DICT);
	case 0x85:
	case 0x86:
	case 0x87:
		return gather(m, PICKLE_TUPLE, op - 0x84u, 0);
	case 'a':
		return extend(m, PICKLE_LIST, 1, 0);
	case 'e':
		return extend_to_mark(m, PICKLE_LIST);
	case 's':
		return extend(m, PICKLE_DICT, 2, 0);
	case 'u':
		return extend_to_mark(m, PICKLE_DICT);
	default:
		*known = false;
		return ERR_OK;
	}
}

static enum err run_other(struct pickle_machine *m, u8 op)
{
	switch (op) {
	case 0x80:
		return protocol(m);
	case 0x95:
		return frame(m);
	case '0':
		return pop(m);
	case '1':
		return pop_to_mark(m);
	case 'q':
		return memo_put_at(m, 1);
	case 'r':
		return memo_put_at(m, 4);
	case 0x94:
		return memo_put(m, m->memo_count);
	case 'h':
		return memo_get(m, 1);
	case 'j':
		return memo_get(m, 4);
	case 'c':
		return pickle_named_by_lines(m);
	case 0x93:
		return pickle_named_by_stack(m);
	case 'R':
		return pickle_call(m);
	case 0x81: /* an object of a class, by its arguments */
		return pickle_call(m);
	case 'b':
		return pickle_build(m);
	case 'Q':
		return pickle_persistent(m);
	default:
		return err_set(m->em, ERR_UNSUPPORTED, "the instruction 0x%02x, which pickles of weights (protocols 2 to %d) do not have", op, PROTOCOL_MAX);
	}
}

static enum err finish(struct pickle_machine *m)
{
	if (m->depth == 1 && m->stack[0]->kind != PICKLE_MARK)
		return ERR_OK;
	return err_set(m->em, ERR_FORMAT, "it ends with %u values on its stack; there must be one", m->depth);
}

/* The instruction at m->at. */
static enum err run_one(struct pickle_machine *m, bool *done)
{
	bool known = true;
	const u8 *op;

	enum err e = take(m, 1, &op);
	if (e)
		return e;
	*done = *op == '.';
	if (*done)
		return finish(m);
	e = run_value(m, *op, &known);
	if (e || known)
		return e;
	known = true;
	e = run_collection(m, *op, &known);
	return e || known ? e : run_other(m, *op);
}

static enum err run(struct pickle_machine *m)
{
	bool done = false;
	enum err e = ERR_OK;

	while (!e && !done) {
		const u8 *begin = m->at;
		e = run_one(m, &done);
		if (e)
			err_prefix(m->em, "byte %llu of the pickle", (unsigned long long)(begin - m->data));
	}
	return e;
}

enum err pickle_read(struct pickle *p, struct arena *arena, const void *data, u64 bytes, const struct pickle_global *globals, u32 global_count,
		     struct err_msg *em)
{
	struct pickle_machine m = {.data = data, .at = data, .end = (const u8 *)data + bytes, .arena = arena, .globals = globals, .global_count = global_count, .em = em};
	const size_t limit = arena->limit_bytes;

	*p = (struct pickle){0};
	if (limit == 0 || limit > arena->used_bytes + MEMORY_MAX)
		arena->limit_bytes = arena->used_bytes + MEMORY_MAX;
	enum err e = run(&m);
	arena->limit_bytes = limit;
	if (!e)
		*p = (struct pickle){.value = m.stack[0], .persistent = m.persistent, .bytes = (u64)(m.at - m.data)};
	free(m.stack);
	free(m.memo);
	return e;
}
