/* The table of the CUDA variants: the one symbol that the worker looks up in the shared object. */
#include "common/log.h"
#include "kernels/cuda/device.cuh"

enum err cuda_refused(cudaError_t e)
{
	(void)cudaGetLastError(); /* or it would be found by the next call that looks */
	LOG_ERROR("CUDA_LAUNCH_REFUSED", "error=\"%s\" name=%s", cudaGetErrorString(e), cudaGetErrorName(e));
	return ERR_DEVICE;
}

extern "C" {
#define DECLARE(op) enum err op##_cuda(struct kern_ctx *ctx, const struct kern_##op##_args *a);
KERN_OPS(DECLARE)
KERN_DEVICE_OPS(DECLARE)
#undef DECLARE

void kern_ops_init_cuda(struct kern_ops *ops, struct kern_device_ops *device)
{
#define FILL(op) ops->op = op##_cuda, ops->op##_variant = "cuda";
	KERN_OPS(FILL)
#undef FILL
#define NONE(op) ops->op = NULL, ops->op##_variant = "none";
	KERN_CPU_OPS(NONE)
#undef NONE
#define FILL(op) device->op = op##_cuda;
	KERN_DEVICE_OPS(FILL)
#undef FILL
	device->attention_plan_bytes = kern_attention_plan_bytes;
	device->create = kern_cuda_create;
	device->destroy = kern_cuda_destroy;
	device->tune = kern_cuda_tune;
}
}
