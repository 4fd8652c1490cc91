/* tercet chat: a conversation on the terminal, with an engine of its own or a running one. Owns the turns; the prompt
 * of each is made of all of them by the model's chat template. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "client/cli/cli_session.h"
#include "common/clock.h"
#include "common/json.h"
#include "text/text.h"

enum { TURNS_MAX = 1024, REPLY_ROOM = 16 };

struct turn {
	const char *role;
	struct buf text;
};

struct chat {
	struct cli_session session;
	struct cli_sampling sampling;
	const char *system; /* NULL: none */
	struct tokenizer *tokenizer;
	struct text_scratch *scratch;
	struct chat_template *template;
	struct turn turns[TURNS_MAX];
	u32 turn_count;
	struct buf prompt;
	struct u32_vec ids;
	bool interactive;
};

static void print_help(void)
{
	cli_print_usage("chat");
	printf("\nMODEL is a directory; an engine is started for it and ends with the command. With --run-dir a running "
	       "engine is\nused. Ctrl-C ends a reply, at the prompt the command.\n\n"
	       "  --system TEXT              begin with this system message\n" CLI_SAMPLING_HELP
	       "\nOptions of the engine, as for \"tercet serve\":\n\n");
	options_help(stdout, NULL);
}

/* ---------------------------------------------------------------- turns */

static void forget_turns(struct chat *c, u32 first, u32 count)
{
	for (u32 i = first; i < first + count; i++)
		buf_fini(&c->turns[i].text);
	memmove(&c->turns[first], &c->turns[first + count], (c->turn_count - first - count) * sizeof(c->turns[0]));
	c->turn_count -= count;
}

static void add_turn(struct chat *c, const char *role, const char *text, size_t bytes)
{
	if (c->turn_count == TURNS_MAX)
		forget_turns(c, c->system ? 1 : 0, 2);
	struct turn *t = &c->turns[c->turn_count++];
	*t = (struct turn){.role = role};
	buf_append(&t->text, text, bytes);
}

static void begin_anew(struct chat *c)
{
	forget_turns(c, 0, c->turn_count);
	if (c->system)
		add_turn(c, "system", c->system, strlen(c->system));
}

/* ---------------------------------------------------------------- prompt */

static enum err render(struct chat *c, struct err_msg *em)
{
	struct buf text = {0};
	struct json_writer w;
	struct json_doc *doc = NULL;
	json_begin(&w, &text);
	json_array_begin(&w);
	for (u32 i = 0; i < c->turn_count; i++) {
		json_object_begin(&w);
		json_key(&w, "role");
		json_write_cstr(&w, c->turns[i].role);
		json_key(&w, "content");
		json_write_string(&w, c->turns[i].text.data ? c->turns[i].text.data : "", c->turns[i].text.bytes);
		json_object_end(&w);
	}
	json_array_end(&w);
	enum err e = json_parse(&doc, buf_cstr(&text), text.bytes, em);
	struct chat_request request = {.add_generation_prompt = true,
				       .now_s = clock_wall_s(),
				       .bos_token = tokenizer_bos(c->tokenizer),
				       .eos_token = tokenizer_eos(c->tokenizer)};
	buf_clear(&c->prompt);
	if (e == ERR_OK) {
		request.messages = json_root(doc);
		e = chat_template_render(c->template, &request, &c->prompt, em);
	}
	json_free(&doc);
	buf_fini(&text);
	return e;
}

/* The prompt of all turns. Where they have outgrown the context the oldest are left out, two at a time. */
static enum err build_prompt(struct chat *c, struct err_msg *em)
{
	struct tercet_engine engine;
	bool left_out = false;
	u32 keep = c->system ? 1 : 0;
	for (;;) {
		enum err e = render(c, em);
		u32_vec_clear(&c->ids);
		if (e == ERR_OK)
			e = tokenizer_encode(c->tokenizer, c->scratch, buf_cstr(&c->prompt), c->prompt.bytes, 0, &c->ids,
					     em);
		if (e != ERR_OK)
			return e;
		bool fits = !tercet_get_engine(c->session.client, &engine) ||
			    c->ids.count + REPLY_ROOM <= engine.max_model_len;
		if (fits || c->turn_count < keep + 3)
			break;
		forget_turns(c, keep, 2);
		left_out = true;
	}
	if (left_out)
		fprintf(stderr, "[the context is full: the oldest turns are left out]\n");
	return ERR_OK;
}

/* ---------------------------------------------------------------- replies */

static enum err reply(struct chat *c, struct err_msg *em)
{
	struct tercet_request request;
	struct cli_reply reply = {0};
	sigset_t set, old;
	enum err e = build_prompt(c, em);
	if (e != ERR_OK)
		return e;
	tercet_request_init(&request);
	request.params = c->sampling.params;
	if (!c->sampling.have_seed)
		request.params.seed = cli_random_seed();
	if (c->sampling.stop) {
		request.stop_strings = &c->sampling.stop;
		request.stop_string_count = 1;
	}
	request.tokens = c->ids.data;
	request.token_count = (u32)c->ids.count;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, &old);
	int signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	e = cli_session_stream(&c->session, &request, c->sampling.ids_out, signal_fd, &reply, em);
	if (signal_fd >= 0)
		close(signal_fd);
	sigprocmask(SIG_SETMASK, &old, NULL);
	printf("\n");
	fflush(stdout);
	if (e == ERR_OK) {
		add_turn(c, "assistant", reply.text.data, reply.text.bytes);
		if (c->interactive)
			cli_reply_summary(&reply, request.params.seed, false);
	}
	buf_fini(&reply.text);
	return e;
}

/* ---------------------------------------------------------------- the conversation */

/* False: the user wants to leave. */
static bool take_command(struct chat *c, const char *line)
{
	if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0)
		return false;
	if (strcmp(line, "/reset") == 0) {
		begin_anew(c);
		fprintf(stderr, "[a new conversation]\n");
	} else {
		fprintf(stderr, "/reset begins a new conversation, /exit ends; Ctrl-C ends a reply.\n");
	}
	return true;
}

static enum err converse(struct chat *c, struct err_msg *em)
{
	char *line = NULL;
	size_t capacity = 0;
	ssize_t n;
	enum err e = ERR_OK;
	c->interactive = isatty(STDIN_FILENO);
	if (c->interactive)
		fprintf(stderr, "/reset begins a new conversation, /exit ends; Ctrl-C ends a reply.\n");
	begin_anew(c);
	for (;;) {
		if (c->interactive)
			fprintf(stderr, "\n> ");
		n = getline(&line, &capacity, stdin);
		if (n < 0) {
			if (c->interactive)
				fprintf(stderr, "\n");
			break;
		}
		while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
			line[--n] = '\0';
		if (n == 0)
			continue;
		if (line[0] == '/' && c->interactive) {
			if (!take_command(c, line))
				break;
			continue;
		}
		add_turn(c, "user", line, (size_t)n);
		e = reply(c, em);
		if (e == ERR_OK)
			continue;
		if (!c->interactive || e == ERR_GONE)
			break;
		cli_fail(em); /* of this turn only */
		forget_turns(c, c->turn_count - 1, 1);
		e = ERR_OK;
	}
	free(line);
	return e;
}

static enum err load_model(struct chat *c, struct err_msg *em)
{
	const char *model = c->session.options.model;
	enum err e = cli_check_model(model, em);
	if (e != ERR_OK)
		return e;
	e = chat_template_load(&c->template, model, c->session.options.chat_template, em);
	if (e == ERR_NOT_FOUND)
		return err_set(em, e, "the model in %s has no chat template: give one with --chat-template FILE, or use "
			       "tercet run", model);
	if (e == ERR_OK)
		e = tokenizer_load(&c->tokenizer, model, em);
	if (e == ERR_OK && text_scratch_create(&c->scratch) != ERR_OK)
		e = err_set(em, ERR_NO_MEMORY, "no memory for the tokenizer");
	if (e == ERR_OK && c->session.options.generation_config == OPTION_GENERATION_AUTO)
		cli_sampling_from_model(&c->sampling, model);
	return e;
}

static enum err read_line(struct chat *c, int argc, char **argv, struct err_msg *em)
{
	enum err e = cli_sampling_take(&c->sampling, &argc, argv, em);
	if (e == ERR_OK)
		e = cli_take_text(&argc, argv, "--system", &c->system, em);
	if (e == ERR_OK)
		e = options_read_args(&c->session.options, argc, argv, em);
	if (e == ERR_OK && !c->session.options.model[0])
		e = err_set(em, ERR_INVALID, "the model is missing: tercet chat MODEL");
	return e;
}

int cmd_chat(int argc, char **argv)
{
	struct err_msg em = {.text = ""};
	if (cli_help_wanted(argc, argv, NULL)) {
		print_help();
		return CLI_OK;
	}
	struct chat *c = calloc(1, sizeof(*c));
	if (!c || options_init(&c->session.options) != ERR_OK) {
		free(c);
		(void)err_set(&em, ERR_NO_MEMORY, "out of memory");
		return cli_fail(&em);
	}
	int status = CLI_OK;
	if (read_line(c, argc, argv, &em) != ERR_OK) {
		status = cli_usage_error(&em);
	} else {
		enum err e = load_model(c, &em);
		if (e == ERR_OK)
			e = cli_session_open(&c->session, "chat", &em);
		if (e == ERR_OK)
			e = converse(c, &em);
		if (e != ERR_OK)
			status = cli_fail(&em);
		cli_session_close(&c->session);
	}
	forget_turns(c, 0, c->turn_count);
	chat_template_free(&c->template);
	tokenizer_free(&c->tokenizer);
	text_scratch_free(&c->scratch);
	buf_fini(&c->prompt);
	u32_vec_fini(&c->ids);
	options_fini(&c->session.options);
	free(c);
	return status;
}
