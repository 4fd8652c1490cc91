/* Pickles as data. */
#include "fuzz.h"
#include "proc_worker/model/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const struct pickle_global known[] = {{"collections", "OrderedDict", PICKLE_MAPPING, 0},
						     {"torch._utils", "_rebuild", PICKLE_CALLED, 1},
						     {"torch._utils", "_rebuild_tensor_v2", PICKLE_CALLED, 2},
						     {"torch._utils", "_rebuild_parameter", PICKLE_CALLED, 3},
						     {"torch", "FloatStorage", PICKLE_NAMED, 4},
						     {"torch", "BFloat16Storage", PICKLE_NAMED, 5}};
	struct arena arena = {.limit_bytes = 64 << 20};
	struct pickle p;
	struct err_msg em;

	(void)!pickle_read(&p, &arena, data, bytes, known, sizeof(known) / sizeof(*known), &em);
	arena_fini(&arena);
	return 0;
}
