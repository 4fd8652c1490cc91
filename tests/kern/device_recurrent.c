/* Checks of the device's conv, recurrent and gate against the references. States that begin are NaNs before, and so is what is nobody's, which
 * must stay so. */
#include <math.h>
#include <string.h>

#include "tests/kern/device.h"

/* Half a unit in the last place of bf16, and a little for the arithmetic before it. */
static const double BF16 = 0x1.04p-8;

/* ---------------------------------------------------------------- rows and their states */

enum { ROWS_MOST = 80, PATTERNS = 7, PIECES_MOST = 160 };

/* How rows of a pattern are given their slots, and whether states are saved underway. */
enum { ROWS_SAVED = 1, ROWS_AS_SLOTS = 2, ROWS_OPTIONS = 4 };

struct rows {
	u32 query_start[ROWS_MOST + 1], context[ROWS_MOST], slots[ROWS_MOST], save_at[ROWS_MOST], save_slots[ROWS_MOST];
	u32 count, tokens, options;
	size_t size, stride, all; /* floats of a state, from one to the next, and of all */
	float *before, *want;	  /* [all] the states that a run begins with, and those that it should leave */
	struct kern_state state;  /* on the device */
};

static u32 row_tokens(u32 pattern, u32 row)
{
	static const u32 few[5][8] = {{1}, {0, 3, 1}, {9, 8, 16, 7, 1, 2}, {17, 0, 40}, {1, 1, 1, 0, 1, 1, 1, 1}};
	if (pattern < COUNT_OF(few))
		return few[pattern][row];
	if (pattern == 5) /* most without */
		return row % 9 == 4 ? 1 + row % 2 : 0;
	return row % 40 == 35 ? 3 : 0; /* only some of the last ones */
}

/* Rows in a scattered order of slots, half of which are nobody's or are saved to. */
static void rows_make(struct device *d, struct rows *r, u32 pattern, size_t size, size_t pad, u32 options)
{
	static const u32 counts[PATTERNS] = {1, 3, 6, 3, 8, 70, 77};
	const u32 count = counts[pattern], slots = 2 * count + 1;
	*r = (struct rows){.count = count, .options = options, .size = size, .stride = size + pad, .all = slots * (size + pad)};
	r->before = check_alloc(&d->check, r->all * sizeof(float));
	for (u32 i = 0; i < count; i++) {
		const u32 n = row_tokens(pattern, i), past = (i + pattern + options) % 2 ? 1 + check_random(&d->check, 9) : 0;
		r->tokens += n;
		r->query_start[i + 1] = r->tokens;
		r->context[i] = n + past;
		/* 2 and the number of slots share no divisor */
		r->slots[i] = options & ROWS_AS_SLOTS ? i : (2 * i + 1) % slots;
		r->save_slots[i] = options & ROWS_AS_SLOTS ? count + i : (2 * (count + i) + 1) % slots;
		if ((options & ROWS_SAVED) && n > 0 && i % 4 != 3)
			r->save_at[i] = i % 4 == 0 ? n : 1 + check_random(&d->check, n);
		for (size_t v = 0; v < size && past > 0; v++)
			r->before[r->slots[i] * r->stride + v] = check_uniform(&d->check);
	}
	r->want = check_alloc(&d->check, r->all * sizeof(float));
	memcpy(r->want, r->before, r->all * sizeof(float));
}

/* States on the device as they are before a run. */
static void rows_upload(struct device *d, struct rows *r)
{
	r->state = (struct kern_state){.data = device_upload(d, r->before, r->all * sizeof(float)),
				       .stride = r->stride,
				       .query_start = device_upload(d, r->query_start, (r->count + 1) * sizeof(u32)),
				       .context = device_upload(d, r->context, r->count * sizeof(u32)),
				       .rows = r->count};
	if (!(r->options & ROWS_AS_SLOTS))
		r->state.slots = device_upload(d, r->slots, r->count * sizeof(u32));
	if (r->options & ROWS_SAVED) {
		r->state.save_at = device_upload(d, r->save_at, r->count * sizeof(u32));
		r->state.save_slots = device_upload(d, r->save_slots, r->count * sizeof(u32));
	}
}

/* Runs the op, or its reference, on the rows of `state`. */
typedef enum err (*run_fn)(struct device *d, void *arg, const struct kern_state *state);

/* The reference, row by row, with copies of what is to be saved. */
static void rows_reference(struct device *d, struct rows *r, run_fn run, void *arg)
{
	for (u32 row = 0; row < r->count; row++) {
		const u32 first = r->query_start[row], last = r->query_start[row + 1], saved = first + r->save_at[row];
		u32 bounds[2] = {first, saved}, context = r->context[row] - (last - saved);
		const struct kern_state state = {.data = r->want, .stride = r->stride, .query_start = bounds, .context = &context,
						 .slots = &r->slots[row], .rows = 1};
		if (saved > first) {
			(void)run(d, arg, &state);
			memcpy(r->want + r->save_slots[row] * r->stride, r->want + r->slots[row] * r->stride, r->size * sizeof(float));
		}
		bounds[0] = saved;
		bounds[1] = last;
		context = r->context[row];
		if (last > saved)
			(void)run(d, arg, &state);
	}
}

/* The tokens of each row in several calls of that row alone, on states that are as before; NULL, or what is wrong. */
static const char *rows_pieces(struct device *d, struct rows *r, run_fn run, void *arg)
{
	u32 bounds[2 * PIECES_MOST] = {0}, contexts[PIECES_MOST] = {0}, slots[PIECES_MOST] = {0}, count = 0;
	for (u32 row = 0; row < r->count; row++) {
		const u32 last = r->query_start[row + 1];
		for (u32 first = r->query_start[row], end; first < last && count < PIECES_MOST; first = end, count++) {
			end = first + 1 + check_random(&d->check, last - first);
			bounds[2 * count] = first;
			bounds[2 * count + 1] = end;
			contexts[count] = r->context[row] - (last - end);
			slots[count] = r->slots[row];
		}
	}
	const u32 *device_bounds = device_upload(d, bounds, 2 * count * sizeof(u32)), *device_contexts = device_upload(d, contexts, count * sizeof(u32)),
		  *device_slots = device_upload(d, slots, count * sizeof(u32));
	const char *problem = NULL;
	for (u32 i = 0; i < count && !problem; i++) {
		const struct kern_state state = {.data = r->state.data, .stride = r->stride, .query_start = device_bounds + 2 * i,
						 .context = device_contexts + i, .slots = device_slots + i, .rows = 1};
		problem = device_problem(d, run(d, arg, &state));
	}
	return problem;
}

/* Whether a float of all states is of one that a row with tokens goes on with or saves. Its bits may stay what they were all the same. */
static bool is_written(const struct rows *r, size_t at)
{
	const size_t slot = at / r->stride;
	bool written = false;
	for (u32 row = 0; row < r->count && at % r->stride < r->size; row++)
		written = written || (r->query_start[row + 1] > r->query_start[row] && slot == r->slots[row]) ||
			  (r->save_at[row] > 0 && slot == r->save_slots[row]);
	return written;
}

/* NULL, or that a state is not what it should be; those that nobody writes are the same bits. */
static const char *rows_right(const struct rows *r, const float *got, double error)
{
	for (size_t i = 0; i < r->all; i++) {
		if (memcmp(&got[i], &r->want[i], sizeof(float)) == 0)
			continue;
		if (!is_written(r, i))
			return "wrote into a state that is not its own";
		if (!(fabs((double)got[i] - (double)r->want[i]) <= error))
			return "a state is wrong";
	}
	return NULL;
}

/* NULL, or that the state of a row that has one differs. */
static const char *rows_same(const struct rows *r, const float *a, const float *b)
{
	for (u32 row = 0; row < r->count; row++)
		if (memcmp(a + r->slots[row] * r->stride, b + r->slots[row] * r->stride, r->size * sizeof(float)) != 0)
			return "another state in pieces";
	return NULL;
}

/* Rows of `stride` values of `bytes` bytes: NULL, or that something but columns [first, first + width) differs. */
static const char *columns_kept(const void *before, const void *after, u32 tokens, size_t stride, size_t first, size_t width, size_t bytes)
{
	const char *a = before, *b = after;
	for (u32 t = 0; t < tokens; t++, a += stride * bytes, b += stride * bytes)
		if (memcmp(a, b, first * bytes) != 0 ||
		    memcmp(a + (first + width) * bytes, b + (first + width) * bytes, (stride - first - width) * bytes) != 0)
			return "wrote between rows";
	return NULL;
}

/* Columns [first, first + width) of rows, one after the other. */
static float *columns_of(struct device *d, const float *from, u32 tokens, size_t stride, size_t first, size_t width)
{
	float *to = check_alloc(&d->check, tokens * width * sizeof(float));
	for (u32 t = 0; t < tokens; t++)
		memcpy(to + t * width, from + t * stride + first, width * sizeof(float));
	return to;
}

/* ---------------------------------------------------------------- conv */

struct conv_shape {
	u32 channels, taps, pattern, options, rows;
	u32 place; /* of the output: its own, x, before, behind, or bf16 */
};
enum { CONV_BEFORE = 1, CONV_BEHIND = 2, CONV_BIAS = 4, CONV_SILU = 8 };
enum { PLACE_OWN, PLACE_X, PLACE_BEFORE, PLACE_BEHIND, PLACE_BF16, PLACES };

static enum err conv_run(struct device *d, void *arg, const struct kern_state *state)
{
	struct kern_conv_args a = *(struct kern_conv_args *)arg;
	a.state = *state;
	return d->ops.conv(&d->ctx, &a);
}

static enum err conv_reference(struct device *d, void *arg, const struct kern_state *state)
{
	struct kern_conv_args a = *(struct kern_conv_args *)arg;
	a.state = *state;
	return d->ref.conv(&d->ref_ctx, &a);
}

/* Inputs at `in`, of which a token has x, before and behind beside each other. */
static void conv_inputs(const struct conv_shape *s, struct kern_conv_args *a, float *in)
{
	a->x = in;
	a->before = s->options & CONV_BEFORE ? in + s->channels : NULL;
	a->behind = s->options & CONV_BEHIND ? in + 2 * (size_t)s->channels : NULL;
}

/* A run of the device on inputs as they were; *out: what it has made, without what lies between rows. */
static const char *conv_device(struct device *d, const struct conv_shape *s, struct kern_conv_args *a, struct rows *r, const float *in, bool pieces,
			       float **out)
{
	const size_t count = (size_t)r->tokens * a->stride, out_count = (size_t)r->tokens * a->out_stride;
	const u32 channels = s->channels;
	float *x = device_upload(d, in, count * sizeof(float));
	u16 *poison = check_alloc(&d->check, (count + out_count) * sizeof(float));
	conv_inputs(s, a, x);
	a->out = NULL;
	a->out_bf16 = NULL;
	memset(poison, 0xff, (count + out_count) * sizeof(float));
	const size_t first = s->place == PLACE_BEFORE ? channels : s->place == PLACE_BEHIND ? 2 * (size_t)channels : 0;
	if (s->place == PLACE_BF16)
		a->out_bf16 = device_alloc(d, out_count * sizeof(u16));
	else
		a->out = s->place == PLACE_OWN ? device_alloc(d, count * sizeof(float)) : x + first;
	rows_upload(d, r);
	device_arrives_late(d, x, count * sizeof(float));
	const char *problem = pieces ? rows_pieces(d, r, conv_run, a) : device_problem(d, conv_run(d, a, &r->state));
	if (problem)
		return problem;
	if (s->place == PLACE_BF16) {
		const u16 *halves = device_download(d, a->out_bf16, out_count * sizeof(u16));
		const float *got = device_download_bf16(d, a->out_bf16, out_count);
		*out = columns_of(d, got, r->tokens, a->out_stride, 0, channels);
		return columns_kept(poison, halves, r->tokens, a->out_stride, 0, channels, sizeof(u16));
	}
	const float *got = device_download(d, a->out - first, count * sizeof(float));
	*out = columns_of(d, got, r->tokens, a->stride, first, channels);
	return columns_kept(s->place == PLACE_OWN ? (const void *)poison : in, got, r->tokens, a->stride, first, channels, sizeof(float));
}

static void conv_case(struct device *d, const struct conv_shape *s)
{
	const u32 pad = s->channels % 4 == 0 ? 4 : 3;
	struct rows r;
	rows_make(d, &r, s->pattern, (size_t)(s->taps - 1) * s->channels, pad, s->rows);
	float *weight, *bias = NULL, *out[2];
	struct kern_conv_args a = {.channels = s->channels, .stride = 3 * s->channels + pad, .out_stride = s->channels + pad, .taps = s->taps,
				   .silu = s->options & CONV_SILU}, ref = a;
	const size_t count = (size_t)r.tokens * a.stride;
	float *in = check_floats(&d->check, count, s->options & CONV_BIAS);
	ref.weight = device_floats(d, (size_t)s->taps * s->channels, false, &weight);
	ref.bias = s->options & CONV_BIAS ? device_floats(d, s->channels, false, &bias) : NULL;
	a.weight = weight;
	a.bias = bias;
	conv_inputs(s, &ref, in);
	ref.out = check_alloc(&d->check, count * sizeof(float));
	rows_reference(d, &r, conv_reference, &ref);
	const float *want = columns_of(d, ref.out, r.tokens, a.stride, 0, s->channels);
	const size_t outputs = (size_t)r.tokens * s->channels;
	double largest = 1;
	for (size_t i = 0; i < outputs; i++)
		largest = fmax(largest, fabs((double)want[i]));
	const char *problem = conv_device(d, s, &a, &r, in, false, &out[0]);
	if (!problem)
		problem = device_close(out[0], want, outputs, s->place == PLACE_BF16 ? BF16 : 2e-6, 1e-6 * largest);
	const float *states = device_download(d, r.state.data, r.all * sizeof(float));
	if (!problem)
		problem = rows_right(&r, states, 0);
	if (!problem)
		problem = conv_device(d, s, &a, &r, in, true, &out[1]);
	if (!problem && memcmp(out[0], out[1], outputs * sizeof(float)) != 0)
		problem = "other bits in pieces";
	if (!problem)
		problem = rows_same(&r, states, device_download(d, r.state.data, r.all * sizeof(float)));
	device_case_end(d, problem, "conv channels=%u taps=%u rows=%u/%u options=%u place=%u", s->channels, s->taps, s->pattern, s->rows, s->options,
			s->place);
}

static void conv_cases(struct device *d)
{
	static const u32 channels[] = {1, 7, 16, 130, 512, 516};
	u32 number = 0;
	for (u32 w = 0; w < COUNT_OF(channels); w++)
		for (u32 pattern = 0; pattern < PATTERNS; pattern++)
			for (u32 i = 0; i < (pattern < 5 ? 4 : 2); i++, number++) {
				const u32 options = check_random(&d->check, 16);
				u32 place = number % PLACES;
				if ((place == PLACE_BEFORE && !(options & CONV_BEFORE)) || (place == PLACE_BEHIND && !(options & CONV_BEHIND)))
					place = PLACE_X;
				conv_case(d, &(struct conv_shape){channels[w], 2 + (w + number) % 7, pattern, options, number / 3 % ROWS_OPTIONS, place});
			}
	/* a block has more rows than lanes */
	conv_case(d, &(struct conv_shape){4101, 3, 6, CONV_SILU, ROWS_SAVED, PLACE_X});
	conv_case(d, &(struct conv_shape){4 * 4100, 4, 6, CONV_SILU, 0, PLACE_BF16});
}

/* ---------------------------------------------------------------- recurrent */

struct recurrence_shape {
	u32 heads, key_heads, key_dim, value_dim;
};

struct recurrence_case {
	struct recurrence_shape s;
	u32 pattern, rows;
	enum kern_recurrence kind;
	bool limits, in_place;
};

static enum err recurrence_run(struct device *d, void *arg, const struct kern_state *state)
{
	struct kern_recurrent_args a = *(struct kern_recurrent_args *)arg;
	a.state = *state;
	return d->ops.recurrent(&d->ctx, &a);
}

static enum err recurrence_reference(struct device *d, void *arg, const struct kern_state *state)
{
	struct kern_recurrent_args a = *(struct kern_recurrent_args *)arg;
	a.state = *state;
	return d->ref.recurrent(&d->ref_ctx, &a);
}

/* Values of a token lie behind each other with some that are nobody's between: four where all are vectors. */
static u32 recurrence_loose(const struct kern_recurrent_args *a)
{
	return (a->key_heads * a->key_dim | a->heads * a->value_dim) % 4 == 0 ? 4 : 3;
}

static u32 recurrence_stride(const struct kern_recurrent_args *a)
{
	const u32 loose = recurrence_loose(a), all = 2 * a->key_heads * a->key_dim + a->heads * (a->value_dim + 2) + 5 * loose;
	return loose == 4 ? (all + 3) / 4 * 4 : all;
}

static void recurrence_inputs(struct kern_recurrent_args *a, float *in)
{
	const u32 keys = a->key_heads * a->key_dim, values = a->heads * a->value_dim, loose = recurrence_loose(a);
	a->q = in;
	a->k = a->q + keys + loose;
	a->v = a->k + keys + loose;
	a->decay = a->v + values + loose;
	a->beta = a->kind == KERN_DELTA ? a->decay + a->heads + loose : NULL;
}

/* Now and then steps near 0 and far above, keys of zeros, and keys that are large. */
static void unusual(struct check *c, const struct kern_recurrent_args *a, const struct rows *r, float *in)
{
	static const float steps[] = {-90, -25, 19, 60};
	for (u32 t = 0; t < r->tokens; t++) {
		float *decay = in + (a->decay - in) + (size_t)t * a->stride, *k = in + (a->k - in) + (size_t)t * a->stride;
		const u32 kind = check_random(c, 16);
		for (u32 h = 0; h < a->heads; h++)
			decay[h] = check_random(c, 8) == 0 ? steps[check_random(c, COUNT_OF(steps))] : decay[h] * 4;
		for (u32 i = 0; i < a->key_heads * a->key_dim && kind < 2; i++)
			k[i] *= kind == 0 ? 0 : a->kind == KERN_DELTA ? 1000 : 2;
	}
}

static const char *recurrence_device(struct device *d, bool in_place, struct kern_recurrent_args *a, struct rows *r, const float *in, bool pieces,
				     float **out)
{
	const size_t count = (size_t)r->tokens * a->stride, width = (size_t)a->heads * a->value_dim;
	float *x = device_upload(d, in, count * sizeof(float)), *poison = check_alloc(&d->check, count * sizeof(float));
	memset(poison, 0xff, count * sizeof(float));
	recurrence_inputs(a, x);
	const size_t first = in_place ? (size_t)(a->v - x) : 0;
	a->out = in_place ? x + first : device_alloc(d, count * sizeof(float));
	rows_upload(d, r);
	device_arrives_late(d, x, count * sizeof(float));
	const char *problem = pieces ? rows_pieces(d, r, recurrence_run, a) : device_problem(d, recurrence_run(d, a, &r->state));
	if (problem)
		return problem;
	const float *got = device_download(d, a->out - first, count * sizeof(float));
	*out = columns_of(d, got, r->tokens, a->stride, first, width);
	return columns_kept(in_place ? in : poison, got, r->tokens, a->stride, first, width, sizeof(float));
}

/* What the reference makes of the case; *error of states, *floor of outputs: by the largest value that a state had and, of outputs, the weights
 * it gets by a query (divided by its length that is at most 1). */
static const float *recurrence_want(struct device *d, struct kern_recurrent_args *ref, struct rows *r, double *error, double *floor)
{
	const size_t width = (size_t)ref->heads * ref->value_dim, outputs = r->tokens * width;
	double largest = 1;
	ref->out = check_alloc(&d->check, (size_t)r->tokens * ref->stride * sizeof(float));
	rows_reference(d, r, recurrence_reference, ref);
	const float *want = columns_of(d, ref->out, r->tokens, ref->stride, 0, width);
	for (size_t i = 0; i < r->all; i++)
		largest = isnan(r->want[i]) ? largest : fmax(largest, fabs((double)r->want[i]));
	if (ref->kind == KERN_DELTA)
		for (size_t i = 0; i < outputs; i++)
			largest = fmax(largest, fabs((double)want[i]));
	*error = 0x1p-24 * (40 + 4 * sqrt(ref->key_dim)) * largest;
	*floor = *error * (ref->kind == KERN_DELTA ? 1 : 1 + 2 * sqrt(ref->key_dim));
	return want;
}

static void recurrence_case(struct device *d, const struct recurrence_case *c)
{
	const struct recurrence_shape *s = &c->s;
	struct rows r;
	struct kern_recurrent_args a = {.heads = s->heads, .key_heads = s->key_heads, .key_dim = s->key_dim, .value_dim = s->value_dim, .kind = c->kind,
					.beta_scale = c->limits ? 2 : 0, .step_min = c->limits ? 0.01f : 0, .step_max = c->limits ? 0.7f : 0};
	float *bias, *rates, *skip = NULL, *out[2];
	double error, floor;
	rows_make(d, &r, c->pattern, (size_t)s->heads * s->key_dim * s->value_dim, s->value_dim % 2 ? 3 : 4, c->rows);
	a.stride = recurrence_stride(&a);
	float *in = check_floats(&d->check, (size_t)r.tokens * a.stride, false), *host_rates = check_floats(&d->check, s->heads, false);
	for (u32 h = 0; h < s->heads; h++)
		host_rates[h] *= 3;
	rates = device_upload(d, host_rates, s->heads * sizeof(float));
	struct kern_recurrent_args ref = a;
	recurrence_inputs(&ref, in);
	ref.rate_log = host_rates;
	ref.decay_bias = device_floats(d, s->heads, false, &bias);
	ref.skip = c->kind == KERN_SCAN ? device_floats(d, s->heads, false, &skip) : NULL;
	a.decay_bias = bias;
	a.rate_log = rates;
	a.skip = skip;
	unusual(&d->check, &ref, &r, in);
	const float *want = recurrence_want(d, &ref, &r, &error, &floor);
	const size_t outputs = (size_t)r.tokens * s->heads * s->value_dim;
	const char *problem = recurrence_device(d, c->in_place, &a, &r, in, false, &out[0]);
	if (!problem)
		problem = device_close(out[0], want, outputs, 0, floor);
	const float *states = device_download(d, r.state.data, r.all * sizeof(float));
	if (!problem)
		problem = rows_right(&r, states, error);
	if (!problem)
		problem = recurrence_device(d, !c->in_place, &a, &r, in, true, &out[1]);
	if (!problem && memcmp(out[0], out[1], outputs * sizeof(float)) != 0)
		problem = "other bits in pieces";
	if (!problem)
		problem = rows_same(&r, states, device_download(d, r.state.data, r.all * sizeof(float)));
	device_case_end(d, problem, "recurrent %s heads=%u/%u keys=%u values=%u rows=%u/%u limits=%d in_place=%d", c->kind == KERN_DELTA ? "delta" : "scan",
			s->heads, s->key_heads, s->key_dim, s->value_dim, c->pattern, c->rows, c->limits, c->in_place);
}

static void recurrence_cases(struct device *d)
{
	static const struct recurrence_shape small[] = {{1, 1, 1, 1}, {3, 1, 5, 7}, {4, 2, 16, 16}, {2, 2, 33, 17}, {2, 1, 64, 64}, {1, 1, 3, 130}, {2, 1, 12, 34}},
					     large[] = {{2, 1, 128, 128}, {1, 1, 128, 64}, {1, 1, 256, 33}, {1, 1, 512, 9}, {1, 1, 300, 20}, {1, 1, 100, 40}};
	u32 number = 0;
	for (u32 s = 0; s < COUNT_OF(small); s++)
		for (u32 pattern = 0; pattern < PATTERNS; pattern++)
			for (u32 kind = 0; kind < 2; kind++, number++)
				recurrence_case(d, &(struct recurrence_case){small[s], pattern, number / 2 % ROWS_OPTIONS, kind ? KERN_SCAN : KERN_DELTA,
									     (s + pattern) % 2, number / 3 % 2});
	for (u32 s = 0; s < COUNT_OF(large); s++)
		for (u32 pattern = 1; pattern < 4; pattern++, number++)
			recurrence_case(d, &(struct recurrence_case){large[s], pattern, (number + pattern) % ROWS_OPTIONS,
								     (s + pattern) % 3 == 0 ? KERN_SCAN : KERN_DELTA, pattern % 2, s % 2});
	/* a block has more rows than lanes */
	for (u32 kind = 0; kind < 2; kind++)
		recurrence_case(d, &(struct recurrence_case){{32, 16, 16, 4}, 5 + kind, ROWS_SAVED, kind ? KERN_SCAN : KERN_DELTA, false, true});
}

static void recurrence_refused_case(struct device *d)
{
	const struct kern_recurrent_args a = {.heads = 1, .key_heads = 1, .key_dim = KERN_RECURRENT_DIM_MAX + 1, .value_dim = 4, .stride = 4,
					      .state = {.rows = 1}};
	const struct kern_conv_args conv = {.channels = 4, .stride = 4, .taps = KERN_CONV_TAPS_MAX + 1, .state = {.rows = 1}};
	const bool refused = d->ops.recurrent(&d->ctx, &a) == ERR_UNSUPPORTED && d->ops.conv(&d->ctx, &conv) == ERR_UNSUPPORTED;
	device_case_end(d, refused ? NULL : "is not refused", "recurrent+conv beyond what there is");
}

/* ---------------------------------------------------------------- gate */

struct gate_shape {
	u32 tokens, groups, width, options, place;
};
enum { GATE_SIGMOID = 1, GATE_FIRST = 2, GATE_WEIGHT = 4, GATE_APART = 8 };
enum { GATE_IN_PLACE, GATE_TO_BF16, GATE_BF16, GATE_PLACES };

static void gate_case(struct device *d, const struct gate_shape *s)
{
	const u32 wide = s->groups * s->width, pad = s->width % 4 == 0 ? 4 : 3;
	struct kern_gate_args a = {.eps = 1e-6f, .tokens = s->tokens, .groups = s->groups, .width = s->width, .stride = 2 * wide + pad,
				   .out_stride = wide + pad, .sigmoid = s->options & GATE_SIGMOID, .gate_first = s->options & GATE_FIRST,
				   .weights_apart = s->options & GATE_APART}, ref = a;
	const size_t count = (size_t)s->tokens * a.stride, out_count = (size_t)s->tokens * a.out_stride;
	float *x, *weight = NULL, *in = check_floats(&d->check, count, true);
	u16 *halves = NULL;
	if (s->place == GATE_BF16) {
		float *rounded = device_bf16s(d, out_count, true, &halves);
		for (u32 t = 0; t < s->tokens; t++)
			memcpy(in + (size_t)t * a.stride, rounded + (size_t)t * a.out_stride, wide * sizeof(float));
	}
	x = device_upload(d, in, count * sizeof(float));
	ref.weight = s->options & GATE_WEIGHT ? device_floats(d, a.weights_apart ? wide : s->width, false, &weight) : NULL;
	a.weight = weight;
	a.gate = x + wide;
	a.x = s->place == GATE_BF16 ? NULL : x;
	a.out_bf16 = s->place == GATE_TO_BF16 ? device_alloc(d, out_count * sizeof(u16)) : halves;
	const u16 *before = a.out_bf16 ? device_download(d, a.out_bf16, out_count * sizeof(u16)) : NULL;
	device_arrives_late(d, x, count * sizeof(float));
	const char *problem = device_problem(d, d->ops.gate(&d->ctx, &a));
	const float *after = device_download(d, x, count * sizeof(float));
	if (!problem)
		problem = columns_kept(in, after, s->tokens, a.stride, 0, s->place == GATE_IN_PLACE ? wide : 0, sizeof(float));
	if (!problem && a.out_bf16)
		problem = columns_kept(before, device_download(d, a.out_bf16, out_count * sizeof(u16)), s->tokens, a.out_stride, 0, wide, sizeof(u16));
	const float *got = a.out_bf16 ? columns_of(d, device_download_bf16(d, a.out_bf16, out_count), s->tokens, a.out_stride, 0, wide)
				      : columns_of(d, after, s->tokens, a.stride, 0, wide);
	/* e^-x is 2 to the power of a rounded number: gates are a hundred at most */
	ref.x = in;
	ref.gate = in + wide;
	(void)d->ref.gate(&d->ref_ctx, &ref);
	if (!problem)
		problem = device_close(got, columns_of(d, in, s->tokens, a.stride, 0, wide), (size_t)s->tokens * wide, a.out_bf16 ? BF16 : 1.5e-5, 1e-16);
	device_case_end(d, problem, "gate tokens=%u groups=%u width=%u options=%u place=%u", s->tokens, s->groups, s->width, s->options, s->place);
}

static void gate_cases(struct device *d)
{
	static const u32 shapes[][2] = {{1, 1}, {3, 7}, {5, 16}, {1, 33}, {4, 128}, {3, 200}, {2, 516}, {2, 2052}, {1, 4100}, {1, 8196}, {1, 2500}};
	static const u32 tokens[] = {0, 1, 2, 5};
	u32 number = 0;
	for (u32 w = 0; w < COUNT_OF(shapes); w++)
		for (u32 options = 0; options < 16; options++)
			for (u32 place = 0; place < GATE_PLACES; place++)
				if (((options & GATE_WEIGHT) || !(options & (GATE_APART | GATE_FIRST))) && (w < 7 || (options + place) % 3 == w % 3))
					gate_case(d, &(struct gate_shape){tokens[number++ % (w < 7 ? 4 : 3)], shapes[w][0], shapes[w][1], options, place});
}

void device_recurrent(struct device *d)
{
	conv_cases(d);
	recurrence_cases(d);
	recurrence_refused_case(d);
	gate_cases(d);
}
