/* The part of NCCL that the engine calls: names, values and layouts of its version 2, which is opened at run time, so that
 * neither its header nor the library is needed to build. tests/cuda_emu/check_abi.py compares this with nccl.h. */
#ifndef TERCET_KERNELS_CUDA_NCCL_H
#define TERCET_KERNELS_CUDA_NCCL_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_WIN_COLL_SYMMETRIC 0x01

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct {
	char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum { ncclSuccess = 0, ncclInProgress = 7 } ncclResult_t;
typedef enum { ncclSum = 0 } ncclRedOp_t;
typedef enum { ncclUint8 = 1, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 } ncclDataType_t;

/* Declared for their types; nothing links with them. */
ncclResult_t ncclGetVersion(int *version);
const char *ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
			   ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
			   cudaStream_t stream);
/* Since 2.13, 2.19 and 2.27: missing ones are done without. */
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclMemAlloc(void **p, size_t bytes);
ncclResult_t ncclMemFree(void *p);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *p, size_t bytes, ncclWindow_t *window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);

#define NCCL_NEEDED(X) \
	X(ncclGetVersion) \
	X(ncclGetErrorString) \
	X(ncclGetUniqueId) \
	X(ncclCommInitRank) \
	X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommGetAsyncError) X(ncclAllReduce) X(ncclAllGather)
#define NCCL_OPTIONAL(X) \
	X(ncclGetLastError) \
	X(ncclMemAlloc) X(ncclMemFree) X(ncclCommWindowRegister) X(ncclCommWindowDeregister)

struct nccl_library {
	void *handle; /* NULL: not opened */
#define NCCL_POINTER(name) decltype(&::name) name;
	NCCL_NEEDED(NCCL_POINTER)
	NCCL_OPTIONAL(NCCL_POINTER)
#undef NCCL_POINTER
};

#ifdef __cplusplus
}
#endif
#endif
