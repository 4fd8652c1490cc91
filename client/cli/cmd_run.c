/* tercet run: one prompt, one reply, streamed to stdout. With its own engine as a child, or with a running one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/cli_session.h"
#include "common/json.h"

static const char adapter_name[] = "lora";

struct run {
	struct cli_session session;
	struct cli_sampling sampling;
	struct tercet_tokenizer *tokenizer;
	const char *prompt_ids; /* "1,2,3" */
	const char *prompt;
	const char *lora; /* folder of an adapter, or the name of one that a running engine has; NULL: none */
	bool stats;
	long long beam_width; /* 0: sampling */
	struct cli_grammar grammar;
	double length_penalty;
	struct buf stdin_text;
	struct u32_vec ids;
};

static void print_help(void)
{
	cli_print_usage("run");
	printf("\nWithout PROMPT the prompt is read from the standard input. MODEL is a directory; an engine is started "
	       "for it\nand ends with the command. With --run-dir a running engine is used, and MODEL gives the "
	       "tokenizer.\n\n"
	       "  --prompt-ids 1,2,3         the prompt as token ids\n"
	       "  --lora PATH                put a LoRA adapter beside the model; with --run-dir its name there\n"
	       "  --stats                    print a summary to stderr even if that is no terminal\n"
	       "  --beam-width N             print the best answer of a beam search with N beams (1 to 10) instead of a\n"
	       "                             sampled one; --length-penalty P (1) of its score\n" CLI_GRAMMAR_HELP CLI_SAMPLING_HELP
	       "\nOptions of the engine, as for \"tercet serve\":\n\n");
	options_help(stdout, NULL);
}

static enum err read_stdin(struct buf *out, struct err_msg *em)
{
	char part[4096];
	size_t n;
	if (isatty(STDIN_FILENO))
		return err_set(em, ERR_INVALID, "the prompt is missing: tercet run MODEL \"PROMPT\"");
	while ((n = fread(part, 1, sizeof(part), stdin)) > 0)
		buf_append(out, part, n);
	return buf_ok(out) ? ERR_OK : err_set(em, ERR_NO_MEMORY, "no memory for the prompt");
}

static enum err read_ids(const char *text, struct u32_vec *ids, struct err_msg *em)
{
	const char *at = text;
	for (;;) {
		char *end;
		errno = 0;
		unsigned long v = strtoul(at, &end, 10);
		if (end == at || *at == '-' || errno || v > UINT32_MAX || (*end && *end != ',' && *end != ' '))
			return err_set(em, ERR_INVALID,
				       "--prompt-ids is \"%.60s\": it must be token ids separated by commas", text);
		u32_vec_push(ids, (uint32_t)v);
		while (*end == ',' || *end == ' ')
			end++;
		if (!*end)
			return ids->failed ? err_set(em, ERR_NO_MEMORY, "no memory for the prompt") : ERR_OK;
		at = end;
	}
}

/* The engine that is started serves the folder under a name. */
static enum err name_adapter(struct run *r, struct err_msg *em)
{
	struct buf item = {0};
	struct json_writer w;
	json_begin(&w, &item);
	json_object_begin(&w);
	json_key(&w, "name");
	json_write_cstr(&w, adapter_name);
	json_key(&w, "path");
	json_write_cstr(&w, r->lora);
	json_object_end(&w);
	enum err e = buf_ok(&item) ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");
	if (e == ERR_OK)
		e = options_set(&r->session.options, "lora_modules", buf_cstr(&item), "--lora", em);
	if (e == ERR_OK)
		e = options_set(&r->session.options, "enable_lora", "true", "--lora", em);
	r->lora = adapter_name;
	buf_fini(&item);
	return e;
}

static enum err read_line(struct run *r, int argc, char **argv, struct err_msg *em)
{
	uint32_t words = 0;
	enum err e = cli_sampling_take(&r->sampling, &argc, argv, em);
	if (e == ERR_OK)
		e = cli_take_text(&argc, argv, "--prompt-ids", &r->prompt_ids, em);
	if (e == ERR_OK)
		e = cli_take_text(&argc, argv, "--lora", &r->lora, em);
	r->stats = cli_take_flag(&argc, argv, "--stats");
	r->length_penalty = 1;
	if (e == ERR_OK)
		e = cli_grammar_take(&r->grammar, &argc, argv, em);
	if (e == ERR_OK)
		e = cli_take_int(&argc, argv, "--beam-width", 1, 10, &r->beam_width, em);
	if (e == ERR_OK)
		e = cli_take_real(&argc, argv, "--length-penalty", -10, 10, &r->length_penalty, em);
	if (e == ERR_OK)
		e = options_read_words(&r->session.options, argc, argv, &r->prompt, 1, &words, em);
	if (e != ERR_OK)
		return e;
	if (!words)
		r->prompt = NULL;
	if (r->lora && !r->session.options.run_dir[0]) {
		e = name_adapter(r, em);
		if (e != ERR_OK)
			return e;
	}
	const char *model = r->session.options.model;
	if (!model[0] && !(r->prompt_ids && r->session.options.run_dir[0]))
		return err_set(em, ERR_INVALID, "the model is missing: tercet run MODEL \"PROMPT\"");
	if (r->prompt && r->prompt_ids)
		return err_set(em, ERR_INVALID, "both a prompt and --prompt-ids are given");
	if (r->prompt_ids)
		return read_ids(r->prompt_ids, &r->ids, em);
	if (r->prompt)
		buf_append_str(&r->stdin_text, r->prompt);
	else
		e = read_stdin(&r->stdin_text, em);
	return e;
}

/* What was given on the line stays, and is refused by the engine where it has no part in a search. */
static void make_search(const struct run *r, struct tercet_request *q)
{
	const struct cli_sampling *s = &r->sampling;
	q->params.beam_width = (uint32_t)r->beam_width;
	q->length_penalty = r->length_penalty;
	if (!s->have_temperature)
		q->params.temperature = 0;
	if (!s->have_top_p)
		q->params.top_p = 1;
	if (!s->have_top_k)
		q->params.top_k = 0;
	if (!s->have_min_p)
		q->params.min_p = 0;
	if (!s->have_repetition_penalty)
		q->params.repetition_penalty = 1;
}

static enum err build_request(struct run *r, struct tercet_request *q, struct err_msg *em)
{
	struct tercet_error *error = (struct tercet_error *)em;
	tercet_request_init(q);
	q->params = r->sampling.params;
	if (!r->sampling.have_seed)
		q->params.seed = cli_random_seed();
	if (r->beam_width)
		make_search(r, q);
	if (r->sampling.stop) {
		q->stop_strings = &r->sampling.stop;
		q->stop_string_count = 1;
	}
	cli_grammar_apply(&r->grammar, q);
	q->lora = r->lora;
	q->tokens = r->ids.data;
	q->token_count = (uint32_t)r->ids.count;
	if (r->prompt_ids)
		return ERR_OK;
	enum err e = (enum err)tercet_tokenizer_open(&r->tokenizer, r->session.options.model, error);
	if (e == ERR_OK)
		e = (enum err)tercet_tokenize(r->tokenizer, r->stdin_text.data ? r->stdin_text.data : "",
					      r->stdin_text.bytes, true, &q->tokens, &q->token_count, error);
	if (e == ERR_OK && !q->token_count)
		e = err_set(em, ERR_INVALID, "the prompt is empty");
	return e;
}

static int run(struct run *r, struct err_msg *em)
{
	struct tercet_request request;
	struct cli_reply reply = {0};
	enum err e = r->session.options.model[0] ? cli_open_model(&r->session.options, em) : ERR_OK;
	if (e == ERR_OK)
		e = cli_sampling_defaults(&r->sampling, &r->session.options, em);
	if (e == ERR_OK)
		e = build_request(r, &request, em); /* a bad prompt shows before anything is loaded */
	if (e == ERR_OK)
		e = cli_session_open(&r->session, "run", em);
	if (e == ERR_OK)
		e = cli_session_stream(&r->session, &request, r->sampling.ids_out, -1, &reply, em);
	if (reply.token_count)
		printf("\n");
	if (e == ERR_OK)
		cli_reply_summary(&reply, request.params.seed, r->stats);
	buf_fini(&reply.text);
	cli_session_close(&r->session);
	return e == ERR_OK ? CLI_OK : cli_fail(em);
}

int cmd_run(int argc, char **argv)
{
	struct run r = {0};
	struct err_msg em = {.text = ""};
	if (cli_help_wanted(argc, argv, NULL)) {
		print_help();
		return CLI_OK;
	}
	if (options_init(&r.session.options) != ERR_OK) {
		(void)err_set(&em, ERR_NO_MEMORY, "out of memory");
		return cli_fail(&em);
	}
	int status = read_line(&r, argc, argv, &em) == ERR_OK ? run(&r, &em) : cli_usage_error(&em);
	tercet_tokenizer_close(&r.tokenizer);
	u32_vec_fini(&r.ids);
	buf_fini(&r.stdin_text);
	buf_fini(&r.grammar.source);
	options_fini(&r.session.options);
	return status;
}
