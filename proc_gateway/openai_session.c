/* Owns what a request says about sessions: which fields go together, and how new messages become a turn. Runs in the
 * gateway. Never knows a session: they are the scheduler's. */
#include "proc_gateway/openai_session.h"

#include <string.h>

#include "client/tercet.h"
#include "common/session.h"

bool openai_session_name_ok(const char *name)
{
	size_t bytes = strlen(name);
	return bytes > 0 && bytes <= SESSION_NAME_MAX && strspn(name, SESSION_NAME_ALLOWED) == bytes;
}

static bool refuse(struct api_error *e, const char *field, const char *why)
{
	return api_error_set(e, 400, field, NULL, "Field '%s': %s.", field, why);
}

/* Fields that say something about the whole prompt, of which the gateway has only a part. */
static bool check_others(const struct openai_fields *f, struct api_error *e)
{
	if (f->n != 1)
		return refuse(e, "n", "a session has one answer to each turn; with 'session_id' it must be 1");
	if (f->use_beam_search)
		return refuse(e, "use_beam_search", "it cannot be given together with 'session_id'");
	if (f->has_best_of && f->best_of != 1)
		return refuse(e, "best_of", "a session has one answer to each turn; with 'session_id' it must be 1");
	if (f->echo)
		return refuse(e, "echo", "the prompt of a session is not at hand to be repeated; leave it out");
	if (f->has_prompt_logprobs)
		return refuse(e, "prompt_logprobs", "it cannot be given together with 'session_id'");
	if (f->has_truncate_prompt_tokens)
		return refuse(e, "truncate_prompt_tokens",
			      "it cannot be given together with 'session_id'; 'session_step' shortens a session");
	if (f->chat_template && f->chat_template[0])
		return refuse(e, "chat_template", "it cannot be given together with 'session_id'");
	return true;
}

bool openai_session_check(const struct openai_request *r, struct api_error *e)
{
	const struct openai_fields *f = &r->fields;
	if (!f->session_id) {
		const char *alone = f->has_session_start ? "session_start"
				    : f->has_session_end ? "session_end"
				    : f->has_session_step ? "session_step"
							  : NULL;
		return !alone || refuse(e, alone, "it is given without 'session_id'");
	}
	if (!openai_session_name_ok(f->session_id))
		return api_error_field(e, "session_id", json_get(json_root(r->doc), "session_id"), "is not a name",
				       "1 to 64 letters, digits and \"._:-\"");
	if (f->session_start && f->has_session_step)
		return refuse(e, "session_step", "a session that begins has no tokens to go back to");
	return check_others(f, e);
}

bool openai_session_messages(struct openai_request *r, const struct openai_model *m, const struct chat_request *chat,
			     struct api_error *e)
{
	struct chat_turn turn = {0};
	struct err_msg em;
	u32 flags = r->fields.has_add_special_tokens && r->fields.add_special_tokens ? TEXT_ADD_SPECIAL : 0;
	bool ok = true;
	if (!m->chat_template)
		return api_error_set(e, 400, "messages", NULL,
				     "This model has no chat template: use /v1/completions, or start the server with "
				     "--chat-template FILE.");
	enum err err = chat_turn_render(m->chat_template, chat, &turn, &em);
	if (!err)
		err = chat_turn_encode(m->tokenizer, m->scratch, &turn, flags, &r->ids, &r->session_join, &em);
	if (!err)
		openai_thoughts_begin(r, chat, turn.text.data, turn.text.bytes);
	chat_turn_fini(&turn);
	if (err == ERR_NO_MEMORY)
		ok = api_error_set(e, 503, NULL, NULL, "There is no memory for the request.");
	else if (err == ERR_UNSUPPORTED)
		ok = api_error_set(e, 400, "session_id", "unsupported_parameter", "Field 'session_id': %s.", em.text);
	else if (err)
		ok = api_error_set(e, 400, "messages", NULL, "The chat template refused the messages: %s.", em.text);
	return ok;
}

void openai_session_again(struct openai_request *r, const struct openai_model *m, const struct chat_request *chat)
{
	static const char question[] = "[{\"role\": \"user\", \"content\": \"q\"}]";
	struct chat_request any = *chat;
	struct json_doc *doc = NULL;
	struct buf text = {0};
	struct err_msg em;
	if (!r->fields.has_session_step || chat->continue_final_message || !m->chat_template ||
	    json_parse(&doc, question, sizeof(question) - 1, NULL) != ERR_OK)
		return; /* an answer that goes on may stand anywhere */
	any.messages = json_root(doc);
	if (chat_template_render(m->chat_template, &any, &text, &em) == ERR_OK && buf_ok(&text))
		openai_thoughts_begin(r, &any, text.data, text.bytes);
	buf_fini(&text);
	json_free(&doc);
}
