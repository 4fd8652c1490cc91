/* adapter_config.json. What is accepted has a rank and a finite scale for any module, or an error in a pattern. */
#include <math.h>
#include <stdlib.h>

#include "fuzz.h"
#include "proc_worker/model/lora_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "model.layers.31.mlp.down_proj", ""};
	struct lora_config c;
	struct err_msg em;
	double scale;
	u32 rank;

	if (lora_config_parse(&c, (const char *)data, bytes, &em) != ERR_OK)
		return 0;
	for (u32 i = 0; i < COUNT_OF(modules); i++) {
		const char *by;
		enum lora_use use;
		if (lora_config_use(&c, modules[i], 31 * i, &use, &by, &em) == ERR_OK && (use == LORA_USE_NO) != (by != NULL))
			abort();
		if (lora_config_module(&c, modules[i], &rank, &scale, &em) == ERR_OK &&
		    (rank == 0 || !(scale > 0) || !isfinite(scale)))
			abort();
	}
	lora_config_fini(&c);
	return 0;
}
