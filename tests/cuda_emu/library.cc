/* The libraries that code opens at run time: NCCL's calls by their names, whatever symbols the object shows. */
#include <stdio.h>
#include <string.h>

#include <nccl.h>

#include "kernels/cuda/cu.h"
#include "tests/cuda_emu/runtime_priv.h"

static const struct {
	const char *name;
	void *function;
} symbols[] = {
#define SYMBOL(name) {#name, reinterpret_cast<void *>(name)}
	SYMBOL(ncclGetVersion),	       SYMBOL(ncclGetErrorString),     SYMBOL(ncclGetLastError),
	SYMBOL(ncclGetUniqueId),       SYMBOL(ncclCommInitRank),       SYMBOL(ncclCommDestroy),
	SYMBOL(ncclCommAbort),	       SYMBOL(ncclCommGetAsyncError),  SYMBOL(ncclAllReduce),
	SYMBOL(ncclAllGather),	       SYMBOL(ncclMemAlloc),	       SYMBOL(ncclMemFree),
	SYMBOL(ncclCommWindowRegister), SYMBOL(ncclCommWindowDeregister),
#undef SYMBOL
};

void *cu_library_open(const char *name, char *problem, size_t bytes)
{
	struct emu_call call(__func__);
	static char here;
	if (call.error == cudaSuccess && strncmp(name, "libnccl.so", 10) == 0)
		return &here;
	snprintf(problem, bytes, "%s: cannot open shared object file: No such file or directory", name);
	return NULL;
}

void *cu_library_symbol(void *library, const char *name)
{
	struct emu_call call(name); /* an injected error hides the symbol */
	for (size_t i = 0; library != NULL && call.error == cudaSuccess && i < sizeof(symbols) / sizeof(*symbols); i++) {
		if (strcmp(symbols[i].name, name) == 0)
			return symbols[i].function;
	}
	return NULL;
}
