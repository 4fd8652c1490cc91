/* Headers of model files in the format of ggml. */
#include "fuzz.h"
#include "common/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct err_msg em;

	(void)!gguf_check(data, bytes, &em);
	return 0;
}
