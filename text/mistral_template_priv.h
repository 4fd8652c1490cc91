/* The chat template of models that come with tekken.json, or tokenizer.model.v3 and the like, alone. */
#ifndef TERCET_TEXT_MISTRAL_TEMPLATE_PRIV_H
#define TERCET_TEXT_MISTRAL_TEMPLATE_PRIV_H

#include "text/text.h"

/* Whether MODEL_DIR has a tekken.json, or a tokenizer.model with a version in its name, and no tokenizer.json beside it, whose models bring their own template. */
bool mistral_template_is_wanted(const char *model_dir);
/* Appends the source of the template of that file's version; `*between_parts` is what stands between the parts of a message's text.
 * ERR_NOT_FOUND: of a version whose chats are not known, which is named. ERR_FORMAT, ERR_IO, ERR_NO_MEMORY. */
MUST_CHECK enum err mistral_template(struct buf *out, const char **between_parts, const char *model_dir, struct err_msg *em);

#endif
