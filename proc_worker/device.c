/* Opens a device's shared object, or decides that there is none. Runs in the worker at start; never called again. */
#include "proc_worker/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"

static const char OBJECT_NAME[] = "tercet-cuda.so";
static const char PATH_VARIABLE[] = "TERCET_CUDA_KERNELS";

/* Beside this program, where `meson install` and the build put it. */
static enum err beside(char *out, size_t bytes, struct err_msg *em)
{
	char self[384];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0 || (size_t)n >= sizeof(self) - 1)
		return err_set(em, ERR_IO, "cannot find out where this program is");
	self[n] = 0;
	char *slash = strrchr(self, '/');
	snprintf(out, bytes, "%.*s/%s", slash ? (int)(slash - self) : 0, self, OBJECT_NAME);
	return ERR_OK;
}

static enum err find(struct device *d, struct err_msg *em)
{
	const char *given = getenv(PATH_VARIABLE);

	if (given && *given) {
		if (strlen(given) >= sizeof(d->path))
			return err_set(em, ERR_TOO_LONG, "%s is longer than %zu bytes", PATH_VARIABLE,
				       sizeof(d->path) - 1);
		strcpy(d->path, given);
		return access(d->path, R_OK) == 0
			       ? ERR_OK
			       : err_set(em, ERR_NOT_FOUND, "%s='%s' cannot be read", PATH_VARIABLE, given);
	}
	enum err e = beside(d->path, sizeof(d->path), em);
	if (!e && access(d->path, R_OK))
		e = err_set(em, ERR_NOT_FOUND,
			    "this build has no CUDA kernels: '%s' is not there (build with nvcc, "
			    "-Dcuda=enabled)",
			    d->path);
	return e;
}

static enum err check_build(const struct device *d, struct err_msg *em)
{
	const struct kern_device_api *a = d->api;

	if (a->abi == KERN_DEVICE_ABI && a->table_bytes == sizeof(struct kern_ops))
		return ERR_OK;
	return err_set(em, ERR_VERSION,
		       "'%s' is of another build: interface %u, table of %u bytes; needed are %d, %zu",
		       d->path, a->abi, a->table_bytes, KERN_DEVICE_ABI, sizeof(struct kern_ops));
}

enum err device_open(struct device *d, u32 index, struct err_msg *em)
{
	*d = (struct device){0};
	enum err e = find(d, em);
	if (e)
		return e;
	d->library = dlopen(d->path, RTLD_NOW | RTLD_LOCAL);
	if (!d->library)
		return err_set(em, ERR_DEVICE, "cannot load the CUDA kernels: %s", dlerror());
	d->api = dlsym(d->library, KERN_DEVICE_SYMBOL);
	if (!d->api)
		return err_set(em, ERR_VERSION, "'%s' has no symbol %s: it is no object of this engine",
			       d->path, KERN_DEVICE_SYMBOL);
	e = check_build(d, em);
	if (!e)
		e = d->api->open(index, &d->info, em);
	if (e)
		return e;
	LOG_INFO(
		"DEVICE",
		"name=\"%s\" processors=%u capability=%u.%u driver=%u runtime=%u memory=%lluMiB free=%lluMiB",
		d->info.name, d->info.processors, d->info.capability / 10, d->info.capability % 10,
		d->info.driver, d->info.runtime, (unsigned long long)(d->info.memory_total >> 20),
		(unsigned long long)(d->info.memory_free >> 20));
	return ERR_OK;
}

static enum err open_enough(struct device *d, u32 index, u32 needed, struct err_msg *em)
{
	enum err e = device_open(d, index, em);

	if (!e && d->info.count < needed)
		e = err_set(em, ERR_DEVICE,
			    "the %u workers of this machine need a device each, and %u %s there (CUDA_VISIBLE_DEVICES "
			    "chooses; --tensor-parallel-size %u fits)",
			    needed, d->info.count, d->info.count == 1 ? "is" : "are", d->info.count);
	return e;
}

enum err device_choose(struct device *d, enum option_device wanted, u32 index, u32 needed, struct err_msg *em)
{
	*d = (struct device){0};
	if (wanted == OPTION_DEVICE_CPU)
		return ERR_OK;
	enum err e = open_enough(d, index, needed, em);
	if (!e)
		return ERR_OK;
	device_close(d);
	if (wanted == OPTION_DEVICE_CUDA) {
		err_prefix(em, "--device cuda");
		return e;
	}
	if (e == ERR_NOT_FOUND)
		LOG_INFO("DEVICE_CHOSEN", "device=cpu reason=\"%s\"", em->text);
	else /* whoever brought kernels meant to use them */
		LOG_WARN("DEVICE_CHOSEN", "device=cpu reason=\"%s\"", em->text);
	return ERR_OK;
}

void device_close(struct device *d)
{
	*d = (struct device){0};
}
