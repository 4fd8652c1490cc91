/* tercet chat: a conversation on the terminal, with an engine of its own or a running one. The engine keeps the
 * conversation's tokens and is sent only what is new. The turns are kept here, too: where the engine has no (longer a)
 * session, or the model's chat template cannot write a turn without those before it, the prompt is made of all of them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "client/cli/cli_session.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/session.h"
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
	u32 join;
	char session_name[48];
	bool whole;	    /* no sessions: every prompt is the whole conversation */
	bool begun;	    /* the engine has the conversation, */
	u32 session_tokens; /* of which so many tokens were seen here */
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

/* What comes next begins another one. */
static void end_session(struct chat *c)
{
	if (c->begun)
		tercet_session_end(c->session.client, c->session_name, 0, NULL, NULL, NULL);
	c->begun = false;
}

static void begin_anew(struct chat *c)
{
	end_session(c);
	forget_turns(c, 0, c->turn_count);
	if (c->system)
		add_turn(c, "system", c->system, strlen(c->system));
}

/* ---------------------------------------------------------------- prompt */

/* The turns from `first` on, as messages. */
static enum err write_messages(const struct chat *c, u32 first, struct json_doc **doc, struct err_msg *em)
{
	struct buf text = {0};
	struct json_writer w;
	json_begin(&w, &text);
	json_array_begin(&w);
	for (u32 i = first; i < c->turn_count; i++) {
		json_object_begin(&w);
		json_key(&w, "role");
		json_write_cstr(&w, c->turns[i].role);
		json_key(&w, "content");
		json_write_string(&w, c->turns[i].text.data ? c->turns[i].text.data : "", c->turns[i].text.bytes);
		json_object_end(&w);
	}
	json_array_end(&w);
	enum err e = json_parse(doc, buf_cstr(&text), text.bytes, em);
	buf_fini(&text);
	return e;
}

static struct chat_request request_of(const struct chat *c, json_val messages)
{
	return (struct chat_request){.messages = messages,
				     .add_generation_prompt = true,
				     .now_s = clock_wall_s(),
				     .bos_token = tokenizer_bos(c->tokenizer),
				     .eos_token = tokenizer_eos(c->tokenizer)};
}

static enum err render(struct chat *c, struct err_msg *em)
{
	struct json_doc *doc = NULL;
	enum err e = write_messages(c, 0, &doc, em);
	buf_clear(&c->prompt);
	if (e == ERR_OK) {
		struct chat_request request = request_of(c, json_root(doc));
		e = chat_template_render(c->template, &request, &c->prompt, em);
	}
	json_free(&doc);
	return e;
}

/* Only the last turn, behind those that the engine has. */
static enum err build_turn(struct chat *c, struct err_msg *em)
{
	struct json_doc *doc = NULL;
	struct chat_turn turn = {0};
	enum err e = write_messages(c, c->turn_count - 1, &doc, em);
	u32_vec_clear(&c->ids);
	if (e == ERR_OK) {
		struct chat_request request = request_of(c, json_root(doc));
		e = chat_turn_render(c->template, &request, &turn, em);
	}
	if (e == ERR_OK)
		e = chat_turn_encode(c->tokenizer, c->scratch, &turn, 0, &c->ids, &c->join, em);
	chat_turn_fini(&turn);
	json_free(&doc);
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

/* The new turn, or the whole conversation as the first turn of a session, or as a request of its own. */
static enum err build(struct chat *c, struct tercet_request *request, struct err_msg *em)
{
	enum err e = ERR_OK;
	c->join = 0;
	if (c->begun && build_turn(c, em) != ERR_OK) {
		end_session(c);
		c->whole = true;
	}
	if (!c->begun)
		e = build_prompt(c, em);
	request->tokens = c->ids.data;
	request->token_count = (u32)c->ids.count;
	if (c->whole || e != ERR_OK)
		return e;
	if (c->begun) {
		/* No token is kept that was not seen: an aborted reply may have had some more. */
		request->session_flags = TERCET_SESSION_STEP;
		request->session_step = c->session_tokens;
		request->session_join = c->join < SESSION_JOIN_MAX ? c->join : SESSION_JOIN_MAX;
	} else {
		snprintf(c->session_name, sizeof(c->session_name), "chat-%016llx%08llx",
			 (unsigned long long)tercet_client_id(c->session.client), (unsigned long long)cli_random_seed());
		request->session_flags = TERCET_SESSION_BEGIN;
	}
	request->session = c->session_name;
	return ERR_OK;
}

/* Whether a refusal is one of the session, so that the whole conversation may do. */
static bool try_whole(struct chat *c, const struct tercet_request *request, const struct cli_reply *reply, enum err e)
{
	bool of_session = e == ERR_NOT_FOUND || e == ERR_DROPPED || e == ERR_CONFLICT || e == ERR_UNSUPPORTED ||
			  e == ERR_INVALID || e == ERR_TOO_LONG;
	if (!request->session || !of_session || reply->token_count)
		return false;
	if (!c->begun)
		c->whole = true;
	end_session(c);
	return true;
}

static enum err reply(struct chat *c, struct err_msg *em)
{
	struct tercet_request request;
	struct cli_reply reply = {0};
	sigset_t set, old;
	tercet_request_init(&request);
	enum err e = build(c, &request, em);
	if (e != ERR_OK)
		return e;
	request.params = c->sampling.params;
	if (!c->sampling.have_seed)
		request.params.seed = cli_random_seed();
	if (c->sampling.stop) {
		request.stop_strings = &c->sampling.stop;
		request.stop_string_count = 1;
	}
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, &old);
	int signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	e = cli_session_stream(&c->session, &request, c->sampling.ids_out, signal_fd, &reply, em);
	while (e != ERR_OK && try_whole(c, &request, &reply, e)) {
		request.session = NULL;
		request.session_flags = request.session_step = request.session_join = 0;
		e = build(c, &request, em);
		if (e == ERR_OK)
			e = cli_session_stream(&c->session, &request, c->sampling.ids_out, signal_fd, &reply, em);
	}
	if (signal_fd >= 0)
		close(signal_fd);
	sigprocmask(SIG_SETMASK, &old, NULL);
	printf("\n");
	fflush(stdout);
	if (e == ERR_OK) {
		if (request.session && reply.token_count) {
			c->begun = true;
			c->session_tokens = reply.prompt_count + reply.token_count;
		}
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
	enum err e = cli_open_model(&c->session.options, em);
	if (e != ERR_OK)
		return e;
	const char *model = c->session.options.model;
	e = chat_template_load(&c->template, model, c->session.options.chat_template, em);
	if (e == ERR_NOT_FOUND)
		return err_set(em, e, "the model in %s has no chat template: give one with --chat-template FILE, or use "
			       "tercet run", model);
	if (e == ERR_OK)
		e = tokenizer_load(&c->tokenizer, model, em);
	if (e == ERR_OK && text_scratch_create(&c->scratch) != ERR_OK)
		e = err_set(em, ERR_NO_MEMORY, "no memory for the tokenizer");
	return e == ERR_OK ? cli_sampling_defaults(&c->sampling, &c->session.options, em) : e;
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
		if (c->session.client)
			end_session(c);
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
