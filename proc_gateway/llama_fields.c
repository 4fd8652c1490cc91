/* Owns what llama-server's sampling parameters become: which samplers are on, what each is called in a completion's body,
 * and which are not here. Runs in the gateway; never looks at prompts. */
#include <stdio.h>
#include <string.h>

#include "proc_gateway/llama.h"

enum sampler {
	PENALTIES = 1 << 0,
	DRY = 1 << 1,
	TOP_K = 1 << 2,
	TYP_P = 1 << 3,
	TOP_P = 1 << 4,
	MIN_P = 1 << 5,
	XTC = 1 << 6,
	TEMPERATURE = 1 << 7,
	TOP_N_SIGMA = 1 << 8,
	INFILL = 1 << 9,
	ADAPTIVE_P = 1 << 10,
	ALWAYS = 1 << 11, /* no sampler of its own */
	ALL = (1 << 12) - 1
};

static const struct {
	const char *name;
	char letter;
	u32 bit;
} samplers[] = {
	{"penalties", 'e', PENALTIES}, {"dry", 'd', DRY}, {"top_k", 'k', TOP_K}, {"top-k", 0, TOP_K}, {"typ_p", 'y', TYP_P},
	{"typical_p", 0, TYP_P}, {"typical", 0, TYP_P}, {"top_p", 'p', TOP_P}, {"top-p", 0, TOP_P}, {"min_p", 'm', MIN_P},
	{"min-p", 0, MIN_P}, {"xtc", 'x', XTC}, {"temperature", 't', TEMPERATURE}, {"temp", 0, TEMPERATURE},
	{"top_n_sigma", 's', TOP_N_SIGMA}, {"tfs_z", 0, 0}, {"infill", 'i', INFILL}, {"adaptive_p", 'a', ADAPTIVE_P},
};

/* Those that are not here: off from `least` to `most`, or where their sampler is not among those of the request. */
static const struct {
	const char *name;
	u32 sampler;
	f64 least, most, neutral;
} refused[] = {
	{"typical_p", TYP_P, 1, 1e300, 1},
	{"top_n_sigma", TOP_N_SIGMA, -1e300, 0, -1},
	{"dynatemp_range", TEMPERATURE, -1e300, 0, 0},
	{"xtc_probability", XTC, -1e300, 0, 0},
	{"dry_multiplier", DRY, -1e300, 0, 0},
	{"mirostat", ALWAYS, 0, 0, 0},
	{"adaptive_target", ADAPTIVE_P, -1e300, -1e-300, -1},
	{"min_keep", ALWAYS, -1e300, 1, 0},
	{"reasoning_budget_tokens", ALWAYS, -1e300, -1, -1},
};

bool llama_number(json_val root, const char *name, f64 fallback, f64 *out, struct api_error *e)
{
	json_val v = json_get(root, name);
	*out = fallback;
	return !json_present(v) || json_double(v, out) || api_error_field(e, name, v, "is not a number", "a number");
}

bool llama_integer(json_val root, const char *name, i64 fallback, i64 *out, struct api_error *e)
{
	f64 value;
	if (!llama_number(root, name, (f64)fallback, &value, e))
		return false;
	if (!(value >= -9e15 && value <= 9e15) || value != (f64)(i64)value)
		return api_error_field(e, name, json_get(root, name), "is not an integer in range", "an integer");
	*out = (i64)value;
	return true;
}

static bool add_sampler(u32 *on, json_val v, const char *name, size_t bytes, bool letter, struct api_error *e)
{
	for (size_t i = 0; i < COUNT_OF(samplers); i++) {
		if (letter ? samplers[i].letter && *name == samplers[i].letter
			   : strlen(samplers[i].name) == bytes && memcmp(samplers[i].name, name, bytes) == 0) {
			*on |= samplers[i].bit;
			return true;
		}
	}
	return api_error_field(e, "samplers", v, "has a sampler that is not known",
			       "a list of \"penalties\", \"dry\", \"top_n_sigma\", \"top_k\", \"typ_p\", \"top_p\", \"min_p\", \"xtc\", "
			       "\"temperature\", \"infill\" and \"adaptive_p\", or a string of their letters");
}

/* A list of names, or a string of letters. */
static bool read_samplers(json_val root, u32 *on, struct api_error *e)
{
	json_val v = json_get(root, "samplers");
	const char *text;
	size_t bytes;
	*on = ALL;
	if (!json_present(v))
		return true;
	*on = ALWAYS;
	if (json_string(v, &text, &bytes)) {
		for (size_t i = 0; i < bytes; i++)
			if (!add_sampler(on, v, text + i, 1, true, e))
				return false;
		return true;
	}
	if (json_type(v) != JSON_ARRAY)
		return api_error_field(e, "samplers", v, "is no list", "a list of names of samplers");
	for (struct json_iter it = json_iterate(v); json_next(&it);) {
		if (!json_string(it.value, &text, &bytes))
			return api_error_field(e, "samplers", it.value, "is no name of a sampler", "a list of strings");
		if (!add_sampler(on, v, text, bytes, false, e))
			return false;
	}
	return true;
}

static bool check_refused(json_val root, u32 on, struct api_error *e)
{
	f64 threshold;
	if (!llama_number(root, "xtc_threshold", 0.1, &threshold, e))
		return false;
	if (threshold > 0.5)
		on &= ~(u32)XTC;
	for (size_t i = 0; i < COUNT_OF(refused); i++) {
		f64 value;
		if (!llama_number(root, refused[i].name, refused[i].neutral, &value, e))
			return false;
		if (on & refused[i].sampler && !(value >= refused[i].least && value <= refused[i].most))
			return api_error_set(e, 400, refused[i].name, "unsupported_parameter",
					     "Field '%s' is not supported by this server; leave it out or set it to %g.", refused[i].name,
					     refused[i].neutral);
	}
	return true;
}

/* Penalties are for all that stands before: a window of them is not here. */
static bool write_penalties(struct json_writer *w, json_val root, u32 on, const struct openai_model *m, struct api_error *e)
{
	f64 repeat, presence, frequency;
	i64 last;
	if (!llama_number(root, "repeat_penalty", m->defaults.repetition_penalty, &repeat, e) ||
	    !llama_number(root, "presence_penalty", 0, &presence, e) || !llama_number(root, "frequency_penalty", 0, &frequency, e) ||
	    !llama_integer(root, "repeat_last_n", -1, &last, e))
		return false;
	if (!(on & PENALTIES) || last == 0) {
		repeat = 1;
		presence = frequency = 0;
	}
	if (last < -1)
		return api_error_field(e, "repeat_last_n", json_get(root, "repeat_last_n"), "is out of range", "an integer of at least -1");
	if (last > 0 && last < (i64)m->max_model_len && (repeat != 1 || presence != 0 || frequency != 0))
		return api_error_set(e, 400, "repeat_last_n", "unsupported_parameter",
				     "Field 'repeat_last_n': penalties of this server look at all tokens, not at the last %lld; set it to -1, or "
				     "'repeat_penalty' to 1 and the other penalties to 0.",
				     (long long)last);
	json_key(w, "repetition_penalty");
	json_write_double(w, repeat);
	json_key(w, "presence_penalty");
	json_write_double(w, presence);
	json_key(w, "frequency_penalty");
	json_write_double(w, frequency);
	return true;
}

void llama_defaults(const struct openai_model *m, struct generation_config *out)
{
	*out = m->defaults;
	if (out->temperature != 1 || out->top_p != 1 || out->min_p != 0 || out->top_k != 0)
		return;
	out->temperature = 0.8;
	out->top_k = 40;
	out->top_p = 0.95;
	out->min_p = 0.05;
}

bool llama_sampling_write(struct json_writer *w, json_val root, const struct openai_model *m, struct api_error *e)
{
	struct generation_config d;
	f64 temperature, top_p, min_p;
	i64 top_k;
	u32 on;
	llama_defaults(m, &d);
	if (!read_samplers(root, &on, e) || !check_refused(root, on, e) ||
	    !llama_number(root, "temperature", d.temperature, &temperature, e) || !llama_number(root, "top_p", d.top_p, &top_p, e) ||
	    !llama_number(root, "min_p", d.min_p, &min_p, e) || !llama_integer(root, "top_k", d.top_k, &top_k, e) ||
	    !write_penalties(w, root, on, m, e))
		return false;
	json_key(w, "temperature");
	json_write_double(w, !(on & TEMPERATURE) ? 1 : temperature < 0 ? 0 : temperature);
	json_key(w, "top_p");
	json_write_double(w, !(on & TOP_P) || top_p > 1 ? 1 : top_p == 0 ? 1e-6 : top_p);
	json_key(w, "min_p");
	json_write_double(w, !(on & MIN_P) || min_p < 0 ? 0 : min_p);
	json_key(w, "top_k");
	json_write_int(w, !(on & TOP_K) || top_k < 0 ? 0 : top_k > 0x7fffffff ? 0x7fffffff : top_k);
	return true;
}
