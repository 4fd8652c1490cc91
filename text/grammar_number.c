/* Owns ranges of numbers as grammars: digits are compared with those of both bounds from left to right, as long as they are equal.
 * Runs wherever a grammar is compiled. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar_schema_priv.h"

enum { WHOLE_MAX = 19, PART_MAX = 20 };

/* ---- decimals ---- */

/* Digits and the place of the point among them -> whole and part. */
static bool split_digits(struct decimal *d, const char *digits, int count, int point)
{
	while (count > 0 && digits[0] == '0') {
		digits++;
		count--;
		point--;
	}
	while (count > 0 && digits[count - 1] == '0')
		count--;
	int whole = point > 0 ? point : 0, part = count - point > 0 ? count - point : 0;
	if (whole > WHOLE_MAX || part > PART_MAX)
		return false;
	for (int i = 0; i < whole; i++)
		d->whole[i] = i < count ? digits[i] : '0';
	for (int i = 0; i < part; i++)
		d->part[i] = point + i >= 0 ? digits[point + i] : '0';
	d->whole[whole] = d->part[part] = '\0';
	if (whole == 0)
		strcpy(d->whole, "0");
	return true;
}

bool decimal_read(struct decimal *d, json_val v)
{
	*d = (struct decimal){0};
	double value;
	if (!json_double(v, &value))
		return false;
	struct buf text = {0};
	struct json_writer w;
	json_begin(&w, &text);
	json_write_value(&w, v);
	const char *p = buf_cstr(&text);
	char digits[400];
	int count = 0, point = -1;
	d->negative = *p == '-';
	for (p += d->negative; (*p >= '0' && *p <= '9') || *p == '.'; p++) {
		if (*p == '.')
			point = count;
		else if (count < (int)sizeof(digits))
			digits[count++] = *p;
	}
	point = (point < 0 ? count : point) + (*p == 'e' || *p == 'E' ? atoi(p + 1) : 0);
	bool ok = count > 0 && split_digits(d, digits, count, point);
	buf_fini(&text);
	if (ok && strcmp(d->whole, "0") == 0 && d->part[0] == '\0')
		d->negative = false;
	return ok;
}

static int compare_magnitudes(const struct decimal *x, const struct decimal *y)
{
	size_t a = strlen(x->whole), b = strlen(y->whole);
	int order = a != b ? (a < b ? -1 : 1) : strcmp(x->whole, y->whole);
	if (order == 0)
		order = strcmp(x->part, y->part);
	return order < 0 ? -1 : order > 0;
}

int decimal_compare(const struct decimal *x, const struct decimal *y)
{
	if (x->negative != y->negative)
		return x->negative ? -1 : 1;
	int order = compare_magnitudes(x, y);
	return x->negative ? -order : order;
}

/* ---- digits ---- */

/* Numbers without sign from low to high whose whole part has `digits` digits. */
struct range {
	struct gb *b;
	u32 to;
	const struct decimal *low, *high;
	u32 digits, part_max;
	char first[WHOLE_MAX + 1], last[WHOLE_MAX + 1]; /* least and largest whole part of that length */
	bool low_here, high_here;                       /* the bound has as many digits */
	u32 free_whole[WHOLE_MAX + 1];                  /* nodes from which so many digits follow, and any part */
	u32 free_part[PART_MAX + 1];                    /* nodes from which at most so many digits follow */
};

static u32 free_part(struct range *r, u32 left)
{
	if (r->free_part[left] == GRAMMAR_NONE) {
		u32 at = r->free_part[left] = gb_node(r->b);
		gb_empty(r->b, at, r->to);
		if (left > 0)
			gb_bytes(r->b, at, free_part(r, left - 1), '0', '9');
	}
	return r->free_part[left];
}

static u32 free_whole(struct range *r, u32 left)
{
	if (r->free_whole[left] == GRAMMAR_NONE) {
		u32 at = r->free_whole[left] = gb_node(r->b);
		if (left > 0) {
			gb_bytes(r->b, at, free_whole(r, left - 1), '0', '9');
		} else {
			gb_empty(r->b, at, r->to);
			if (r->part_max > 0)
				gb_bytes(r->b, gb_text(r->b, at, ".", 1), free_part(r, r->part_max - 1), '0', '9');
		}
	}
	return r->free_whole[left];
}

/* Whether the number may end after `digits` digits of the part, all equal to the bounds' where on_low, on_high. */
static bool may_end(const struct range *r, u32 digits, bool on_low, bool on_high)
{
	if (on_low && (strlen(r->low->part) > digits || r->low->strict))
		return false;
	return !(on_high && strlen(r->high->part) <= digits && r->high->strict);
}

static char part_digit(const struct decimal *d, u32 at)
{
	return at < strlen(d->part) ? d->part[at] : '0';
}

static void put_part(struct range *r, u32 from, u32 at, bool on_low, bool on_high);

/* Digit number `at` of the part is that of a bound (or of both). */
static void put_bound_digit(struct range *r, u32 from, u32 at, char digit, bool on_low, bool on_high)
{
	u32 next = gb_node(r->b);
	gb_bytes(r->b, from, next, (u8)digit, (u8)digit);
	if (may_end(r, at + 1, on_low, on_high))
		gb_empty(r->b, next, r->to);
	put_part(r, next, at + 1, on_low, on_high);
}

/* The digits of the part from number `at` on, all before being equal to the bounds' where on_low, on_high. */
static void put_part(struct range *r, u32 from, u32 at, bool on_low, bool on_high)
{
	char lo = on_low ? part_digit(r->low, at) : '0', hi = on_high ? part_digit(r->high, at) : '9';
	if (at >= r->part_max || lo > hi)
		return;
	if (on_low)
		put_bound_digit(r, from, at, lo, true, on_high && lo == hi);
	if (on_high && !(on_low && lo == hi))
		put_bound_digit(r, from, at, hi, false, true);
	lo = (char)(lo + on_low);
	hi = (char)(hi - on_high);
	if (lo <= hi)
		gb_bytes(r->b, from, free_part(r, r->part_max - at - 1), (u8)lo, (u8)hi);
}

/* Behind the whole part. */
static void put_rest(struct range *r, u32 from, bool on_low, bool on_high)
{
	if (may_end(r, 0, on_low, on_high))
		gb_empty(r->b, from, r->to);
	if (r->part_max > 0)
		put_part(r, gb_text(r->b, from, ".", 1), 0, on_low, on_high);
}

/* The same for the digits of the whole part. */
static void put_whole(struct range *r, u32 from, u32 at, bool on_low, bool on_high)
{
	if (at == r->digits) {
		put_rest(r, from, on_low && r->low_here, on_high && r->high_here);
		return;
	}
	char lo = on_low ? r->first[at] : '0', hi = on_high ? r->last[at] : '9';
	if (lo > hi)
		return;
	if (on_low) {
		u32 next = gb_node(r->b);
		gb_bytes(r->b, from, next, (u8)lo, (u8)lo);
		put_whole(r, next, at + 1, true, on_high && lo == hi);
	}
	if (on_high && !(on_low && lo == hi)) {
		u32 next = gb_node(r->b);
		gb_bytes(r->b, from, next, (u8)hi, (u8)hi);
		put_whole(r, next, at + 1, false, true);
	}
	lo = (char)(lo + on_low);
	hi = (char)(hi - on_high);
	if (lo <= hi)
		gb_bytes(r->b, from, free_whole(r, r->digits - at - 1), (u8)lo, (u8)hi);
}

static void put_magnitudes(struct gb *b, u32 from, u32 to, const struct decimal *low, const struct decimal *high, u32 part_max)
{
	struct decimal largest = {0};
	if (high->endless) {
		memset(largest.whole, '9', WHOLE_MAX);
		high = &largest;
	}
	if (compare_magnitudes(low, high) > 0)
		return;
	struct range r = {.b = b, .to = to, .low = low, .high = high, .part_max = part_max};
	memset(r.free_part, 0xff, sizeof(r.free_part));
	for (r.digits = (u32)strlen(low->whole); r.digits <= strlen(high->whole) && b->err == ERR_OK; r.digits++) {
		memset(r.free_whole, 0xff, sizeof(r.free_whole));
		r.low_here = r.digits == strlen(low->whole);
		r.high_here = r.digits == strlen(high->whole);
		for (u32 i = 0; i < r.digits; i++) {
			r.first[i] = r.low_here ? low->whole[i] : i == 0 ? '1' : '0';
			r.last[i] = r.high_here ? high->whole[i] : '9';
		}
		put_whole(&r, from, 0, true, true);
	}
}

u32 gb_number(struct gb *b, u32 from, const struct decimal *low, const struct decimal *high, u32 part_max)
{
	const struct decimal zero = {.whole = "0"}, above_zero = {.whole = "0", .strict = true};
	u32 to = gb_node(b);
	part_max = part_max < PART_MAX ? part_max : PART_MAX;
	if (low->endless || low->negative) {
		struct decimal least = above_zero, most = *low;
		if (!high->endless && high->negative)
			least = *high;
		least.negative = most.negative = false;
		put_magnitudes(b, gb_text(b, from, "-", 1), to, &least, &most, part_max);
	}
	if (high->endless || !high->negative)
		put_magnitudes(b, from, to, low->endless || low->negative ? &zero : low, high, part_max);
	return to;
}
