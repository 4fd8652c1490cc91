/* Owns the decision in which of two formats a folder's model is read. Every process that looks for a file of the model asks here, so that none reads the
 * description of one copy of the weights and the weights of the other. */
#include "common/mistral_folder.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "common/types.h"

static bool has(const char *dir, const char *file)
{
	char path[PATH_MAX];

	return (size_t)snprintf(path, sizeof(path), "%s/%s", dir, file) < sizeof(path) && access(path, F_OK) == 0;
}

static bool has_usual_weights(const char *dir)
{
	static const char *const files[] = {"model.safetensors", "model.safetensors.index.json", "model.gguf", "pytorch_model.bin", "pytorch_model.bin.index.json"};

	for (size_t i = 0; i < COUNT_OF(files); i++)
		if (has(dir, files[i]))
			return true;
	return false;
}

bool mistral_folder_is(const char *dir)
{
	if (!has(dir, MISTRAL_PARAMS) || (!has(dir, MISTRAL_WEIGHTS) && !has(dir, MISTRAL_INDEX)))
		return false;
	return !has(dir, "config.json") || !has_usual_weights(dir);
}
