/* In which of two formats a folder's model is read. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/mistral_folder.h"

static char dir[64];

static void put(const char *file)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	FILE *f = fopen(path, "w");
	cr_assert(f && fclose(f) == 0);
}

static void drop(const char *file)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	cr_assert_eq(unlink(path), 0);
}

static void begin(void)
{
	snprintf(dir, sizeof(dir), "/tmp/tercet-folder-XXXXXX");
	cr_assert(mkdtemp(dir));
}

TestSuite(mistral_folder, .init = begin);

Test(mistral_folder, params_and_consolidated_weights_are_a_model)
{
	cr_assert_not(mistral_folder_is(dir));
	put("params.json");
	cr_assert_not(mistral_folder_is(dir), "there are no weights");
	put("consolidated.safetensors");
	cr_assert(mistral_folder_is(dir));
	drop("consolidated.safetensors");
	put("consolidated.safetensors.index.json");
	cr_assert(mistral_folder_is(dir));
	drop("params.json");
	cr_assert_not(mistral_folder_is(dir), "nothing describes them");
	drop("consolidated.safetensors.index.json");
	cr_assert_eq(rmdir(dir), 0);
}

Test(mistral_folder, a_model_in_both_formats_is_read_from_config_json)
{
	static const char *const weights[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json", "model.gguf"};

	put("params.json");
	put("consolidated.safetensors");
	for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++) {
		put(weights[i]);
		cr_assert(mistral_folder_is(dir), "%s without config.json is no model", weights[i]);
		put("config.json");
		cr_assert_not(mistral_folder_is(dir), "%s with config.json is one", weights[i]);
		drop(weights[i]);
		cr_assert(mistral_folder_is(dir), "config.json without weights is none");
		drop("config.json");
	}
	drop("params.json");
	drop("consolidated.safetensors");
	cr_assert_eq(rmdir(dir), 0);
}
