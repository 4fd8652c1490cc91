/* Checkpoints of torch.save, in both forms. */
#include "fuzz.h"
#include "proc_worker/model/torch_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct err_msg em;

	(void)!torch_file_check(data, bytes, &em);
	return 0;
}
