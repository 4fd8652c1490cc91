/* Owns operators, attributes, items and slices, with the sandbox's rules. Runs where chat templates are rendered. */
#include <math.h>
#include <string.h>

#include "text/jinja_priv.h"
#include "text/unicode_priv.h"

/* ---- arithmetic ---- */

static const char *op_text(u8 op)
{
	switch (op) {
	case TOK_ADD:
		return "+";
	case TOK_SUB:
		return "-";
	case TOK_MUL:
		return "*";
	case TOK_DIV:
		return "/";
	case TOK_FLOORDIV:
		return "//";
	case TOK_MOD:
		return "%";
	default:
		return "** or pow()";
	}
}

static bool fail_operands(struct jinja *j, u8 op, struct jv a, struct jv b)
{
	if (a.type == JV_UNDEFINED || b.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, a.type == JV_UNDEFINED ? a : b);
	if (op == TOK_ADD && a.type == JV_STRING)
		return jinja_fail(j, "can only concatenate str (not \"%s\") to str", jv_type_name(b));
	return jinja_fail(j, "unsupported operand type(s) for %s: '%s' and '%s'", op_text(op), jv_type_name(a),
			  jv_type_name(b));
}

static bool int_power(struct jinja *j, int64_t base, int64_t exponent, struct jv *out)
{
	int64_t result = 1;
	if (exponent < 0) {
		if (base == 0)
			return jinja_fail(j, "0.0 cannot be raised to a negative power");
		*out = JV_DOUBLE(pow((double)base, (double)exponent));
		return true;
	}
	for (; exponent > 0; exponent >>= 1) {
		if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
			return jinja_fail(j, "an integer does not fit 64 bits");
		if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
			return jinja_fail(j, "an integer does not fit 64 bits");
	}
	*out = JV_INTEGER(result);
	return true;
}

static bool int_arithmetic(struct jinja *j, u8 op, int64_t a, int64_t b, struct jv *out)
{
	int64_t r = 0;
	bool overflow = false;
	if ((op == TOK_DIV || op == TOK_FLOORDIV || op == TOK_MOD) && b == 0)
		return jinja_fail(j, op == TOK_DIV ? "division by zero" : "integer division or modulo by zero");
	switch (op) {
	case TOK_ADD:
		overflow = __builtin_add_overflow(a, b, &r);
		break;
	case TOK_SUB:
		overflow = __builtin_sub_overflow(a, b, &r);
		break;
	case TOK_MUL:
		overflow = __builtin_mul_overflow(a, b, &r);
		break;
	case TOK_DIV:
		*out = JV_DOUBLE((double)a / (double)b);
		return true;
	case TOK_FLOORDIV:
		overflow = a == INT64_MIN && b == -1;
		r = overflow ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
		break;
	case TOK_MOD:
		r = b == -1 ? 0 : a % b;
		r += r != 0 && (r < 0) != (b < 0) ? b : 0;
		break;
	default:
		return int_power(j, a, b, out);
	}
	if (overflow)
		return jinja_fail(j, "an integer does not fit 64 bits");
	*out = JV_INTEGER(r);
	return true;
}

static bool float_arithmetic(struct jinja *j, u8 op, double a, double b, struct jv *out)
{
	double r = 0;
	if ((op == TOK_DIV || op == TOK_FLOORDIV || op == TOK_MOD) && b == 0)
		return jinja_fail(j, op == TOK_DIV ? "float division by zero" : "float modulo by zero");
	switch (op) {
	case TOK_ADD:
		r = a + b;
		break;
	case TOK_SUB:
		r = a - b;
		break;
	case TOK_MUL:
		r = a * b;
		break;
	case TOK_DIV:
		r = a / b;
		break;
	case TOK_FLOORDIV:
	case TOK_MOD:
		r = fmod(a, b);
		if (r != 0 && (r < 0) != (b < 0))
			r += b;
		if (r == 0)
			r = copysign(0, b);
		if (op == TOK_FLOORDIV) {
			double q = (a - r) / b;
			r = floor(q) + (q - floor(q) > 0.5);
		}
		break;
	default:
		r = pow(a, b);
		if (isinf(r) && !isinf(a) && !isinf(b))
			return jinja_fail(j, "result of ** is out of range");
		if (isnan(r) && !isnan(a) && !isnan(b))
			return jinja_fail(j, "a complex number is not supported");
		break;
	}
	*out = JV_DOUBLE(r);
	return true;
}

/* ---- sequences ---- */

static bool repeat_string(struct jinja *j, struct jv s, int64_t times, struct jv *out)
{
	if (times <= 0 || s.s->bytes == 0)
		return jv_string(j, "", 0, out) && ((out->safe = s.safe), true);
	struct buf b = {0};
	if ((u64)times > j->limits.output / s.s->bytes || !buf_reserve(&b, (size_t)times * s.s->bytes))
		return jinja_fail_memory(j);
	for (int64_t i = 0; i < times; i++)
		buf_append(&b, s.s->data, s.s->bytes);
	bool ok = jv_string_buf(j, &b, out);
	out->safe = s.safe;
	buf_fini(&b);
	return ok;
}

static bool repeat_list(struct jinja *j, struct jv l, int64_t times, struct jv *out)
{
	size_t count = l.l->count;
	if (times < 0)
		times = 0;
	if (count > 0 && (u64)times > j->limits.memory / sizeof(struct jv) / count)
		return jinja_fail_memory(j);
	if (!jv_list(j, l.type, (size_t)times * count, out))
		return false;
	for (int64_t i = 0; i < times && count > 0; i++)
		memcpy(out->l->items + (size_t)i * count, l.l->items, count * sizeof(struct jv));
	out->l->count = (size_t)times * count;
	return true;
}

static bool join_lists(struct jinja *j, struct jv a, struct jv b, struct jv *out)
{
	if (!jv_list(j, a.type, a.l->count + b.l->count, out))
		return false;
	if (a.l->count > 0)
		memcpy(out->l->items, a.l->items, a.l->count * sizeof(struct jv));
	if (b.l->count > 0)
		memcpy(out->l->items + a.l->count, b.l->items, b.l->count * sizeof(struct jv));
	out->l->count = a.l->count + b.l->count;
	return true;
}

/* Markup escapes what is joined to it, from either side. */
static bool join_strings(struct jinja *j, struct jv a, struct jv b, struct jv *out)
{
	if (a.safe != b.safe && !jv_escape(j, a.safe ? b : a, a.safe ? &b : &a))
		return false;
	return jv_concat(j, a, b, out);
}

bool jv_binary(struct jinja *j, u8 op, struct jv a, struct jv b, struct jv *out)
{
	if (jv_is_int(a) && jv_is_int(b))
		return int_arithmetic(j, op, jv_int(a), jv_int(b), out);
	if (jv_is_number(a) && jv_is_number(b))
		return float_arithmetic(j, op, jv_float(a), jv_float(b), out);
	if (op == TOK_ADD && a.type == JV_STRING && b.type == JV_STRING)
		return join_strings(j, a, b, out);
	if (op == TOK_ADD && jv_is_sequence(a) && a.type == b.type)
		return join_lists(j, a, b, out);
	if (op == TOK_MUL && a.type == JV_STRING && jv_is_int(b))
		return repeat_string(j, a, jv_int(b), out);
	if (op == TOK_MUL && b.type == JV_STRING && jv_is_int(a))
		return repeat_string(j, b, jv_int(a), out);
	if (op == TOK_MUL && jv_is_sequence(a) && jv_is_int(b))
		return repeat_list(j, a, jv_int(b), out);
	if (op == TOK_MUL && jv_is_sequence(b) && jv_is_int(a))
		return repeat_list(j, b, jv_int(a), out);
	if (op == TOK_MOD && a.type == JV_STRING)
		return jv_percent(j, a, b, out);
	return fail_operands(j, op, a, b);
}

bool jv_negate(struct jinja *j, struct jv v, struct jv *out)
{
	if (v.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, v);
	if (!jv_is_number(v))
		return jinja_fail(j, "bad operand type for unary -: '%s'", jv_type_name(v));
	if (v.type == JV_FLOAT) {
		*out = JV_DOUBLE(-v.f);
		return true;
	}
	return int_arithmetic(j, TOK_SUB, 0, jv_int(v), out);
}

/* ---- slices ---- */

/* Python's slice.indices for one bound. */
static bool slice_bound(struct jinja *j, struct jv v, int64_t length, int64_t low, int64_t high, int64_t fallback,
			int64_t *out)
{
	*out = fallback;
	if (v.type == JV_NONE || v.type == JV_MISSING)
		return true;
	if (!jv_is_int(v))
		return jinja_fail(j, "slice indices must be integers or None");
	int64_t at = jv_int(v);
	if (at < 0)
		at = at < -length ? low : at + length;
	*out = at < low ? low : at > high ? high : at;
	return true;
}

struct slice {
	int64_t start, stop, step;
	size_t count;
};

static bool slice_indices(struct jinja *j, const struct jv bounds[3], size_t count, struct slice *s)
{
	int64_t length = (int64_t)count;
	s->step = 1;
	if (bounds[2].type != JV_NONE && bounds[2].type != JV_MISSING) {
		if (!jv_is_int(bounds[2]))
			return jinja_fail(j, "slice indices must be integers or None");
		s->step = jv_int(bounds[2]);
	}
	if (s->step == 0)
		return jinja_fail(j, "slice step cannot be zero");
	bool back = s->step < 0;
	int64_t low = back ? -1 : 0, high = back ? length - 1 : length;
	if (!slice_bound(j, bounds[0], length, low, high, back ? high : low, &s->start) ||
	    !slice_bound(j, bounds[1], length, low, high, back ? low : high, &s->stop))
		return false;
	int64_t span = back ? s->start - s->stop : s->stop - s->start;
	u64 stride = back ? 0 - (u64)s->step : (u64)s->step;
	s->count = span <= 0 ? 0 : (size_t)(((u64)span - 1) / stride + 1);
	return true;
}

static bool slice_string(struct jinja *j, struct jv v, const struct slice *s, struct jv *out)
{
	if (s->step == 1 || s->count < 2) {
		size_t from = jstr_offset(v.s, (size_t)s->start), to = jstr_offset(v.s, (size_t)s->start + s->count);
		bool ok = jv_string(j, v.s->data + from, s->count > 0 ? to - from : 0, out);
		out->safe = v.safe;
		return ok;
	}
	/* Character offsets once, then picking. */
	size_t chars = jstr_chars(v.s), at = 0;
	u32 *offsets = jinja_alloc(j, (chars + 1) * sizeof(*offsets));
	struct buf b = {0};
	if (offsets == NULL)
		return false;
	for (size_t i = 0; i < chars; i++) {
		offsets[i] = (u32)at;
		at += unicode_bytes((u8)v.s->data[at]);
	}
	offsets[chars] = (u32)at;
	for (size_t i = 0; i < s->count; i++) {
		size_t c = (size_t)(s->start + (int64_t)i * s->step);
		buf_append(&b, v.s->data + offsets[c], offsets[c + 1] - offsets[c]);
	}
	bool ok = jv_string_buf(j, &b, out);
	out->safe = v.safe;
	buf_fini(&b);
	return ok;
}

static bool slice_range(struct jinja *j, const struct jrange *r, const struct jv bounds[3], struct jv *out)
{
	struct slice s = {.step = 1};
	struct jrange *part = jinja_alloc(j, sizeof(*part));
	if (part == NULL || !slice_indices(j, bounds, r->count, &s))
		return false;
	__int128 step = (__int128)r->step * s.step, start = r->start + (__int128)s.start * r->step;
	__int128 stop = r->start + (__int128)s.stop * r->step;
	if (step > INT64_MAX || step < INT64_MIN || stop > INT64_MAX || stop < INT64_MIN)
		return jinja_fail(j, "an integer does not fit 64 bits");
	*part = (struct jrange){
		.start = (int64_t)start, .stop = (int64_t)stop, .step = (int64_t)step, .count = s.count};
	*out = (struct jv){.type = JV_RANGE, .range = part};
	return true;
}

bool jv_slice(struct jinja *j, struct jv v, const struct jv bounds[3], struct jv *out)
{
	struct slice s = {.step = 1};
	if (v.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, v);
	if (v.type == JV_RANGE)
		return slice_range(j, v.range, bounds, out);
	if (v.type != JV_STRING && !jv_is_sequence(v))
		return jinja_fail(j, "'%s' object cannot be sliced", jv_type_name(v));
	size_t count = v.type == JV_STRING ? jstr_chars(v.s) : v.l->count;
	if (!slice_indices(j, bounds, count, &s))
		return false;
	if (v.type == JV_STRING)
		return jinja_charge(j, v.s->bytes) && slice_string(j, v, &s, out);
	if (!jv_list(j, v.type, s.count, out))
		return false;
	for (size_t i = 0; i < s.count; i++)
		out->l->items[i] = v.l->items[s.start + (int64_t)i * s.step];
	out->l->count = s.count;
	return true;
}

/* ---- attributes and items ---- */

/* What an undefined value of a missing member says when it is used. */
static bool missing_member(struct jinja *j, struct jv v, const char *name, struct jv *out)
{
	const char *type = v.type == JV_NONE ? "None" : jv_type_name(v);
	*out = JV_UNDEF(jinja_printf(j, v.type == JV_NONE ? "'%s' has no attribute '%s'"
							   : "'%s object' has no attribute '%s'",
				     type, name));
	return out->hint != NULL;
}

/* Methods that would change a list or dict: the sandbox shows them as undefined. */
static bool changes_object(struct jv v, const char *name)
{
	static const char *const list_names[] = {"append", "reverse", "insert", "sort", "extend", "remove", "clear", "pop"};
	static const char *const dict_names[] = {"clear", "pop", "popitem", "setdefault", "update"};
	if (v.type == JV_LIST)
		for (size_t i = 0; i < COUNT_OF(list_names); i++)
			if (strcmp(name, list_names[i]) == 0)
				return true;
	if (v.type == JV_DICT)
		for (size_t i = 0; i < COUNT_OF(dict_names); i++)
			if (strcmp(name, dict_names[i]) == 0)
				return true;
	return false;
}

/* The loop variable's attributes that are values. */
static bool loop_attribute(struct jinja *j, const struct jloop *loop, const char *name, struct jv *out, bool *found)
{
	size_t i = loop->index0, n = loop->count;
	*found = true;
	const struct {
		const char *name;
		struct jv value;
	} values[] = {
		{"index", JV_INTEGER((int64_t)i + 1)},        {"index0", JV_INTEGER((int64_t)i)},
		{"first", JV_BOOLEAN(i == 0)},                {"last", JV_BOOLEAN(i + 1 == n)},
		{"length", JV_INTEGER((int64_t)n)},           {"revindex", JV_INTEGER((int64_t)(n - i))},
		{"revindex0", JV_INTEGER((int64_t)(n - i) - 1)}, {"depth", JV_INTEGER(loop->depth0 + 1)},
		{"depth0", JV_INTEGER(loop->depth0)},
	};
	(void)j;
	for (size_t k = 0; k < COUNT_OF(values); k++)
		if (strcmp(name, values[k].name) == 0) {
			*out = values[k].value;
			return true;
		}
	const struct jlist *items = loop->over.l;
	if (strcmp(name, "previtem") == 0)
		*out = i > 0 ? items->items[i - 1] : JV_UNDEF("there is no previous item");
	else if (strcmp(name, "nextitem") == 0)
		*out = i + 1 < n ? items->items[i + 1] : JV_UNDEF("there is no next item");
	else
		*found = false;
	return true;
}

/* Python's getattr(): methods and the attributes of special objects. */
static bool own_attribute(struct jinja *j, struct jv v, const char *name, size_t bytes, struct jv *out, bool *found)
{
	*found = false;
	if (v.type == JV_NAMESPACE) {
		*found = jdict_find(v.d, name, bytes, out);
		return true;
	}
	if (v.type == JV_LOOP && (!loop_attribute(j, v.loop, name, out, found) || *found))
		return true;
	if (v.type == JV_MACRO && strcmp(name, "name") == 0) {
		*found = true;
		const char *text = v.macro->def->name != NULL ? v.macro->def->name : "";
		return jv_string(j, text, strlen(text), out);
	}
	if (v.type == JV_TUPLE && v.safe && (strcmp(name, "grouper") == 0 || strcmp(name, "list") == 0)) {
		*found = true;
		*out = v.l->items[name[0] == 'l'];
		return true;
	}
	if (v.type == JV_CYCLER && strcmp(name, "current") == 0) {
		*found = true;
		*out = v.cycler->items.items[v.cycler->at];
		return true;
	}
	if (changes_object(v, name)) {
		*found = true;
		*out = JV_UNDEF(jinja_printf(j, "access to attribute '%s' of '%s' object is unsafe", name, jv_type_name(v)));
		return out->hint != NULL;
	}
	const struct builtin *b = jinja_method_find(v.type, name);
	if (b == NULL)
		return true;
	struct jmethod *m = jinja_alloc(j, sizeof(*m));
	if (m == NULL)
		return false;
	*m = (struct jmethod){.self = v, .builtin = b};
	*out = (struct jv){.type = JV_METHOD, .method = m};
	*found = true;
	return true;
}

/* obj[key]; not found where Python raises LookupError or TypeError. */
static bool own_item(struct jinja *j, struct jv v, struct jv key, struct jv *out, bool *found)
{
	*found = false;
	if (v.type == JV_DICT)
		return jv_is_hashable(j, key) ? jdict_get(j, v.d, key, out, found) : !j->failed;
	if (!jv_is_int(key) || (v.type != JV_STRING && v.type != JV_RANGE && !jv_is_sequence(v)))
		return true;
	size_t count;
	if (!jv_length(j, v, &count))
		return false;
	int64_t at = jv_int(key);
	at = at < 0 ? at + (int64_t)count : at;
	if (at < 0 || at >= (int64_t)count)
		return true;
	*found = true;
	if (v.type == JV_RANGE) {
		*out = JV_INTEGER(v.range->start + at * v.range->step);
	} else if (v.type == JV_STRING) {
		size_t from = jstr_offset(v.s, (size_t)at);
		if (jstr_chars(v.s) != v.s->bytes && !jinja_charge(j, from)) /* found by counting */
			return false;
		if (!jv_string(j, v.s->data + from, unicode_bytes((u8)v.s->data[from]), out))
			return false;
		out->safe = v.safe;
	} else {
		*out = v.l->items[at];
	}
	return true;
}

/* The sandbox hides what begins with an underscore. */
static bool is_private(const char *name)
{
	return name[0] == '_';
}

bool jv_getattr(struct jinja *j, struct jv v, const char *name, size_t bytes, struct jv *out)
{
	bool found;
	if (v.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, v);
	if (!is_private(name) && (!own_attribute(j, v, name, bytes, out, &found) || found))
		return !j->failed;
	if (v.type == JV_DICT && jdict_find(v.d, name, bytes, out))
		return true;
	return missing_member(j, v, name, out);
}

bool jv_getitem(struct jinja *j, struct jv v, struct jv key, struct jv *out)
{
	bool found;
	if (v.type == JV_UNDEFINED)
		return jinja_fail_undefined(j, v);
	if (!own_item(j, v, key, out, &found) || found)
		return !j->failed;
	if (key.type == JV_STRING) {
		if (!is_private(key.s->data) &&
		    (!own_attribute(j, v, key.s->data, key.s->bytes, out, &found) || found))
			return !j->failed;
		return missing_member(j, v, key.s->data, out);
	}
	struct buf text = {0};
	if (!jv_repr(j, key, &text))
		return false;
	*out = JV_UNDEF(jinja_printf(j, "%s object has no element %.80s", jv_type_name(v), buf_cstr(&text)));
	buf_fini(&text);
	return out->hint != NULL;
}
