/* What the sources of the runtime behind kernels/device.h share. */
#ifndef TERCET_KERNELS_CUDA_RUNTIME_CUH
#define TERCET_KERNELS_CUDA_RUNTIME_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/device.h"

/* ERR_OK, or the error with CUDA's name of it and what was being done. */
enum err cuda_failed(cudaError_t e, const char *what, struct err_msg *em);
/* What any thread may call begins with this: CUDA's choice of a device is each thread's own. */
void cuda_bind_thread(void);

enum err cuda_comm_id(u8 id[KERN_COMM_ID_BYTES], struct err_msg *em);
enum err cuda_comm_create(struct kern_comm **out, const u8 *id, u32 rank, u32 ranks, u32 timeout_ms,
			  struct err_msg *em);
void cuda_comm_destroy(struct kern_comm *c);
enum err cuda_comm_alloc(struct kern_comm *c, void **out, size_t bytes, struct err_msg *em);
void cuda_comm_release(struct kern_comm *c, void *p);
enum err cuda_comm_sum(struct kern_comm *c, void *stream, void *buffer, size_t count, enum kern_dtype dtype,
		       struct err_msg *em);
enum err cuda_comm_gather(struct kern_comm *c, void *stream, const void *send, void *recv, size_t bytes,
			  struct err_msg *em);
enum err cuda_comm_check(struct kern_comm *c, struct err_msg *em);
void cuda_comm_abort(struct kern_comm *c);

#endif
