/* Owns the folders that stand for models in GGUF: the files that every other model has beside its weights, written from the
 * values in the file, and a link to it. Runs in the command and in libtercet before anything is started; engines see a folder
 * as any other. Never changes a folder that is there: it is made beside and renamed, so that several may ask at once. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/hub_cache.h"
#include "common/mistral_folder.h"
#include "text/gguf_priv.h"
#include "text/text.h"

/* Goes up with every change of what is written, so that folders are made anew. */
enum { WRITTEN_VERSION = 4 };

enum { ROOTS_MAX = 2, LISTED_MAX = 8 };

static const char LINK_NAME[] = "model.gguf";
static const char *const FILES[] = {"config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", LINK_NAME};

/* What is asked for, and where it is. */
struct import {
	char file[PATH_MAX]; /* the absolute path, links in its last part as they are */
	char name[NAME_MAX + 1];
	char id[17];
	char roots[ROOTS_MAX][PATH_MAX];
	u32 root_count;
	bool may_go_on[ROOTS_MAX]; /* to the next root, where this one cannot be written to */
};

static enum err join(char *out, const char *dir, const char *name, struct err_msg *em)
{
	if ((size_t)snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
		return err_set(em, ERR_TOO_LONG, "the path %.200s.../%s is longer than %d bytes", dir, name, PATH_MAX - 1);
	return ERR_OK;
}

/* ---- which file ---- */

static bool is_gguf_name(const char *name)
{
	size_t bytes = strlen(name);

	return bytes > 5 && strcasecmp(name + bytes - 5, ".gguf") == 0;
}

/* NAME-00002-of-00005.gguf: of several files the first one stands for all. */
static bool is_later_part(const char *name)
{
	const char *of = strstr(name, "-of-");
	char *end;

	for (const char *next = of; next != NULL; next = strstr(next + 1, "-of-"))
		of = next;
	if (of == NULL || of - name < 6 || of[-6] != '-')
		return false;
	return strtoul(of - 5, &end, 10) != 1 && end == of;
}

/* Vision parts lie beside the model and are none. */
static bool may_be_model(const char *name)
{
	return is_gguf_name(name) && !is_later_part(name) && strncasecmp(name, "mmproj", 6) != 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* `*count`: of models in GGUF in the folder; the first LISTED_MAX of their names. */
static void list_models(const char *path, char names[LISTED_MAX][NAME_MAX + 1], u32 *count)
{
	DIR *dir = opendir(path);

	*count = 0;
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (may_be_model(entry->d_name) && (*count)++ < LISTED_MAX)
			snprintf(names[*count - 1], NAME_MAX + 1, "%s", entry->d_name);
	if (dir)
		closedir(dir);
	qsort(names, *count < LISTED_MAX ? *count : LISTED_MAX, NAME_MAX + 1, compare_names);
}

/* The file that `path` stands for: itself, or the one of a folder without config.json; `file` is empty where it stands for none. */
static enum err find_file(char file[static PATH_MAX], const char *path, struct err_msg *em)
{
	char names[LISTED_MAX][NAME_MAX + 1], config[PATH_MAX];
	char list[512] = "";
	struct stat st;
	size_t used = 0;
	u32 count;

	file[0] = '\0';
	if (stat(path, &st) != 0)
		return ERR_OK;
	if (!S_ISDIR(st.st_mode)) {
		if (is_gguf_name(path) && (size_t)snprintf(file, PATH_MAX, "%s", path) >= PATH_MAX)
			return err_set(em, ERR_TOO_LONG, "the path of the model is longer than %d bytes", PATH_MAX - 1);
		return ERR_OK;
	}
	enum err e = join(config, path, "config.json", em);
	if (e != ERR_OK || access(config, F_OK) == 0 || mistral_folder_is(path))
		return e;
	list_models(path, names, &count);
	if (count == 0)
		return ERR_OK;
	if (count == 1)
		return join(file, path, names[0], em);
	for (u32 i = 0; i < count && i < LISTED_MAX && used < sizeof(list); i++)
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", names[i]);
	return err_set(em, ERR_INVALID, "the folder %.200s holds %u models in GGUF (%.300s%s); give the path of one of them", path, count, list,
		       count > LISTED_MAX ? ", ..." : "");
}

/* ---- which folder ---- */

/* The name under which the model is served is the last part of the folder's, as with others: here that of what was given. */
static void take_name(struct import *m, const char *path)
{
	size_t bytes = strlen(path);

	while (bytes > 1 && path[bytes - 1] == '/')
		bytes--;
	size_t begin = bytes;
	while (begin > 0 && path[begin - 1] != '/')
		begin--;
	snprintf(m->name, sizeof(m->name), "%.*s", (int)(bytes - begin), path + begin);
	if (strcmp(m->name, ".") == 0 || strcmp(m->name, "..") == 0 || m->name[0] == '\0')
		snprintf(m->name, sizeof(m->name), "%s", strrchr(m->file, '/') + 1);
}

/* Without following a link in the last part: parts of a model lie beside the link, under names that what it leads to has not. */
static enum err take_file(struct import *m, const char *file, struct err_msg *em)
{
	char dir[PATH_MAX], full[PATH_MAX];
	const char *slash = strrchr(file, '/');

	snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - file + 1) : 1, slash ? file : ".");
	if (realpath(dir, full) == NULL)
		return err_set(em, ERR_IO, "%.300s: %s", dir, strerror(errno));
	return join(m->file, strcmp(full, "/") == 0 ? "" : full, slash ? slash + 1 : file, em);
}

static enum err take_id(struct import *m, struct err_msg *em)
{
	struct stat st;
	struct buf text = {0};

	if (stat(m->file, &st) != 0)
		return err_set(em, ERR_NOT_FOUND, "%s: %s", m->file, strerror(errno));
	buf_printf(&text, "%d\n%s\n%s\n%lld\n%lld.%09ld", WRITTEN_VERSION, m->file, m->name, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
		   (long)st.st_mtim.tv_nsec);
	if (buf_ok(&text))
		snprintf(m->id, sizeof(m->id), "%016" PRIx64, (u64)XXH3_64bits(text.data, text.bytes));
	bool ok = buf_ok(&text);
	buf_fini(&text);
	return ok ? ERR_OK : err_set(em, ERR_NO_MEMORY, "out of memory");
}

static void add_root(struct import *m, const char *dir, const char *below, bool may_go_on)
{
	if ((size_t)snprintf(m->roots[m->root_count], PATH_MAX, "%s%s", dir, below) < PATH_MAX)
		m->may_go_on[m->root_count++] = may_go_on;
}

/* Where folders may be, in the order in which they are tried. */
static void find_roots(struct import *m)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *temporary = getenv("TMPDIR");
	char below[64];

	if (cache && cache[0] == '/') { /* who says where it should be wants it nowhere else */
		add_root(m, cache, "/tercet/gguf", false);
		return;
	}
	if (home && home[0] == '/' && home[1] != '\0')
		add_root(m, home, "/.cache/tercet/gguf", true);
	snprintf(below, sizeof(below), "/tercet-%u/gguf", (unsigned)geteuid());
	add_root(m, temporary && temporary[0] == '/' ? temporary : "/tmp", below, false);
}

/* What lies there decides what the model says: it must not be another user's, nor any user's to change. */
static bool is_ours(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode) && (st.st_uid == geteuid() || st.st_uid == 0) && !(st.st_mode & S_IWOTH);
}

/* The folder of the folders and the one above, which are this program's own. */
static bool is_safe(const char *root)
{
	char above[PATH_MAX];

	snprintf(above, sizeof(above), "%.*s", (int)(strrchr(root, '/') - root), root);
	return is_ours(root) && is_ours(above);
}

static bool is_complete(const char *folder)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < COUNT_OF(FILES); i++)
		if (join(path, folder, FILES[i], NULL) != ERR_OK || access(path, F_OK) != 0)
			return false;
	return true;
}

/* ---- writing ---- */

static enum err write_file(const char *dir, const char *name, const struct buf *text, struct err_msg *em)
{
	char path[PATH_MAX];

	enum err e = join(path, dir, name, em);
	if (e != ERR_OK)
		return e;
	FILE *f = fopen(path, "wbx");
	bool ok = f && fwrite(text->data, 1, text->bytes, f) == text->bytes;
	int reason = errno;
	if (f && fclose(f) != 0 && ok) {
		ok = false;
		reason = errno;
	}
	return ok ? ERR_OK : err_set(em, ERR_IO, "%s cannot be written: %s", path, strerror(reason));
}

/* tokenizer.json needs what tokenizer_config.json says. */
static enum err write_tokenizer(struct buf *out, const struct gguf *g, const struct buf *config, struct err_msg *em)
{
	struct json_doc *doc = NULL;

	enum err e = json_parse(&doc, config->data, config->bytes, em);
	if (e == ERR_OK)
		e = gguf_write_tokenizer(out, g, json_root(doc), em);
	json_free(&doc);
	return e;
}

static enum err make_texts(struct buf texts[static 4], const struct gguf *g, struct err_msg *em)
{
	struct gguf_text type = gguf_text_of(g, "general.type");

	if (type.bytes && !gguf_text_is(type, "model"))
		return err_set(em, ERR_UNSUPPORTED, "general.type is '%.*s': the file holds no model", (int)(type.bytes < 64 ? type.bytes : 64),
			       type.text);
	enum err e = gguf_write_config(&texts[0], g, em);
	if (e == ERR_OK)
		e = gguf_write_generation(&texts[1], g, em);
	if (e == ERR_OK)
		e = gguf_write_tokenizer_config(&texts[2], g, em);
	return e == ERR_OK ? write_tokenizer(&texts[3], g, &texts[2], em) : e;
}

static enum err fill(const char *folder, const char *file, const struct buf texts[static 4], struct err_msg *em)
{
	char path[PATH_MAX];
	enum err e = ERR_OK;

	if (mkdir(folder, 0700) != 0)
		return err_set(em, ERR_IO, "%s cannot be made: %s", folder, strerror(errno));
	for (u32 i = 0; i < 4 && e == ERR_OK; i++)
		e = write_file(folder, FILES[i], &texts[i], em);
	if (e == ERR_OK)
		e = join(path, folder, LINK_NAME, em);
	if (e == ERR_OK && symlink(file, path) != 0)
		e = err_set(em, ERR_IO, "%s cannot be made: %s", path, strerror(errno));
	return e;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
	(void)st;
	(void)kind;
	(void)where;
	(void)remove(path);
	return 0;
}

/* A folder of this file's own making. */
static void remove_tree(const char *path)
{
	(void)nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* All folders on the way. */
static enum err make_root(const char *path, struct err_msg *em)
{
	char part[PATH_MAX];

	snprintf(part, sizeof(part), "%s", path);
	for (char *slash = part; (slash = strchr(slash + 1, '/')) != NULL; *slash = '/') {
		*slash = '\0';
		if (mkdir(part, 0700) != 0 && errno != EEXIST)
			return err_set(em, ERR_IO, "the folder %s cannot be made: %s", part, strerror(errno));
	}
	if (mkdir(part, 0700) != 0 && errno != EEXIST)
		return err_set(em, ERR_IO, "the folder %s cannot be made: %s", part, strerror(errno));
	if (!is_safe(part))
		return err_set(em, ERR_DENIED, "%s and the folder it is in must belong to who runs this, or to root, and no other user may write to them",
			       part);
	return ERR_OK;
}

/* A fresh folder beside `final`. */
static enum err make_beside(char out[static PATH_MAX], const char *root, const char *id, struct err_msg *em)
{
	if ((size_t)snprintf(out, PATH_MAX, "%s/.%s-XXXXXX", root, id) >= PATH_MAX)
		return err_set(em, ERR_TOO_LONG, "the path %.300s is too long", root);
	return mkdtemp(out) ? ERR_OK : err_set(em, ERR_IO, "a folder in %s cannot be made: %s", root, strerror(errno));
}

/* `ready` becomes `final`. Where that is there, another process was faster, or it has lost files, and goes. */
static enum err put_in_place(const char *ready, const char *final, const char *folder, const char *root, const char *id, struct err_msg *em)
{
	char aside[PATH_MAX], old[PATH_MAX];

	if (rename(ready, final) == 0 || is_complete(folder))
		return ERR_OK;
	enum err e = make_beside(aside, root, id, em);
	if (e != ERR_OK)
		return e;
	e = join(old, aside, "old", em);
	if (e == ERR_OK && rename(final, old) != 0 && errno != ENOENT)
		e = err_set(em, ERR_IO, "%s cannot be replaced: %s", final, strerror(errno));
	if (e == ERR_OK && rename(ready, final) != 0 && !is_complete(folder))
		e = err_set(em, ERR_IO, "%s cannot be made: %s", final, strerror(errno));
	remove_tree(aside);
	return e;
}

/* ROOT/ID/NAME, written under another name and renamed as a whole. */
static enum err write_folder(const struct import *m, const char *root, const char *folder, const struct buf texts[static 4], struct err_msg *em)
{
	char beside[PATH_MAX], inner[PATH_MAX], final[PATH_MAX];

	enum err e = make_root(root, em);
	if (e == ERR_OK)
		e = join(final, root, m->id, em);
	if (e == ERR_OK)
		e = make_beside(beside, root, m->id, em);
	if (e != ERR_OK)
		return e;
	e = join(inner, beside, m->name, em);
	if (e == ERR_OK)
		e = fill(inner, m->file, texts, em);
	if (e == ERR_OK)
		e = put_in_place(beside, final, folder, root, m->id, em);
	remove_tree(beside); /* gone already where it has become the folder */
	return e;
}

/* The folder under one root; `out` is its path. */
static enum err name_folder(char out[static PATH_MAX], const struct import *m, u32 root, struct err_msg *em)
{
	char id[PATH_MAX];

	enum err e = join(id, m->roots[root], m->id, em);
	return e == ERR_OK ? join(out, id, m->name, em) : e;
}

static enum err make_folder(char folder[static PATH_MAX], const struct import *m, struct err_msg *em)
{
	struct buf texts[4] = {{0}};
	struct gguf *g = NULL;

	enum err e = gguf_open(&g, m->file, em);
	if (e == ERR_OK && (e = make_texts(texts, g, em)) != ERR_OK)
		err_prefix(em, "%.300s", m->file);
	gguf_close(&g);
	for (u32 i = 0; i < m->root_count && e == ERR_OK; i++) {
		e = name_folder(folder, m, i, em);
		if (e == ERR_OK)
			e = write_folder(m, m->roots[i], folder, texts, em);
		if (e == ERR_OK)
			break;
		if (!m->may_go_on[i])
			err_prefix(em, "the folder that a model in GGUF is served from (XDG_CACHE_HOME says where)");
		else
			e = ERR_OK;
	}
	for (u32 i = 0; i < 4; i++)
		buf_fini(&texts[i]);
	return e;
}

/* Where `name` leads: a path, or what was downloaded under a name like one that is no path. */
static enum err find_path(char out[static PATH_MAX], const char *name, const char *revision, struct err_msg *em)
{
	const bool there = access(name, F_OK) == 0;

	if (*revision && there)
		return err_set(em, ERR_INVALID, "%.300s is a local directory, which has one revision: leave --revision away", name);
	if (there || (!*revision && (!hub_cache_is_name(name) || is_gguf_name(name))))
		return (size_t)snprintf(out, PATH_MAX, "%s", name) < PATH_MAX
			       ? ERR_OK
			       : err_set(em, ERR_TOO_LONG, "the path of the model is longer than %d bytes", PATH_MAX - 1);
	return hub_cache_find(out, PATH_MAX, name, revision, em);
}

enum err model_folder(char *out, size_t bytes, const char *name, const char *revision, bool *made, struct err_msg *em)
{
	char path[PATH_MAX], file[PATH_MAX] = "", folder[PATH_MAX] = "";
	struct import m = {.root_count = 0};
	bool there = false;

	*made = false;
	enum err e = find_path(path, name, revision, em);
	if (e == ERR_OK)
		e = find_file(file, path, em);
	if (e == ERR_OK && file[0] != '\0') {
		e = take_file(&m, file, em);
		if (e == ERR_OK) {
			if (!hub_cache_repo_of(m.name, sizeof(m.name), path))
				take_name(&m, path);
			e = take_id(&m, em);
		}
		find_roots(&m);
		for (u32 i = 0; i < m.root_count && e == ERR_OK && !there; i++) {
			e = name_folder(folder, &m, i, em);
			there = e == ERR_OK && is_complete(folder) && is_safe(m.roots[i]);
		}
		if (e == ERR_OK && !there) {
			e = make_folder(folder, &m, em);
			*made = e == ERR_OK;
		}
	}
	if (e == ERR_OK && (size_t)snprintf(out, bytes, "%s", folder[0] != '\0' ? folder : path) >= bytes)
		e = err_set(em, ERR_TOO_LONG, "the path of the model is longer than %zu bytes", bytes - 1);
	return e;
}
