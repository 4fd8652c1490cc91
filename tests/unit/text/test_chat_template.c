/* Where a model's chat template comes from, and what a rendering is given. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/text.h"

static char folder[64];
static struct err_msg em;

static void make_folder(void)
{
	strcpy(folder, "/tmp/chat_template_XXXXXX");
	cr_assert_not_null(mkdtemp(folder));
}

static void remove_folder(void)
{
	char command[128];
	snprintf(command, sizeof(command), "rm -r %s", folder);
	cr_assert_eq(system(command), 0);
}

static void put(const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *f = fopen(path, "wb");
	cr_assert_not_null(f);
	fputs(text, f);
	fclose(f);
}

/* What the folder's template makes of a request; an error's text where there is none. */
static const char *rendered(const char *file, const char *request_json)
{
	static struct buf out;
	struct chat_template *t = NULL;
	struct json_doc *doc = NULL;
	buf_clear(&out);
	cr_assert(json_parse(&doc, request_json, strlen(request_json), &em) == ERR_OK);
	json_val root = json_root(doc);
	struct chat_request r = {.messages = json_get(root, "messages"),
				 .tools = json_get(root, "tools"),
				 .documents = json_get(root, "documents"),
				 .kwargs = json_get(root, "kwargs"),
				 .bos_token = json_cstr(json_get(root, "bos"), NULL),
				 .eos_token = json_cstr(json_get(root, "eos"), NULL)};
	(void)json_bool(json_get(root, "generate"), &r.add_generation_prompt);
	(void)json_bool(json_get(root, "continue"), &r.continue_final_message);
	enum err e = chat_template_load(&t, folder, file, &em);
	if (e == ERR_OK)
		e = chat_template_render(t, &r, &out, &em);
	chat_template_free(&t);
	json_free(&doc);
	return e == ERR_OK ? buf_cstr(&out) : em.text;
}

#define USER "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

TestSuite(chat_template, .init = make_folder, .fini = remove_folder);

Test(chat_template, a_model_without_one_is_told_apart)
{
	struct chat_template *t = NULL;
	put("tokenizer_config.json", "{\"eos_token\": \"x\"}");
	cr_assert_eq(chat_template_load(&t, folder, "", &em), ERR_NOT_FOUND);
	cr_assert(strstr(em.text, "--chat-template FILE") != NULL, "%s", em.text);
}

Test(chat_template, files_go_before_each_other)
{
	put("tokenizer_config.json", "{\"chat_template\": \"config\"}");
	cr_assert_str_eq(rendered("", USER "}"), "config");
	put("chat_template.json", "{\"chat_template\": \"json\"}");
	cr_assert_str_eq(rendered("", USER "}"), "json");
	put("chat_template.jinja", "jinja");
	cr_assert_str_eq(rendered("", USER "}"), "jinja");
	put("mine", "mine {{ messages[0].content }}");
	char path[256];
	snprintf(path, sizeof(path), "%s/mine", folder);
	cr_assert_str_eq(rendered(path, USER "}"), "mine hi");
}

Test(chat_template, named_templates_are_chosen_by_tools)
{
	put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"plain\"}, {\"name\": \"tool_use\", "
				     "\"template\": \"{{ tools[0].name }}\"}, {\"name\": \"rag\", \"template\": \"{{ documents }}\"}]}");
	cr_assert_str_eq(rendered("", USER "}"), "plain");
	cr_assert_str_eq(rendered("", USER ",\"tools\":[]}"), "plain");
	cr_assert_str_eq(rendered("", USER ",\"tools\":[{\"name\":\"f\"}]}"), "f");
}

Test(chat_template, one_of_another_type_is_refused)
{
	struct chat_template *t;
	put("tokenizer_config.json", "{\"chat_template\": 5}");
	cr_assert_eq(chat_template_load(&t, folder, "", &em), ERR_FORMAT);
	cr_assert_not_null(strstr(em.text, "tokenizer_config.json: \"chat_template\" must be a string"), "%s", em.text);
	put("tokenizer_config.json", "{\"chat_template\": null}");
	cr_assert_eq(chat_template_load(&t, folder, "", &em), ERR_NOT_FOUND);
}

Test(chat_template, named_templates_need_a_default)
{
	put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}]}");
	cr_assert(strstr(rendered("", USER "}"), "none of the named chat templates is called \"default\"") != NULL, "%s", em.text);
}

Test(chat_template, additional_templates_lie_in_a_folder)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/additional_chat_templates", folder);
	cr_assert_eq(mkdir(path, 0700), 0);
	put("chat_template.jinja", "plain");
	put("additional_chat_templates/tool_use.jinja", "with {{ tools[0].name }}");
	cr_assert_str_eq(rendered("", USER "}"), "plain");
	cr_assert_str_eq(rendered("", USER ",\"tools\":[{\"name\":\"f\"}]}"), "with f");
	put("additional_chat_templates/tool_use.jinja", "{% if");
	cr_assert(strstr(rendered("", USER "}"), "tool_use.jinja: line 1, column ") != NULL, "%s", em.text);
}

Test(chat_template, damaged_ones_say_which_file_and_where)
{
	put("chat_template.jinja", "a\n{% if %}");
	cr_assert(strstr(rendered("", USER "}"), "chat_template.jinja: line 2, column 7: ") != NULL, "%s", em.text);
	put("chat_template.jinja", "\xff\xfe");
	cr_assert(strstr(rendered("", USER "}"), "not valid UTF-8") != NULL, "%s", em.text);
	cr_assert(strstr(rendered("/nonexistent", USER "}"), "/nonexistent: No such file") != NULL, "%s", em.text);
	unlink("chat_template.jinja");
}

Test(chat_template, variables_are_those_of_transformers)
{
	put("chat_template.jinja", "{{ bos_token }}|{{ tools is none }}|{{ documents is none }}|{{ add_generation_prompt }}|{{ x }}|"
				   "{{ eos_token is defined }}|{{ nope is defined }}");
	cr_assert_str_eq(rendered("", USER ",\"bos\":\"<s>\",\"generate\":true,\"kwargs\":{\"x\":[1],\"messages\":3}}"),
			 "<s>|True|True|True|[1]|False|False");
	put("chat_template.jinja", "{{ messages[0].content }}{{ documents[0].title }}");
	cr_assert_str_eq(rendered("", USER ",\"documents\":[{\"title\":\"T\"}],\"kwargs\":{\"messages\":[]}}"), "hiT",
			 "a variable of the request replaces no argument");
}

Test(chat_template, the_final_message_is_continued)
{
	put("chat_template.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content if m.content is string else m.content[0].text }}"
				   "</s>{% endfor %}");
#define TALK(text) "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":" text "}],\"continue\":true"
	cr_assert_str_eq(rendered("", TALK("\"Once upon \"") "}"), "[user]hi</s>[assistant]Once upon ");
	cr_assert_str_eq(rendered("", TALK("[{\"type\":\"text\",\"text\":\"Once\"}]") "}"), "[user]hi</s>[assistant]Once");
	cr_assert(strstr(rendered("", TALK("\"a\"") ",\"generate\":true}"), "exclude each other") != NULL, "%s", em.text);
	put("chat_template.jinja", "nothing of it");
	cr_assert(strstr(rendered("", TALK("\"Once\"") "}"), "does not appear in the prompt") != NULL, "%s", em.text);
}

/* ---- tekken.json ---- */

#define CALLS(said)                                                                                                   \
	"{\"role\":\"assistant\",\"content\":\"" said "\",\"tool_calls\":["                                           \
	"{\"id\":\"123456789\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}},"            \
	"{\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"                  \
	"{\"role\":\"tool\",\"tool_call_id\":\"abcdefghi\",\"name\":\"g\",\"content\":\"plain\"},"                       \
	"{\"role\":\"tool\",\"tool_call_id\":\"123456789\",\"name\":\"f\",\"content\":\"2\"},"
#define TOLD(said, thought, rest)                                                                                     \
	"{\"bos\":\"<s>\",\"eos\":\"</s>\"," rest "\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"              \
	"{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b \"},"                                  \
	"{\"role\":\"assistant\",\"content\":\"c  \"},{\"role\":\"assistant\",\"content\":\"d \"},"                      \
	"{\"role\":\"user\",\"content\":\"e\"}," CALLS(said) "{\"role\":\"assistant\",\"content\":\"h\"" thought "},"    \
	"{\"role\":\"user\",\"content\":\"i\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","        \
	"\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}}},"    \
	"{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{}}}]}"
#define OFFERED                                                                                                       \
	"[AVAILABLE_TOOLS][{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", "              \
	"\"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}}}}, {\"type\": "          \
	"\"function\", \"function\": {\"name\": \"g\", \"description\": \"\", \"parameters\": {}}}][/AVAILABLE_TOOLS]"
#define LISTED                                                                                                        \
	"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": \"g\", "             \
	"\"arguments\": {}, \"id\": \"abcdefghi\"}]</s>"

static void put_tekken(const char *version, const char *rest)
{
	char text[512];
	snprintf(text, sizeof(text), "{\"config\": {\"version\": \"%s\"}%s}", version, rest);
	put("tekken.json", text);
}

/* What mistral-common 1.13.1 made of the same conversation, decoded with its control tokens. */
Test(chat_template, tekken_files_have_the_template_of_their_version)
{
	static const char thinks[] = ", \"special_tokens\": [{\"rank\": 25, \"token_str\": \"[THINK]\"}]",
			  settings[] = ", \"special_tokens\": [{\"rank\": 25, \"token_str\": \"[THINK]\"}], \"model_settings_builder\": "
				       "{\"reasoning_effort\": {\"values\": [\"none\", \"high\"], \"default\": \"none\"}}";
	put_tekken("v3", "");
	cr_expect_str_eq(rendered("", TOLD("", "", "")),
			 "<s>[INST]a\n\nb [/INST]c  \n\nd</s>[INST]e[/INST]" LISTED
			 "[TOOL_RESULTS]{\"content\": \"plain\", \"call_id\": \"abcdefghi\"}[/TOOL_RESULTS]"
			 "[TOOL_RESULTS]{\"content\": 2, \"call_id\": \"123456789\"}[/TOOL_RESULTS]h</s>" OFFERED "[INST]S\n\ni[/INST]");
	put_tekken("v7", "");
	cr_expect_str_eq(rendered("", TOLD("w", "", "")),
			 "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]a\n\nb [/INST]c  \n\nd</s>[INST]e[/INST]w" LISTED
			 "[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]plain[/TOOL_RESULTS]"
			 "[TOOL_RESULTS]123456789[TOOL_CONTENT]2[/TOOL_RESULTS]h</s>" OFFERED "[INST]i[/INST]");
	put_tekken("v11", "");
	cr_expect_str_eq(rendered("", TOLD("w", "", "")),
			 "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]a\n\nb [/INST]c  \n\nd</s>[INST]e[/INST]w"
			 "[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}</s>"
			 "[TOOL_RESULTS]123456789[TOOL_CONTENT]2[/TOOL_RESULTS]"
			 "[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]plain[/TOOL_RESULTS]h</s>" OFFERED "[INST]i[/INST]");
#define SINCE_13                                                                                                      \
	"[INST]a\n\nb [/INST]c  \n\nd</s>[INST]e[/INST]w[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}</s>"          \
	"[TOOL_RESULTS]2[/TOOL_RESULTS][TOOL_RESULTS]plain[/TOOL_RESULTS][THINK]t[/THINK]h</s>[INST]i[/INST]"
	put_tekken("v13", thinks);
	cr_expect_str_eq(rendered("", TOLD("w", ",\"reasoning_content\":\"t\"", "")),
			 "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]" OFFERED SINCE_13);
	put_tekken("v15", settings);
	cr_expect_str_eq(rendered("", TOLD("w", ",\"reasoning_content\":\"t\"", "\"kwargs\":{\"reasoning_effort\":\"high\"},")),
			 "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]" OFFERED
			 "[MODEL_SETTINGS]{\"reasoning_effort\": \"high\"}[/MODEL_SETTINGS]" SINCE_13);
	cr_expect_str_eq(rendered("", USER "}"), "[MODEL_SETTINGS]{\"reasoning_effort\": \"none\"}[/MODEL_SETTINGS][INST]hi[/INST]");
	cr_expect(strstr(rendered("", USER ",\"kwargs\":{\"reasoning_effort\":\"low\"}}"), "reasoning_effort is \"low\"; this model knows none, high"));
}

Test(chat_template, tekken_chats_without_ids_users_or_words)
{
#define CALL(id) "{" id "\"function\":{\"name\":\"f\",\"arguments\":{}}}"
#define TWO(id)                                                                                                        \
	"{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CALL(id) "," CALL(id) "]},"   \
	"{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"tool\",\"content\":\"2\"}]}"
	put_tekken("v13", "");
	cr_expect_str_eq(rendered("", TWO("")), "[INST]q[/INST][TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{}[TOOL_RESULTS]1[/TOOL_RESULTS][TOOL_RESULTS]2[/TOOL_RESULTS]");
	cr_expect_str_eq(rendered("", TWO("\"id\":null,")), rendered("", TWO("")));
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":["
				      CALL("\"id\":\"x\",") "," CALL("\"id\":\"x\",") "]},{\"role\":\"tool\",\"content\":\"1\",\"tool_call_id\":\"x\"},"
				      "{\"role\":\"tool\",\"content\":\"2\",\"tool_call_id\":\"x\"}]}"),
			 "[INST]q[/INST][TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{}[TOOL_RESULTS]1[/TOOL_RESULTS][TOOL_RESULTS]2[/TOOL_RESULTS]");
	put_tekken("v11", "");
	cr_expect(strstr(rendered("", TWO("")), "[TOOL_RESULTS][TOOL_CONTENT]1[/TOOL_RESULTS]"));
	/* developers are systems, and alone they have no question beside them */
	put_tekken("v7", "");
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"developer\",\"content\":\"S\"}]}"), "[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]");
	cr_expect_str_eq(rendered("", "{\"messages\":[]}"), "[INST][/INST]");
	put_tekken("v3", "");
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"system\",\"content\":\"A\"},{\"role\":\"developer\",\"content\":\"\"},"
				      "{\"role\":\"system\",\"content\":\"B\"},{\"role\":\"user\",\"content\":\"q\"}]}"),
			 "[INST]A\n\nB\n\nq[/INST]");
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"system\",\"content\":\"A\"}]}"), "[INST]A\n\n[/INST]");
	cr_expect(strstr(rendered("", "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"inf\"},"
				       "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"-1.5\"}]}"),
			 "{\"content\": \"inf\", \"call_id\": \"a\"}[/TOOL_RESULTS][TOOL_RESULTS]{\"content\": -1.5, "));
}

Test(chat_template, thoughts_of_a_tekken_file_without_their_token_are_left_out)
{
	put_tekken("v13", "");
	cr_expect_str_eq(rendered("", "{\"eos\":\"</s>\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
				      "\"content\":\"a\",\"reasoning_content\":\"t\"},{\"role\":\"user\",\"content\":\"r\"}]}"),
			 "[INST]q[/INST]a</s>[INST]r[/INST]");
}

Test(chat_template, a_tekken_file_in_front_of_other_files_or_of_another_version)
{
	put_tekken("v17", "");
	cr_expect(strstr(rendered("", USER "}"), "tekken.json: config.version is v17; chats of v3, v7, v11, v13 and v15 are known"));
	put("tekken.json", "{\"config\": {}}");
	cr_expect(strstr(rendered("", USER "}"), "--chat-template FILE"));
	put("tekken.json", "{");
	cr_expect(strstr(rendered("", USER "}"), "tekken.json"));
	put_tekken("v7", "");
	put("tokenizer_config.json", "{\"chat_template\": \"config\"}");
	cr_expect_str_eq(rendered("", USER "}"), "config");
	put("tokenizer_config.json", "{}");
	cr_expect_str_eq(rendered("", USER "}"), "[INST]hi[/INST]");
	put("tokenizer.json", "{}"); /* which says that the model has no template */
	cr_expect(strstr(rendered("", USER "}"), "has no chat template"));
}

Test(chat_template, a_versioned_sentencepiece_model_has_the_template_of_its_version)
{
	put("tokenizer.model.v3", "");
	cr_expect_str_eq(rendered("", TOLD("", "", "")),
			 "<s>[INST]a\n\nb [/INST]c  \n\nd</s>[INST]e[/INST]" LISTED
			 "[TOOL_RESULTS]{\"content\": \"plain\", \"call_id\": \"abcdefghi\"}[/TOOL_RESULTS]"
			 "[TOOL_RESULTS]{\"content\": 2, \"call_id\": \"123456789\"}[/TOOL_RESULTS]h</s>" OFFERED "[INST]S\n\ni[/INST]");
	put("tokenizer.model.v7m1", ""); /* a later one goes first */
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"q\"}]}"),
			 "[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]q[/INST]");
	put_tekken("v3", "");
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"q\"}]}"), "[INST]S\n\nq[/INST]");
	put("tokenizer.json", "{}");
	cr_expect(strstr(rendered("", USER "}"), "has no chat template"));
}

Test(chat_template, chats_of_the_first_versions_of_sentencepiece_models_are_not_known)
{
	put("tokenizer.model.v1", "");
	cr_expect(strstr(rendered("", USER "}"), "tokenizer.model.v1: chats of tokenizer.model.v3 and v7 are known: give a template with --chat-template FILE"));
}

Test(chat_template, a_tekken_file_refuses_what_is_no_text_and_whom_it_does_not_know)
{
	put_tekken("v7", "");
	cr_expect(strstr(rendered("", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}"),
			 "content of type \"image_url\"; this model reads text"));
	cr_expect(strstr(rendered("", "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"judge\",\"content\":\"q\"}]}"),
			 "role \"judge\"; this model knows system, user, assistant and tool"));
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"An\"}],"
				      "\"continue\":true}"),
			 "[INST]q[/INST]An");
}

/* As those of LLaVA and Idefics 3 are: of a string they would make nothing. */
Test(chat_template, one_that_reads_parts_alone_gets_texts_as_such)
{
	static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi \\\"you\\\"\"},{\"role\":\"assistant\",\"content\":\"An\"},"
				   "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"and\"},{\"type\":\"text\",\"text\":\"now\"}]}],\"generate\":true}";
	put("chat_template.json", "{\"chat_template\": \"{% for message in messages %}{{ message['role'].upper() + ': ' }}{% for content in message['content'] | "
				  "selectattr('type', 'equalto', 'image') %}<image>{% endfor %}{% for content in message['content'] | selectattr('type', 'equalto', "
				  "'text') %}{{ content['text'] + ' ' }}{% endfor %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}\"}");
	cr_expect_str_eq(rendered("", chat), "USER: hi \"you\" ASSISTANT: An USER: and now ASSISTANT:");
	put("chat_template.jinja", "{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
				   "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}{% endif %}{% endfor %};{% endfor %}");
	cr_expect_str_eq(rendered("", chat), "User: hi \"you\";Assistant: An;User: andnow;");
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"An\"}],\"continue\":true}"),
			 "User: q;Assistant: An");
	put("chat_template.jinja", "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}{{ m.content is string }};{% endfor %}");
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}"), "qTrue;");
}

#define TURNS                                                                                                                                      \
	"{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"An\"}," \
	"{\"role\":\"user\",\"content\":\"r\"}]"
#define TEXTS_OF_PARTS "{% for p in m.content if p is mapping %}{{ p.text }}{% endfor %}"

Test(chat_template, texts_become_parts_for_the_roles_and_the_template_that_want_them)
{
	put("chat_template.jinja", "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'user' %}" TEXTS_OF_PARTS "{% else %}{{ m.content }}{% endif %};{% endfor %}");
	cr_expect_str_eq(rendered("", TURNS "}"), "s:S;u:q;a:An;u:r;");
	put("chat_template.jinja", "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'system' %}" TEXTS_OF_PARTS "{% else %}{{ m.content | upper }}{% endif %};{% endfor %}");
	cr_expect_str_eq(rendered("", TURNS "}"), "s:S;u:Q;a:AN;u:R;");
	put("chat_template.jinja", "{% for m in messages %}" TEXTS_OF_PARTS ";{% endfor %}");
	char path[256];
	snprintf(path, sizeof(path), "%s/additional_chat_templates", folder);
	cr_assert_eq(mkdir(path, 0700), 0);
	put("additional_chat_templates/tool_use.jinja", "{% for m in messages %}[{{ m.content }}]{% endfor %}");
	cr_expect_str_eq(rendered("", TURNS "}"), "S;q;An;r;");
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"developer\",\"content\":\"D\"}]}"), "D;");
	cr_expect_str_eq(rendered("", TURNS ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}"), "[S][q][An][r]");
	cr_expect_str_eq(rendered("", "{\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"content\\u0000\":\"no\"}]}"), "q;");
}
