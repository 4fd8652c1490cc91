/* Finds and opens the shared object of a device's kernels (kernels/device.h). */
#ifndef TERCET_PROC_WORKER_DEVICE_H
#define TERCET_PROC_WORKER_DEVICE_H

#include "common/options.h"
#include "kernels/device.h"

struct device {
	void *library; /* NULL: closed */
	const struct kern_device_api *api;
	struct kern_device_info info;
	char path[512]; /* of the shared object */
};

/* Opens device `index` through the first shared object that is there: TERCET_CUDA_KERNELS, else
 * tercet-cuda.so beside this program. ERR_NOT_FOUND: there is none, this build has no CUDA kernels.
 * ERR_VERSION: it is of another build. ERR_DEVICE: no driver, no such device. Once per process; a second
 * device needs another one. */
MUST_CHECK enum err device_open(struct device *d, u32 index, struct err_msg *em);
/* What --device means here: opens device `index` of the `needed` that this host's workers take, or leaves `d` closed,
 * which means the CPU. With "auto" a device is taken where kernels, driver and enough devices are there; what was found is
 * logged either way. Errors of device_open only where "cuda" was asked for, ERR_DEVICE also where there are too few. */
MUST_CHECK enum err device_choose(struct device *d, enum option_device wanted, u32 index, u32 needed,
				  struct err_msg *em);
/* The object stays loaded: libraries of drivers do not survive being unloaded. */
void device_close(struct device *d);

#endif
