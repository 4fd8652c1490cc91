/* Owns where downloads of the Hugging Face Hub lie. Runs once, when a model's name is read. */
#include "common/hub_cache.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { COMMIT_DIGITS = 40, PART_BYTES_MAX = 96, NAME_BYTES_MAX = 2 * PART_BYTES_MAX + 1 /* of a model on the Hub, with its owner */ };

static const char PREFIX[] = "models--", SNAPSHOTS[] = "/snapshots/";

static bool is_part(const char *text, size_t bytes)
{
	/* as the Hub: no dot or dash at the ends, nor two behind each other, so no ".." either; "--" stands for '/' in folders */
	for (size_t i = 0; i < bytes; i++) {
		const bool mark = text[i] == '.' || text[i] == '-';
		if (!isalnum((unsigned char)text[i]) && text[i] != '_' && !mark)
			return false;
		if (mark && (i == 0 || i + 1 == bytes || text[i + 1] == text[i]))
			return false;
	}
	return bytes > 0 && bytes <= PART_BYTES_MAX;
}

bool hub_cache_is_name(const char *text)
{
	const char *slash = strchr(text, '/');
	size_t first = slash ? (size_t)(slash - text) : strlen(text);

	return is_part(text, first) && (!slash || is_part(slash + 1, strlen(slash + 1)));
}

static bool is_folder(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static enum err find_cache(char *out, size_t bytes, struct err_msg *em)
{
	static const struct {
		const char *variable, *below;
	} places[] = {{"HF_HUB_CACHE", ""},
		      {"HUGGINGFACE_HUB_CACHE", ""},
		      {"HF_HOME", "/hub"},
		      {"XDG_CACHE_HOME", "/huggingface/hub"},
		      {"HOME", "/.cache/huggingface/hub"}};

	const char *home = getenv("HOME");

	for (size_t i = 0; i < COUNT_OF(places); i++) {
		const char *value = getenv(places[i].variable);
		if (!value || !*value)
			continue;
		const bool at_home = value[0] == '~' && (value[1] == '/' || !value[1]) && home; /* as no shell has expanded it */
		if ((size_t)snprintf(out, bytes, "%s%s%s", at_home ? home : "", value + at_home, places[i].below) >= bytes)
			return err_set(em, ERR_TOO_LONG, "%s is longer than %zu bytes", places[i].variable, bytes - 1);
		return ERR_OK;
	}
	return err_set(em, ERR_NOT_FOUND, "no file or directory, and neither HOME nor HF_HOME says where downloads lie");
}

/* A branch or tag may have '/' in it. */
static bool is_revision(const char *text)
{
	return strlen(text) < 200 && text[0] != '/' && !strstr(text, "..") && text[strspn(text, "/._-+@"
											   "0123456789abcdefghijklmnopqrstuvwxyz"
											   "ABCDEFGHIJKLMNOPQRSTUVWXYZ")] == '\0';
}

static bool is_commit(const char *text)
{
	return strlen(text) == COMMIT_DIGITS && text[strspn(text, "0123456789abcdef")] == '\0';
}

/* What refs/REVISION says; "" where it says no commit. */
static void read_ref(char commit[static COMMIT_DIGITS + 1], const char *repo, const char *revision)
{
	char path[PATH_MAX], text[COMMIT_DIGITS + 1] = "";

	commit[0] = '\0';
	if ((size_t)snprintf(path, sizeof(path), "%s/refs/%s", repo, revision) >= sizeof(path))
		return;
	FILE *f = fopen(path, "r");
	if (!f)
		return;
	text[fread(text, 1, COMMIT_DIGITS, f)] = '\0';
	fclose(f);
	if (is_commit(text))
		memcpy(commit, text, sizeof(text));
}

static enum err find_snapshot(char *out, size_t bytes, const char *repo, const char *name, const char *revision, struct err_msg *em)
{
	char commit[COMMIT_DIGITS + 1];

	if (is_commit(revision))
		memcpy(commit, revision, sizeof(commit));
	else
		read_ref(commit, repo, revision);
	if (!commit[0])
		return err_set(em, ERR_NOT_FOUND, "%s has been downloaded, but not its revision %s: %.500s/refs does not know it", name,
			       revision, repo);
	if ((size_t)snprintf(out, bytes, "%s%s%s", repo, SNAPSHOTS, commit) >= bytes)
		return err_set(em, ERR_TOO_LONG, "the path of the model is longer than %zu bytes", bytes - 1);
	if (!is_folder(out))
		return err_set(em, ERR_NOT_FOUND, "the files of %s at %s have not been downloaded: there is no folder %.600s", name, revision,
			       out);
	return ERR_OK;
}

enum err hub_cache_find(char *out, size_t bytes, const char *name, const char *revision, struct err_msg *em)
{
	char cache[PATH_MAX], repo[PATH_MAX], folder[NAME_BYTES_MAX + 2] = "";
	size_t n = 0;

	revision = *revision ? revision : "main";
	if (!hub_cache_is_name(name))
		return err_set(em, ERR_INVALID, "\"%.200s\" is no name of a model; it must be like ORG/NAME", name);
	if (!is_revision(revision))
		return err_set(em, ERR_INVALID, "\"%.200s\" is no revision; it must be a branch, a tag or a commit of 40 digits", revision);
	enum err e = find_cache(cache, sizeof(cache), em);
	if (e) {
		err_prefix(em, "%s", name);
		return e;
	}
	for (const char *p = name; *p; p++)
		n += (size_t)snprintf(folder + n, sizeof(folder) - n, *p == '/' ? "--" : "%c", *p);
	if ((size_t)snprintf(repo, sizeof(repo), "%s/%s%s", cache, PREFIX, folder) >= sizeof(repo))
		return err_set(em, ERR_TOO_LONG, "the path of the model is longer than %zu bytes", sizeof(repo) - 1);
	if (!is_folder(repo))
		return err_set(em, ERR_NOT_FOUND,
			       "there is no file or directory %s, nor a model of that name among the downloads in %.500s; nothing is downloaded here "
			       "(\"hf download\" does)",
			       name, cache);
	return find_snapshot(out, bytes, repo, name, revision, em);
}

/* Where the part in front of `end` begins. */
static const char *part_before(const char *path, const char *end)
{
	while (end > path && end[-1] != '/')
		end--;
	return end;
}

/* The part models--ORG--NAME of a path .../models--ORG--NAME/snapshots/COMMIT or .../models--ORG--NAME; false: it is neither. */
static bool find_repo(const char *folder, const char **repo, size_t *bytes)
{
	const size_t tail = sizeof(SNAPSHOTS) - 1;
	const char *end = folder + strlen(folder);

	while (end > folder + 1 && end[-1] == '/')
		end--;
	const char *last = part_before(folder, end);
	if ((size_t)(last - folder) >= tail && memcmp(last - tail, SNAPSHOTS, tail) == 0) {
		end = last - tail;
		last = part_before(folder, end);
	}
	*repo = last;
	*bytes = (size_t)(end - last);
	return *bytes >= sizeof(PREFIX) && memcmp(last, PREFIX, sizeof(PREFIX) - 1) == 0;
}

bool hub_cache_repo_of(char *out, size_t bytes, const char *folder)
{
	const char *repo;
	size_t repo_bytes;

	if (!find_repo(folder, &repo, &repo_bytes) || repo_bytes >= bytes)
		return false;
	snprintf(out, bytes, "%.*s", (int)repo_bytes, repo);
	return true;
}

void hub_cache_name_of(char *out, size_t bytes, const char *folder)
{
	const char *end = folder + strlen(folder), *repo;
	size_t repo_bytes;

	while (end > folder + 1 && end[-1] == '/')
		end--;
	const char *last = part_before(folder, end);
	snprintf(out, bytes, "%.*s", (int)(end - last), last);
	if (!find_repo(folder, &repo, &repo_bytes))
		return;
	end = repo + repo_bytes;
	repo += sizeof(PREFIX) - 1;
	const char *slash = memmem(repo, (size_t)(end - repo), "--", 2);
	if (slash)
		snprintf(out, bytes, "%.*s/%.*s", (int)(slash - repo), repo, (int)(end - slash - 2), slash + 2);
	else
		snprintf(out, bytes, "%.*s", (int)(end - repo), repo);
}
