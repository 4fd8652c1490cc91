#include <criterion/criterion.h>
#include <string.h>

#include "common/lora_modules.h"

static struct options o;
static struct lora_modules m;
static struct err_msg em;

static void set_up(void)
{
	cr_assert_eq(options_init(&o), ERR_OK);
}

static void tear_down(void)
{
	lora_modules_fini(&m);
	options_fini(&o);
}

TestSuite(lora_modules, .init = set_up, .fini = tear_down);

#define READ(...) read_args((const char *[]){"tercet", "folder/base", __VA_ARGS__, NULL})

static enum err read_args(const char **argv)
{
	int argc = 0;

	while (argv[argc])
		argc++;
	enum err e = options_read_args(&o, argc, (char **)argv, &em);
	return e ? e : lora_modules_read(&m, &o, &em);
}

static void expect(u32 index, const char *name, const char *path)
{
	cr_assert_lt(index, m.count);
	cr_assert_str_eq(m.items[index].name, name);
	cr_assert_str_eq(m.items[index].path, path);
	cr_assert_eq(lora_modules_find(&m, name, strlen(name)), index + 1);
}

Test(lora_modules, words_lists_and_objects_are_read)
{
	cr_assert_eq(READ("--enable-lora", "--lora-modules", "a=/x/y=z", "{\"name\": \"b,c\", \"path\": \"p,{q}\"}", "d=1,e=2", "--port",
			  "1", "--lora-modules=f=3", "--max-lora-rank", "64"),
		     ERR_OK, "%s", em.text);
	cr_assert_eq(m.count, 5);
	cr_assert_eq(m.rank_max, 64);
	expect(0, "a", "/x/y=z");
	expect(1, "b,c", "p,{q}");
	expect(2, "d", "1");
	expect(3, "e", "2");
	expect(4, "f", "3");
	cr_assert_eq(lora_modules_find(&m, "ab", 1), 1);
	cr_assert_eq(lora_modules_find(&m, "g", 1), 0);
	cr_assert_str_eq(o.model, "folder/base");
}

Test(lora_modules, they_are_the_same_in_a_child)
{
	struct buf text = {0};
	struct options child;

	cr_assert_eq(READ("--enable-lora", "--lora-modules", "{\"name\": \"a\\\"}\", \"path\": \"p\"}", "b=q"), ERR_OK, "%s", em.text);
	expect(0, "a\"}", "p");
	options_to_args(&o, &text);
	cr_assert_eq(options_init(&child), ERR_OK);
	char program[] = "tercet", *argv[16] = {program};
	int argc = 1;
	for (char *at = text.data; at < text.data + text.bytes; at += strlen(at) + 1)
		argv[argc++] = at;
	cr_assert_eq(options_read_args(&child, argc, argv, &em), ERR_OK, "%s", em.text);
	lora_modules_fini(&m);
	cr_assert_eq(lora_modules_read(&m, &child, &em), ERR_OK, "%s", em.text);
	expect(0, "a\"}", "p");
	expect(1, "b", "q");
	options_fini(&child);
	buf_fini(&text);
}

Test(lora_modules, without_adapters_there_is_nothing)
{
	cr_assert_eq(READ("--enable-lora", "--max-loras", "3"), ERR_OK);
	cr_assert_eq(m.count, 0);
}

static void refused(const char *text)
{
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
	cr_assert_null(m.items);
}

#define REFUSED(text, ...)                                    \
	do {                                                  \
		tear_down();                                  \
		set_up();                                     \
		cr_assert_neq(READ(__VA_ARGS__), ERR_OK);     \
		refused(text);                                \
	} while (0)

Test(lora_modules, bad_items_are_refused_by_name)
{
	REFUSED("--enable-lora is not given", "--lora-modules", "a=b");
	REFUSED("\"a\": it must be NAME=PATH", "--enable-lora", "--lora-modules", "a");
	REFUSED("it must be NAME=PATH", "--enable-lora", "--lora-modules", "=b");
	REFUSED("it must be NAME=PATH", "--enable-lora", "--lora-modules", "a=");
	REFUSED("two adapters \"a\"", "--enable-lora", "--lora-modules", "a=b", "a=c");
	REFUSED("the model's own name", "--enable-lora", "--lora-modules", "base=b");
	REFUSED("the model's own name", "--enable-lora", "--served-model-name", "x", "--lora-modules", "x=b");
	REFUSED("--max-loras is 1", "--enable-lora", "--max-loras", "1", "--lora-modules", "a=b", "b=c");
	REFUSED("it must be NAME=PATH", "--enable-lora", "--lora-modules", "{\"name\": \"a\"}");
	REFUSED("JSON", "--enable-lora", "--lora-modules", "{\"name\": ");
	REFUSED("\"pth\"", "--enable-lora", "--lora-modules", "{\"name\": \"a\", \"pth\": \"b\"}");
	REFUSED("base_model_name", "--enable-lora", "--lora-modules", "{\"name\": \"a\", \"path\": \"b\", \"base_model_name\": \"c\"}");
	REFUSED("there is a NUL in \"a\\u0000...\"", "--enable-lora", "--lora-modules", "{\"name\": \"a\\u0000b\", \"path\": \"p\"}");
	REFUSED("there is a NUL in \"p\\u0000...\"", "--enable-lora", "--lora-modules", "{\"name\": \"a\", \"path\": \"p\\u0000\"}");
	REFUSED("there is a NUL in \"path\\u0000...\"", "--enable-lora", "--lora-modules",
		"{\"name\": \"a\", \"path\\u0000\": \"c\", \"path\": \"p\"}");
	REFUSED("unexpected word", "--enable-lora", "--lora-modules", "a=b", "c");
}
