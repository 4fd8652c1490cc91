/* Folders of models in Mistral AI's own format: params.json and consolidated.safetensors, without config.json. */
#ifndef TERCET_COMMON_MISTRAL_FOLDER_H
#define TERCET_COMMON_MISTRAL_FOLDER_H

#include <stdbool.h>

#define MISTRAL_PARAMS "params.json"
#define MISTRAL_WEIGHTS "consolidated.safetensors"
#define MISTRAL_INDEX "consolidated.safetensors.index.json"

/* Whether the model in `dir` is read from params.json and consolidated.safetensors (or its index), because both are there and one of config.json and the
 * weights that go with that is not. A folder that has the model in both formats is read as others read it, from config.json. Looks at names only; blocks
 * for the file system. */
bool mistral_folder_is(const char *dir);

#endif
