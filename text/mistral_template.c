/* Owns the chat template of Mistral's models that come with tekken.json, or tokenizer.model.v3 and the like, and without a template: what mistral-common
 * makes of a conversation, by the version that the file or its name says. Runs while a model loads.
 *
 * Neighbours of the same role are one message, two line breaks between them; tools stand in front of the last user's
 * message, since version 13 of the first one's; system prompts up to version 3 belong to the last user's message. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text/mistral_template_priv.h"

enum { PATH_BYTES_MAX = 4096 };

/* How many messages there are of whom, and what several of them need. */
static const char parts[] =
	"{%- set ns = namespace(role='', system='', first=-1, last=-1, ids=[], text='', run=false, listed=false, calls=[]) -%}"
	"{%- macro string_of(message) -%}"
	  "{%- if message.content is string -%}"
	    "{{- message.content -}}"
	  "{%- elif message.content -%}"
	    "{%- for part in message.content -%}"
	      "{%- if part.type != 'text' -%}"
	        "{{- raise_exception('A message has content of type \"' + part.type | string + '\"; this model reads text') -}}"
	      "{%- endif -%}"
	    "{%- endfor -%}"
	    "{{- message.content | map(attribute='text') | select | join(parts_join) -}}"
	  "{%- endif -%}"
	"{%- endmacro -%}"
	"{%- for message in messages -%}"
	  "{%- if message.role == 'user' and ns.role != 'user' -%}"
	    "{%- set ns.last = loop.index0 -%}"
	    "{%- if ns.first < 0 -%}{%- set ns.first = loop.index0 -%}{%- endif -%}"
	  "{%- elif message.role in ['system', 'developer'] and version < 7 and string_of(message) -%}"
	    "{%- set ns.system = ns.system + ('\\n\\n' if ns.system else '') + string_of(message) -%}"
	  "{%- endif -%}"
	  "{%- set ns.role = message.role -%}"
	"{%- endfor -%}"
	"{%- macro available() -%}"
	  "{%- if tools -%}"
	    "{{- '[AVAILABLE_TOOLS][' -}}"
	    "{%- for tool in tools -%}"
	      "{{- '{\"type\": \"function\", \"function\": {\"name\": ' + tool.function.name | tojson -}}"
	      "{{- ', \"description\": ' + (tool.function.description or '') | tojson -}}"
	      "{{- ', \"parameters\": ' + (tool.function.parameters or {}) | tojson + '}}' -}}"
	      "{{- ', ' if not loop.last -}}"
	    "{%- endfor -%}"
	    "{{- '][/AVAILABLE_TOOLS]' -}}"
	  "{%- endif -%}"
	  "{%- if efforts -%}"
	    "{%- set chosen = reasoning_effort | default(effort, true) -%}"
	    "{%- if chosen not in efforts -%}"
	      "{{- raise_exception('reasoning_effort is \"' + chosen | string + '\"; this model knows ' + efforts | join(', ')) -}}"
	    "{%- endif -%}"
	    "{{- '[MODEL_SETTINGS]' + {'reasoning_effort': chosen} | tojson + '[/MODEL_SETTINGS]' -}}"
	  "{%- endif -%}"
	"{%- endmacro -%}"
	"{%- macro result_of(message) -%}"
	  "{{- '[TOOL_RESULTS]' -}}"
	  "{%- if version < 13 -%}{{- (message.tool_call_id or '') | string + '[TOOL_CONTENT]' -}}{%- endif -%}"
	  "{{- string_of(message) + '[/TOOL_RESULTS]' -}}"
	"{%- endmacro -%}"
	"{{- bos_token -}}"
	"{%- set spoken = messages | rejectattr('role', 'in', ['system', 'developer']) | list -%}"
	"{%- if not messages or (version < 7 and (not spoken or spoken[0].role != 'user')) -%}"
	  "{%- if ns.first < 0 -%}{{- available() -}}{%- endif -%}"
	  "{{- '[INST]' + (ns.system + '\\n\\n' if ns.system and ns.first < 0 else '') + '[/INST]' -}}"
	"{%- endif -%}";

/* The messages, one behind the other. Calls belong behind all text of their message, results in the calls' order. */
static const char walk[] =
	"{%- set ns.role = '' -%}"
	"{%- for message in messages -%}"
	  "{%- set follows = loop.nextitem.role if not loop.last else '' -%}"
	  "{%- set begins = message.role != ns.role -%}"
	  "{%- set ns.role = message.role -%}"
	  "{%- if message.role == 'user' -%}"
	    "{%- set text = string_of(message) -%}"
	    "{%- if begins -%}"
	      "{%- if loop.index0 == (ns.first if version >= 13 else ns.last) -%}{{- available() -}}{%- endif -%}"
	      "{{- '[INST]' -}}"
	      "{%- if ns.system and loop.index0 == ns.last -%}{{- ns.system + '\\n\\n' -}}{%- endif -%}"
	    "{%- elif text and ns.run -%}"
	      "{{- '\\n\\n' -}}"
	    "{%- endif -%}"
	    "{%- set ns.run = text != '' or (ns.run and not begins) -%}"
	    "{{- text -}}"
	    "{%- if follows != 'user' -%}{{- '[/INST]' -}}{%- endif -%}"
	  "{%- elif message.role == 'assistant' -%}"
	    "{%- if begins -%}"
	      "{%- set ns.text = '' -%}"
	      "{%- set ns.run = false -%}"
	      "{%- set ns.listed = false -%}"
	      "{%- set ns.calls = [] -%}"
	    "{%- endif -%}"
	    "{%- set thought = message.reasoning_content | default(message.reasoning, true) -%}"
	    "{%- if thought and think -%}"
	      "{%- set ns.text = ns.text + '[THINK]' + thought + '[/THINK]' -%}"
	      "{%- set ns.run = false -%}"
	      "{%- set ns.listed = true -%}"
	    "{%- endif -%}"
	    "{%- set text = string_of(message) -%}"
	    "{%- if text -%}"
	      "{%- set ns.text = ns.text + ('\\n\\n' if ns.run else '') + text -%}"
	      "{%- set ns.run = true -%}"
	    "{%- endif -%}"
	    "{%- set ns.calls = ns.calls + (message.tool_calls or []) | list -%}"
	    "{%- if follows != 'assistant' -%}"
	      "{{- ns.text if ns.listed else ns.text.rstrip(' ') -}}"
	      "{%- set ns.ids = ns.calls | map(attribute='id') | select('string') | unique(true) | list -%}"
	      "{%- if ns.calls and version < 11 -%}{{- '[TOOL_CALLS][' -}}{%- endif -%}"
	      "{%- for call in ns.calls -%}"
	        "{%- set arguments = (call.function.arguments or {}) | tojson -%}"
	        "{%- set named = call.id and call.id != 'null' -%}"
	        "{%- if version < 11 -%}"
	          "{{- '{\"name\": ' + call.function.name | tojson + ', \"arguments\": ' + arguments -}}"
	          "{{- ', \"id\": ' + call.id | tojson if named -}}"
	          "{{- '}' + (']' if loop.last else ', ') -}}"
	        "{%- else -%}"
	          "{{- '[TOOL_CALLS]' + call.function.name -}}"
	          "{{- '[CALL_ID]' + call.id if named and version < 13 -}}"
	          "{{- '[ARGS]' + arguments -}}"
	        "{%- endif -%}"
	      "{%- endfor -%}"
	      "{{- eos_token -}}"
	    "{%- endif -%}"
	  "{%- elif message.role == 'tool' and version >= 11 -%}"
	    "{%- set ns.calls = ([] if begins else ns.calls) + [message] -%}"
	    "{%- if follows != 'tool' -%}"
	      "{%- for id in ns.ids -%}"
	        "{%- for result in ns.calls -%}"
	          "{%- if result.tool_call_id == id -%}{{- result_of(result) -}}{%- endif -%}"
	        "{%- endfor -%}"
	      "{%- endfor -%}"
	      "{%- for result in ns.calls -%}"
	        "{%- if result.tool_call_id not in ns.ids -%}{{- result_of(result) -}}{%- endif -%}"
	      "{%- endfor -%}"
	      "{%- set ns.ids = [] -%}"
	    "{%- endif -%}"
	  "{%- elif message.role == 'tool' -%}"
	    "{%- set text = string_of(message) -%}"
	    "{%- if version < 7 -%}"
	      "{%- set quoted = text | length > 1 and text[0] == '\"' and text[-1] == '\"' -%}"
	      "{%- set number = text and text[0] in '-0123456789' and (text | float(0) | string == text or text | int(0) | string == text) -%}"
	      "{%- set json = not text or text[0] + text[-1] in ['{}', '[]'] or text in ['true', 'false', 'null'] or quoted or number -%}"
	      "{{- '[TOOL_RESULTS]{\"content\": ' + (text or '{}' if json else text | tojson) -}}"
	      "{{- ', \"call_id\": ' + message.tool_call_id | tojson + '}[/TOOL_RESULTS]' -}}"
	    "{%- else -%}"
	      "{{- result_of(message) -}}"
	    "{%- endif -%}"
	  "{%- elif message.role in ['system', 'developer'] -%}"
	    "{%- if version >= 7 -%}{{- '[SYSTEM_PROMPT]' + string_of(message) + '[/SYSTEM_PROMPT]' -}}{%- endif -%}"
	  "{%- else -%}"
	    "{{- raise_exception('A message has the role \"' + message.role | string + '\"; this model knows system, user, assistant and tool') -}}"
	  "{%- endif -%}"
	"{%- endfor -%}";

/* The versions whose conversations are known; what later ones change cannot be. */
static bool read_version(json_val config, unsigned *version)
{
	static const struct {
		const char *name;
		unsigned version;
	} known[] = {{"v3", 3}, {"v7", 7}, {"v11", 11}, {"v13", 13}, {"v15", 15}};
	for (size_t i = 0; i < COUNT_OF(known); i++)
		if (json_string_equals(json_get(config, "version"), known[i].name)) {
			*version = known[i].version;
			return true;
		}
	return false;
}

static bool has_token(json_val tokens, const char *name)
{
	for (struct json_iter it = json_iterate(tokens); json_next(&it);)
		if (json_string_equals(json_get(it.value, "token_str"), name))
			return true;
	return false;
}

static void put_string(struct buf *out, json_val v)
{
	const char *text = "";
	size_t bytes = 0;
	(void)json_string(v, &text, &bytes);
	json_escape(out, text, bytes);
}

/* What the template asks of the file: which version, whether it has thoughts, and which efforts a request may name. */
static void write_settings(struct buf *out, json_val root, unsigned version, const char *between_parts)
{
	json_val effort = json_get(json_get(root, "model_settings_builder"), "reasoning_effort");
	bool first = true;
	buf_printf(out, "{%%- set version = %u -%%}{%%- set think = %s -%%}{%%- set parts_join = ", version,
		   has_token(json_get(root, "special_tokens"), "[THINK]") && version >= 13 ? "true" : "false");
	json_escape(out, between_parts, strlen(between_parts));
	buf_append_str(out, " -%}{%- set efforts = [");
	for (struct json_iter it = json_iterate(json_get(effort, "values")); version >= 15 && json_next(&it); first = false) {
		buf_append_str(out, first ? "" : ", ");
		put_string(out, it.value);
	}
	buf_append_str(out, "] -%}{%- set effort = ");
	put_string(out, json_get(effort, "default"));
	buf_append_str(out, " -%}");
}

/* Files whose names say the version, in the order in which they are taken for the tokenizer; 0: its chats are not known. */
static const struct {
	const char *name;
	unsigned version;
} versioned[] = {{"tokenizer.model.v7m1", 7}, {"tokenizer.model.v7", 7}, {"tokenizer.model.v3", 3}, {"tokenizer.model.v2", 0}, {"tokenizer.model.v1", 0}};

static bool has_file(const char *model_dir, const char *name)
{
	char path[PATH_BYTES_MAX];
	snprintf(path, sizeof(path), "%s/%s", model_dir, name);
	return access(path, F_OK) == 0;
}

/* Which of them it has; COUNT_OF(versioned): none. */
static size_t find_versioned(const char *model_dir)
{
	size_t i = 0;
	while (i < COUNT_OF(versioned) && !has_file(model_dir, versioned[i].name))
		i++;
	return i;
}

bool mistral_template_is_wanted(const char *model_dir)
{
	return (has_file(model_dir, "tekken.json") || find_versioned(model_dir) < COUNT_OF(versioned)) && !has_file(model_dir, "tokenizer.json");
}

static enum err write_template(struct buf *out, const char **between_parts, json_val root, unsigned version, struct err_msg *em)
{
	*between_parts = version >= 15 ? "" : "\n\n";
	write_settings(out, root, version, *between_parts);
	buf_append_str(out, parts);
	buf_append_str(out, walk);
	return buf_ok(out) ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");
}

static enum err template_by_name(struct buf *out, const char **between_parts, const char *model_dir, struct err_msg *em)
{
	const size_t file = find_versioned(model_dir);
	if (versioned[file].version == 0)
		return err_set(em, ERR_NOT_FOUND, "%s/%s: chats of tokenizer.model.v3 and v7 are known: give a template with --chat-template FILE", model_dir,
			       versioned[file].name);
	return write_template(out, between_parts, (json_val){NULL}, versioned[file].version, em);
}

enum err mistral_template(struct buf *out, const char **between_parts, const char *model_dir, struct err_msg *em)
{
	char path[PATH_BYTES_MAX];
	struct json_doc *doc = NULL;
	unsigned version;
	if (!has_file(model_dir, "tekken.json"))
		return template_by_name(out, between_parts, model_dir, em);
	snprintf(path, sizeof(path), "%s/tekken.json", model_dir);
	enum err e = json_parse_file(&doc, path, em);
	if (e != ERR_OK)
		return e;
	json_val config = json_get(json_root(doc), "config");
	if (read_version(config, &version))
		e = write_template(out, between_parts, json_root(doc), version, em);
	else
		e = err_set(em, ERR_NOT_FOUND,
			    "%s: config.version is %s; chats of v3, v7, v11, v13 and v15 are known: give a template with --chat-template FILE",
			    path, json_cstr(json_get(config, "version"), json_type_name(json_get(config, "version"))));
	json_free(&doc);
	return e;
}
