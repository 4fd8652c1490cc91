#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hub_cache.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define OTHER "89abcdef0123456789abcdef0123456789abcdef"

static char root[64];
static struct err_msg em;
static char found[PATH_MAX];

static void in_root(char out[static PATH_MAX], const char *below)
{
	snprintf(out, PATH_MAX, "%s/%s", root, below);
}

static void make(const char *below)
{
	char path[PATH_MAX], command[PATH_MAX + 16];

	in_root(path, below);
	snprintf(command, sizeof(command), "mkdir -p '%s'", path);
	cr_assert_eq(system(command), 0);
}

static void put(const char *below, const char *text)
{
	char path[PATH_MAX];

	in_root(path, below);
	FILE *f = fopen(path, "w");
	cr_assert(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void begin(void)
{
	strcpy(root, "/tmp/tercet_hub_XXXXXX");
	cr_assert(mkdtemp(root) != NULL);
	make("hub/models--a-team--Some.Model_1-8B/refs/pr");
	make("hub/models--a-team--Some.Model_1-8B/snapshots/" COMMIT);
	put("hub/models--a-team--Some.Model_1-8B/refs/main", COMMIT);
	put("hub/models--a-team--Some.Model_1-8B/refs/pr/1", OTHER "\n");
	put("hub/models--a-team--Some.Model_1-8B/refs/odd", "no commit");
	make("hub/models--gpt2/snapshots/" OTHER);
	make("hub/models--gpt2/refs");
	put("hub/models--gpt2/refs/main", OTHER);
	const char *const variables[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"};
	for (size_t i = 0; i < COUNT_OF(variables); i++)
		unsetenv(variables[i]);
	setenv("HF_HOME", root, 1);
}

static void end(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -r '%s'", root);
	cr_assert_eq(system(command), 0);
}

TestSuite(hub_cache, .init = begin, .fini = end);

static bool finds(const char *name, const char *revision, const char *below)
{
	char wanted[PATH_MAX];

	in_root(wanted, below);
	return hub_cache_find(found, sizeof(found), name, revision, &em) == ERR_OK && strcmp(found, wanted) == 0;
}

static bool refuses(const char *name, const char *revision, enum err code, const char *text)
{
	em.text[0] = '\0';
	return hub_cache_find(found, sizeof(found), name, revision, &em) == code && strstr(em.text, text) != NULL;
}

Test(hub_cache, names_are_the_hubs)
{
	const char *const names[] = {"gpt2", "a/b", "meta-llama/Llama-3.2-1B", "Qwen/Qwen2.5_x", "0x/9"},
			  *const others[] = {"", "/", "a/", "/b", "a/b/c", ".", "..", "a/..", "../b", "./a", "-a/b", "a/b-", "a--b/c", "a/b c", "a\\b", "ü/b", "~/b"};
	for (size_t i = 0; i < COUNT_OF(names); i++)
		cr_expect(hub_cache_is_name(names[i]), "%s", names[i]);
	for (size_t i = 0; i < COUNT_OF(others); i++)
		cr_expect(!hub_cache_is_name(others[i]), "%s", others[i]);
	char longest[195];
	memset(longest, 'a', sizeof(longest));
	longest[96] = '\0';
	cr_expect(hub_cache_is_name(longest));
	longest[96] = 'a';
	longest[97] = '\0';
	cr_expect(!hub_cache_is_name(longest));
	longest[97] = 'a';
	longest[96] = '/';
	longest[193] = '\0';
	cr_expect(hub_cache_is_name(longest));
	cr_expect(refuses(longest, "", ERR_NOT_FOUND, "there is no file or directory aaa"));
	longest[193] = 'a';
	longest[194] = '\0';
	cr_expect(!hub_cache_is_name(longest));
}

Test(hub_cache, finds_main_a_branch_and_a_commit)
{
	cr_expect(finds("a-team/Some.Model_1-8B", "", "hub/models--a-team--Some.Model_1-8B/snapshots/" COMMIT), "%s", em.text);
	cr_expect(finds("a-team/Some.Model_1-8B", "main", "hub/models--a-team--Some.Model_1-8B/snapshots/" COMMIT));
	cr_expect(finds("a-team/Some.Model_1-8B", COMMIT, "hub/models--a-team--Some.Model_1-8B/snapshots/" COMMIT));
	cr_expect(finds("gpt2", "", "hub/models--gpt2/snapshots/" OTHER));
	make("hub/models--a-team--Some.Model_1-8B/snapshots/" OTHER);
	cr_expect(finds("a-team/Some.Model_1-8B", "pr/1", "hub/models--a-team--Some.Model_1-8B/snapshots/" OTHER));
}

Test(hub_cache, what_is_missing_is_named)
{
	cr_expect(refuses("a/b", "", ERR_NOT_FOUND, "there is no file or directory a/b, nor a model of that name among the downloads in /tmp/tercet_hub_"));
	cr_expect(refuses("a-team/Some.Model_1-8B", "v2", ERR_NOT_FOUND, "but not its revision v2"));
	cr_expect(refuses("a-team/Some.Model_1-8B", "odd", ERR_NOT_FOUND, "but not its revision odd"));
	cr_expect(refuses("a-team/Some.Model_1-8B", "pr", ERR_NOT_FOUND, "but not its revision pr"));
	cr_expect(refuses("a-team/Some.Model_1-8B", "pr/1", ERR_NOT_FOUND, "at pr/1 have not been downloaded"));
	cr_expect(refuses("a-team/Some.Model_1-8B", "../main", ERR_INVALID, "\"../main\" is no revision"));
	cr_expect(refuses("a-team/Some.Model_1-8B", "/etc", ERR_INVALID, "is no revision"));
	cr_expect(refuses("a/../b", "", ERR_INVALID, "\"a/../b\" is no name of a model"));
	char few[8];
	cr_expect_eq(hub_cache_find(few, sizeof(few), "gpt2", "", &em), ERR_TOO_LONG);
}

Test(hub_cache, variables_say_where)
{
	char path[PATH_MAX];

	in_root(path, "hub");
	setenv("HF_HOME", "/nowhere", 1);
	cr_expect(refuses("gpt2", "", ERR_NOT_FOUND, "/nowhere/hub"));
	setenv("HUGGINGFACE_HUB_CACHE", path, 1);
	cr_expect(finds("gpt2", "", "hub/models--gpt2/snapshots/" OTHER));
	setenv("HF_HUB_CACHE", "/elsewhere", 1);
	cr_expect(refuses("gpt2", "", ERR_NOT_FOUND, "downloads in /elsewhere;"));
	setenv("HF_HUB_CACHE", "", 1); /* as if it were not set */
	cr_expect(finds("gpt2", "", "hub/models--gpt2/snapshots/" OTHER));
	setenv("HOME", root, 1);
	setenv("HUGGINGFACE_HUB_CACHE", "~/hub", 1); /* as of a file that no shell has read */
	cr_expect(finds("gpt2", "", "hub/models--gpt2/snapshots/" OTHER));
	setenv("HUGGINGFACE_HUB_CACHE", "~x/hub", 1);
	cr_expect(refuses("gpt2", "", ERR_NOT_FOUND, "downloads in ~x/hub;"));
	unsetenv("HUGGINGFACE_HUB_CACHE");
	unsetenv("HF_HOME");
	setenv("HOME", "/home/x", 1);
	cr_expect(refuses("gpt2", "", ERR_NOT_FOUND, "/home/x/.cache/huggingface/hub"));
	setenv("XDG_CACHE_HOME", "/cache", 1);
	cr_expect(refuses("gpt2", "", ERR_NOT_FOUND, "/cache/huggingface/hub"));
	unsetenv("XDG_CACHE_HOME");
	unsetenv("HOME");
	cr_expect(refuses("gpt2", "", ERR_NOT_FOUND, "gpt2: no file or directory, and neither HOME nor HF_HOME"));
}

Test(hub_cache, folders_have_the_name_that_finds_them)
{
	const struct {
		const char *folder, *name;
	} cases[] = {{"/m/models--a-team--Some.Model_1-8B/snapshots/" COMMIT, "a-team/Some.Model_1-8B"},
		     {"/m/models--a--b/snapshots/x//", "a/b"},
		     {"models--gpt2/snapshots/x", "gpt2"},
		     {"/cache/models--a-team--M-GGUF", "a-team/M-GGUF"},
		     {"/cache/models--gpt2/", "gpt2"},
		     {"/m/model--gpt2/snapshots/x", "x"},
		     {"/m/models--/snapshots/x", "x"},
		     {"/snapshots/x", "x"},
		     {"demo", "demo"},
		     {"/models/Llama-3/", "Llama-3"},
		     {"/", ""},
		     {"", ""}};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		char name[64];
		hub_cache_name_of(name, sizeof(name), cases[i].folder);
		cr_expect_str_eq(name, cases[i].name, "%s", cases[i].folder);
	}
	char repo[32], few[4];
	cr_expect(hub_cache_repo_of(repo, sizeof(repo), "/m/models--a-team--M/snapshots/x") && !strcmp(repo, "models--a-team--M"));
	cr_expect(hub_cache_repo_of(repo, sizeof(repo), "models--a-team--M/") && !strcmp(repo, "models--a-team--M"));
	cr_expect(!hub_cache_repo_of(repo, sizeof(repo), "/m/a-team--M/snapshots/x") && !hub_cache_repo_of(repo, sizeof(repo), "/m/models--"));
	cr_expect(!hub_cache_repo_of(few, sizeof(few), "/m/models--a-team--M"));
	hub_cache_name_of(few, sizeof(few), "/models/Llama");
	cr_expect_str_eq(few, "Lla");
}
