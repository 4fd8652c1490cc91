/* config.json of a model. What is accepted must be divisible among one rank. */
#include <stdlib.h>

#include "fuzz.h"
#include "proc_worker/model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct model_config c;
	struct model_shard s;
	struct err_msg em;

	if (model_config_parse(&c, (const char *)data, bytes, &em) == ERR_OK &&
	    (model_shard_init(&s, &c, 0, 1, &em) != ERR_OK || s.vocab_rows != c.vocab_size))
		abort();
	return 0;
}
