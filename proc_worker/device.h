/* Finds and opens the shared object of a device's kernels (kernels/device.h). */
#ifndef TERCET_PROC_WORKER_DEVICE_H
#define TERCET_PROC_WORKER_DEVICE_H

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
/* The object stays loaded: libraries of drivers do not survive being unloaded. */
void device_close(struct device *d);

#endif
