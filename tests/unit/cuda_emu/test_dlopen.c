/* The emulated libraries as C code finds them: one shared object in the place of libcudart, libcublasLt and libnccl. */
#include <criterion/criterion.h>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

static void *library(void)
{
	const char *path = getenv("CUDA_EMU_LIBRARY");
	void *lib;
	cr_assert_not_null(path, "CUDA_EMU_LIBRARY says where libcuda_emu.so is");
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	cr_assert_not_null(lib, "%s", dlerror());
	return lib;
}

/* A function of the library, with the type that its header gives it. */
#define FIND(lib, name) \
	__typeof__(&name) p_##name; \
	*(void **)&p_##name = dlsym((lib), #name); \
	cr_assert_not_null(p_##name, #name)

Test(cuda_emu_dlopen, memory_is_copied_through_functions_found_by_name)
{
	void *lib = library(), *p;
	char text[16] = "";
	FIND(lib, cudaMalloc);
	FIND(lib, cudaFree);
	FIND(lib, cudaMemcpy);
	FIND(lib, cudaGetErrorString);
	cr_assert_eq(p_cudaMalloc(&p, 16), cudaSuccess);
	cr_assert_eq(p_cudaMemcpy(p, "fifteen letters", 16, cudaMemcpyHostToDevice), cudaSuccess);
	cr_assert_eq(p_cudaMemcpy(text, p, 16, cudaMemcpyDeviceToHost), cudaSuccess);
	cr_assert_str_eq(text, "fifteen letters");
	cr_assert_eq(p_cudaFree(p), cudaSuccess);
	cr_assert_str_eq(p_cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

Test(cuda_emu_dlopen, the_device_says_what_it_is)
{
	void *lib = library();
	int major = 0, count = 0;
	FIND(lib, cudaGetDeviceCount);
	FIND(lib, cudaDeviceGetAttribute);
	cr_assert_eq(p_cudaGetDeviceCount(&count), cudaSuccess);
	cr_assert_eq(count, 8);
	cr_assert_eq(p_cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
	cr_assert_eq(major, 9);
	cr_assert_eq(p_cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 8), cudaErrorInvalidDevice);
}

Test(cuda_emu_dlopen, every_library_is_in_it)
{
	void *lib = library();
	ncclUniqueId a, b;
	cublasLtHandle_t handle;
	FIND(lib, cublasLtCreate);
	FIND(lib, cublasLtDestroy);
	FIND(lib, ncclGetUniqueId);
	FIND(lib, cudaGraphLaunch);
	FIND(lib, cublasLtMatmul);
	FIND(lib, ncclAllReduce);
	cr_assert_eq(p_cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(p_cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
	cr_assert_eq(p_ncclGetUniqueId(&a), ncclSuccess);
	cr_assert_eq(p_ncclGetUniqueId(&b), ncclSuccess);
	cr_assert_neq(memcmp(&a, &b, sizeof(a)), 0);
}
