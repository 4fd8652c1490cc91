/* params.json of a model in Mistral AI's own format. What is accepted is a model that can be divided among one rank, whose errors have the file's words. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "proc_worker/model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct model_config c;
	struct model_shard s;
	struct err_msg em = {0};

	if (model_config_parse_params(&c, (const char *)data, bytes, &em) != ERR_OK) {
		if (!em.text[0] || strstr(em.text, "config.json"))
			abort();
		return 0;
	}
	if (!c.from_params || c.eos_count != 1 || c.eos_ids[0] != 2 || !c.interleaved)
		abort();
	if (model_shard_init(&s, &c, 0, 1, &em) != ERR_OK || s.vocab_rows != c.vocab_size)
		abort();
	return 0;
}
