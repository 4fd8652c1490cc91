/* Reads /proc and /sys. Runs in the worker at start. */
#include "proc_worker/host_memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* The number behind `key` at the beginning of a line ("MemAvailable:", "inactive_file"); false: no such line.
 */
static bool read_field(const char *path, const char *key, u64 *value)
{
	char line[256];
	size_t length = strlen(key);
	unsigned long long n;
	bool found = false;
	FILE *f = fopen(path, "re");

	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f))
		found = !strncmp(line, key, length) && sscanf(line + length, " %llu", &n) == 1;
	fclose(f);
	if (found)
		*value = n;
	return found;
}

static bool read_number(const char *path, u64 *value) /* false also for "max" */
{
	return read_field(path, "", value);
}

static u64 left_of(u64 limit, u64 used, u64 reclaimable)
{
	used -= reclaimable < used ? reclaimable : used;
	return limit > used ? limit - used : 0;
}

struct group_files {
	const char *limit, *used, *reclaimable;
};

static const struct group_files V2 = {"memory.max", "memory.current", "inactive_file"};
static const struct group_files V1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
				      "total_inactive_file"};

/* One control group's limit, if it has one. */
static void apply_group(const char *dir, const struct group_files *files, u64 *available)
{
	char path[PATH_BYTES + 64];
	u64 limit, used = 0, reclaimable = 0;

	snprintf(path, sizeof(path), "%s/%s", dir, files->limit);
	if (!read_number(path, &limit))
		return;
	snprintf(path, sizeof(path), "%s/%s", dir, files->used);
	if (!read_number(path, &used))
		return;
	snprintf(path, sizeof(path), "%s/memory.stat", dir);
	read_field(path, files->reclaimable, &reclaimable);
	u64 left = left_of(limit, used, reclaimable);
	if (left < *available)
		*available = left;
}

/* The group and all above it; inside a container its own files lie at the mount point itself. */
static void apply_groups(const char *mount, const char *group, const struct group_files *files,
			 u64 *available)
{
	char dir[PATH_BYTES];
	size_t mount_bytes = strlen(mount);

	if ((size_t)snprintf(dir, sizeof(dir), "%s%s", mount, group) >= sizeof(dir))
		return;
	for (;;) {
		apply_group(dir, files, available);
		char *slash = strrchr(dir, '/');
		if (!slash || (size_t)(slash - dir) < mount_bytes)
			return;
		*slash = 0;
	}
}

enum err host_memory_available(const char *root, u64 *bytes, struct err_msg *em)
{
	char path[PATH_BYTES], mount[PATH_BYTES], line[PATH_BYTES];
	u64 kib;

	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	if (!read_field(path, "MemAvailable:", &kib))
		return err_set(em, ERR_IO, "%s: cannot read MemAvailable", path);
	*bytes = kib * 1024;
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	FILE *f = fopen(path, "re");
	if (!f)
		return ERR_OK; /* no control groups */
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		char *group = strstr(line, "::");
		char *v1 = strstr(line, ":memory:");
		if (group && !strncmp(line, "0::", 3)) {
			snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup", root);
			apply_groups(mount, group + 2, &V2, bytes);
		} else if (v1) {
			snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup/memory", root);
			apply_groups(mount, v1 + 8, &V1, bytes);
		}
	}
	fclose(f);
	return ERR_OK;
}

u64 host_memory_resident(const char *root)
{
	char path[PATH_BYTES];
	u64 anonymous = 0, shared = 0;

	snprintf(path, sizeof(path), "%s/proc/self/status", root);
	read_field(path, "RssAnon:", &anonymous);
	read_field(path, "RssShmem:", &shared);
	return (anonymous + shared) * 1024;
}
