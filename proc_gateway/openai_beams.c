/* Owns what beam search and best_of mean: how many samples or beams a prompt has, and which fields have no part in a
 * search. Runs in the gateway; never talks to the engine. */
#include <stdio.h>

#include "common/sampling_params.h"
#include "proc_gateway/openai_request.h"

static bool refuse(struct api_error *e, const char *field, const char *what)
{
	return api_error_set(e, 400, field, "unsupported_parameter", "Field '%s': %s.", field, what);
}

/* Without a search. */
static bool check_samples(const struct openai_fields *f, struct api_error *e)
{
	if (f->has_length_penalty && f->length_penalty != 1)
		return refuse(e, "length_penalty", "it is for beam search only; set 'use_beam_search' or leave it out");
	if (f->early_stopping)
		return refuse(e, "early_stopping", "it is for beam search only; set 'use_beam_search' or leave it out");
	if (f->has_best_of && f->best_of > f->n && f->stream)
		return refuse(e, "best_of",
			      "the best of several samples are known at their end only; with 'stream' it must equal 'n'");
	return true;
}

static bool check_neutral(const struct openai_fields *f, struct api_error *e)
{
	static const char what[] = "beam search follows the likeliest tokens and does not sample; it must be %g or left out";
	const struct {
		const char *name;
		bool given;
		double value, neutral;
	} fields[] = {
		{"temperature", f->has_temperature, f->temperature, 0},
		{"top_p", f->has_top_p, f->top_p, 1},
		{"top_k", f->has_top_k && f->top_k > 0, (double)f->top_k, 0},
		{"min_p", f->has_min_p, f->min_p, 0},
		{"repetition_penalty", f->has_repetition_penalty, f->repetition_penalty, 1},
		{"presence_penalty", f->has_presence_penalty, f->presence_penalty, 0},
		{"frequency_penalty", f->has_frequency_penalty, f->frequency_penalty, 0},
	};

	for (size_t i = 0; i < COUNT_OF(fields); i++) {
		char text[160];
		if (!fields[i].given || fields[i].value == fields[i].neutral)
			continue;
		snprintf(text, sizeof(text), what, fields[i].neutral);
		return refuse(e, fields[i].name, text);
	}
	return true;
}

static bool check_search(const struct openai_fields *f, struct api_error *e)
{
	i64 width = f->has_best_of ? f->best_of : f->n;
	const char *name = f->has_best_of ? "best_of" : "n";

	if (width > BEAM_WIDTH_MAX)
		return api_error_set(e, 400, name, NULL,
				     "Field '%s': %lld beams are too many; a beam search has at most %d.", name,
				     (long long)width, BEAM_WIDTH_MAX);
	if (f->has_stop && (json_type(f->stop) == JSON_STRING || json_count(f->stop) > 0))
		return refuse(e, "stop",
			      "beam search knows no stop strings, since text is made of its answers only; 'stop_token_ids' "
			      "end a beam");
	if ((f->has_max_tokens && f->max_tokens == 0) || (f->has_max_completion_tokens && f->max_completion_tokens == 0))
		return refuse(e, f->has_max_completion_tokens ? "max_completion_tokens" : "max_tokens",
			      "with beam search it must be at least 1");
	return check_neutral(f, e);
}

bool openai_beams_read(struct openai_request *r, struct api_error *e)
{
	const struct openai_fields *f = &r->fields;

	if (f->has_best_of && f->best_of < f->n)
		return api_error_set(e, 400, "best_of", NULL,
				     "Field 'best_of': %lld is less than the %lld answers that 'n' asks for; it must be at least "
				     "that many.",
				     (long long)f->best_of, (long long)f->n);
	r->n = (u32)f->n;
	r->samples = r->n;
	if (!f->use_beam_search) {
		r->samples = f->has_best_of ? (u32)f->best_of : r->n;
		return check_samples(f, e);
	}
	r->beam_width = f->has_best_of ? (u32)f->best_of : r->n;
	return check_search(f, e);
}

void openai_beams_apply(struct openai_request *r)
{
	struct tercet_params *p = &r->params;

	if ((r->beam_width || r->samples > r->n) && p->logprobs < 0)
		p->logprobs = 0; /* their sum decides, and is told */
	if (!r->beam_width)
		return;
	p->beam_width = r->beam_width;
	p->temperature = 0;
	p->top_p = 1;
	p->top_k = 0;
	p->min_p = 0;
	p->repetition_penalty = 1;
	if (r->fields.early_stopping)
		p->flags |= TERCET_EARLY_STOPPING;
}
