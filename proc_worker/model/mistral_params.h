/* params.json of Mistral AI's own format, as the config.json that says the same. */
#ifndef TERCET_PROC_WORKER_MODEL_MISTRAL_PARAMS_H
#define TERCET_PROC_WORKER_MODEL_MISTRAL_PARAMS_H

#include "common/err.h"
#include "common/json.h"

/* The context that the file states, in the config.json: YaRN does not stretch it any further. */
#define MISTRAL_CONTEXT "_stated_context"

/* What DIR/params.json says, as the fields of a config.json: of MistralForCausalLM, MinistralForCausalLM where layers differ in their windows,
 * Ministral3ForCausalLM with "llama_4_scaling", MixtralForCausalLM with "moe", and Mistral4ForCausalLM where heads share a latent. Values are checked where
 * a config.json's are, but for what has no place there. The end of sequence is </s>, id 2 of all of Mistral's vocabularies. The caller owns `*out`.
 * ERR_IO: the file cannot be read. ERR_FORMAT, ERR_INVALID, ERR_UNSUPPORTED: *em names file and field, what was found and what would be right; an
 * unknown field is one of them. ERR_NO_MEMORY, ERR_TOO_LONG. */
MUST_CHECK enum err mistral_params_read(struct json_doc **out, const char *dir, struct err_msg *em);
/* The same of its text. */
MUST_CHECK enum err mistral_params_parse(struct json_doc **out, const char *text, size_t bytes, struct err_msg *em);

/* Gives the file and the fields in `text`, an error about the config.json that was made here, the names that they have in params.json. Names that both
 * have stay, so that it may be called twice. Cut to fit `bytes`. */
void mistral_params_in_file(char *text, size_t bytes);

#endif
