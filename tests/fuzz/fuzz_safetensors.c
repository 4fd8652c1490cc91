/* Headers of checkpoint files. */
#include "fuzz.h"
#include "proc_worker/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct err_msg em;

	(void)!safetensors_check(data, bytes, &em);
	return 0;
}
