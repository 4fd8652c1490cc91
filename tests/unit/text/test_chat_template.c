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
				 .bos_token = json_cstr(json_get(root, "bos"), NULL)};
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
