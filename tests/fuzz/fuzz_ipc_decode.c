/* Decoding of frames from outside. What decodes is written again and must read back the same. */
#include <stdlib.h>

#include "../unit/ipc/random_msg.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct ipc_scratch scratch = {0};
	struct ipc_scratch again = {0};
	struct ipc_msg first, second;
	struct ipc_envelope envelope;
	struct err_msg em;
	struct buf frame = {0};
	(void)!ipc_peek((const char *)data, bytes, &envelope, &em);
	if (ipc_decode((const char *)data, bytes, &scratch, &first, &em) == ERR_OK) {
		ipc_encode(&first, &frame);
		if (ipc_decode(frame.data, frame.bytes, &again, &second, &em) != ERR_OK)
			abort();
		const char *field = differing_field(&first, &second);
		if (field)
			abort();
	}
	buf_fini(&frame);
	ipc_scratch_fini(&scratch);
	ipc_scratch_fini(&again);
	return 0;
}
