#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/options.h"
#include "tests/unit/common/options_fixture.h"

TestSuite(options, .init = set_up, .fini = tear_down);

/* ---------------------------------------------------------------- command line */

Test(options, defaults_are_those_of_the_table)
{
	cr_assert_eq(o.port, 8000);
	cr_assert_str_eq(o.host, "127.0.0.1");
	cr_assert_eq(o.async_depth, 2);
	cr_assert(o.enable_prefix_caching);
	cr_assert_eq(o.dtype, OPTION_DTYPE_AUTO);
	cr_assert_eq(o.gpu_memory_utilization, 0.9);
	cr_assert_eq(o.api_key.count, 0);
}

Test(options, every_form_of_the_command_line_is_understood)
{
	cr_assert_eq(READ("demo", "--port=81", "--host", "::1", "-tp", "2", "--no-enable-prefix-caching",
			  "--dtype", "float32", "--gpu_memory_utilization=0.5", "--served-model-name", "a",
			  "--served-model-name=b,c"),
		     ERR_OK, "%s", em.text);
	cr_assert_str_eq(o.model, "demo");
	cr_assert_eq(o.port, 81);
	cr_assert_str_eq(o.host, "::1");
	cr_assert_eq(o.tensor_parallel_size, 2);
	cr_assert_not(o.enable_prefix_caching);
	cr_assert_eq(o.dtype, OPTION_DTYPE_FLOAT32);
	cr_assert_eq(o.gpu_memory_utilization, 0.5);
	cr_assert_eq(o.served_model_name.count, 3);
	cr_assert_str_eq(o.served_model_name.items[2], "c");
}

Test(options, flags_take_words_for_true_and_false)
{
	cr_assert_eq(READ("--enable-prefix-caching=off"), ERR_OK);
	cr_assert_not(o.enable_prefix_caching);
	cr_assert_eq(READ("--enable-prefix-caching"), ERR_OK);
	cr_assert(o.enable_prefix_caching);
	cr_assert_eq(READ("--enable-prefix-caching=maybe"), ERR_INVALID);
	says("true or false");
}

Test(options, aliases_of_vllm_are_understood)
{
	cr_assert_eq(READ("--kv-cache-memory-bytes", "1g", "--no-async-scheduling", "-asc=3",
			  "--max-num-queued-requests", "7"),
		     ERR_OK, "%s", em.text);
	cr_assert_eq(o.kv_cache_memory, 1ull << 30);
	cr_assert_eq(o.async_depth, 0);
	cr_assert_eq(o.api_server_count, 3);
	cr_assert_eq(o.max_queued_requests, 7);
	cr_assert_eq(READ("--async-scheduling"), ERR_OK);
	cr_assert_eq(o.async_depth, 2);
}

Test(options, types_have_the_names_of_vllm)
{
	static const struct {
		const char *name;
		enum option_dtype dtype;
	} cases[] = {{"auto", OPTION_DTYPE_AUTO},	{"bfloat16", OPTION_DTYPE_BFLOAT16}, {"float32", OPTION_DTYPE_FLOAT32},
		     {"float16", OPTION_DTYPE_FLOAT16}, {"half", OPTION_DTYPE_HALF},	     {"float", OPTION_DTYPE_FLOAT}};

	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		cr_assert_eq(READ("--dtype", cases[i].name), ERR_OK, "%s", em.text);
		cr_assert_eq(o.dtype, cases[i].dtype, "%s", cases[i].name);
	}
}

Test(options, default_sampling_comes_from_the_model_from_nowhere_or_from_a_folder)
{
	char folder[] = "/tmp/test_options_XXXXXX", path[64];
	const char *dir;

	cr_assert_eq(READ("/models/a"), ERR_OK);
	cr_assert_eq(options_generation_dir(&o, &dir, &em), ERR_OK);
	cr_assert_str_eq(dir, "/models/a");
	cr_assert_eq(READ("/models/a", "--generation-config", "vllm"), ERR_OK);
	cr_assert_eq(options_generation_dir(&o, &dir, &em), ERR_OK);
	cr_assert_null(dir);
	cr_assert_eq(READ("/models/a", "--generation-config", "none"), ERR_OK);
	cr_assert_eq(options_generation_dir(&o, &dir, &em), ERR_OK);
	cr_assert_null(dir);
	cr_assert_not_null(mkdtemp(folder));
	cr_assert_eq(READ("/models/a", "--generation-config", folder), ERR_OK);
	cr_assert_eq(options_generation_dir(&o, &dir, &em), ERR_NOT_FOUND);
	says(folder);
	says("it must be auto, none or vllm, or a folder with a generation_config.json");
	snprintf(path, sizeof(path), "%s/generation_config.json", folder);
	FILE *f = fopen(path, "w");
	cr_assert(f && fclose(f) == 0);
	cr_assert_eq(options_generation_dir(&o, &dir, &em), ERR_OK);
	cr_assert_str_eq(dir, folder);
	unlink(path);
	rmdir(folder);
	cr_assert_eq(READ("/models/a", "--generation-config="), ERR_OK);
	cr_assert_eq(options_generation_dir(&o, &dir, &em), ERR_NOT_FOUND);
}

Test(options, lists_go_on_in_the_next_words_and_may_be_json)
{
	cr_assert_eq(READ("/m", "--served-model-name", "a", "b", "c,d", "--port", "5"), ERR_OK, "%s", em.text);
	cr_assert_eq(o.served_model_name.count, 4);
	cr_assert_str_eq(o.served_model_name.items[3], "d");
	cr_assert_str_eq(o.model, "/m");
	cr_assert_eq(READ("--served-model-name", "a", "/m"), ERR_OK, "%s", em.text);
	cr_assert_eq(o.served_model_name.count, 1);
	cr_assert_eq(READ("--served-model-name", "a", "/m", "b"), ERR_INVALID, "\"b\" is behind the model");
	cr_assert_eq(READ("--allowed-origins", "[\"http://a\", \"*\"]"), ERR_OK, "%s", em.text);
	cr_assert_eq(o.allowed_origins.count, 2);
	cr_assert_str_eq(o.allowed_origins.items[0], "http://a");
	cr_assert_eq(READ("--allowed-origins", "[\"a,b\"]"), ERR_INVALID, "children are given lists with commas");
	cr_assert_eq(READ("--allowed-origins", "[\"*\", 5]"), ERR_INVALID);
	says("an array of strings");
	cr_assert_eq(READ("--allowed-origins", "[\"*\""), ERR_INVALID);
	says("--allowed-origins");
	cr_assert_eq(READ("--api-key", "[]"), ERR_OK, "a key may be any text");
	cr_assert_str_eq(o.api_key.items[0], "[]");
}

Test(options, sizes_take_units_and_fractions)
{
	static const struct {
		const char *text;
		u64 bytes;
	} cases[] = {
		{"4GiB", 4ull << 30}, {"512M", 512ull << 20}, {"1.5g", 3ull << 29}, {"65536", 65536},
		{"64kb", 65536},      {"2 GB", 2ull << 30},   {"1T", 1ull << 40},   {"100b", 100},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		cr_assert_eq(options_set(&o, "kv-cache-memory", cases[i].text, "here", &em), ERR_OK);
		cr_assert_eq(o.kv_cache_memory, cases[i].bytes, "%s", cases[i].text);
	}
	static const char *const bad[] = {"", "-1", "g", "1x", "1gg", "4 GiB x", "1e30", "nan"};
	for (size_t i = 0; i < COUNT_OF(bad); i++)
		cr_assert_eq(options_set(&o, "kv-cache-memory", bad[i], "here", &em), ERR_INVALID, "%s",
			     bad[i]);
	says("512M or 4GiB");
	cr_assert_eq(options_set(&o, "output_retention", "12", "here", &em), ERR_INVALID);
	says("at least 4096");
}

Test(options, bad_values_name_the_option_the_value_and_what_is_right)
{
	cr_assert_eq(READ("--port", "99999"), ERR_INVALID);
	cr_assert_str_eq(em.text, "--port is \"99999\": it must be an integer between 0 and 65535");
	cr_assert_eq(READ("--port", "80a"), ERR_INVALID);
	cr_assert_eq(READ("--port="), ERR_INVALID);
	cr_assert_eq(READ("--dtype", "fp8"), ERR_INVALID);
	says("auto|bfloat16|float32");
	cr_assert_eq(READ("--dtype", "auto|bfloat16"), ERR_INVALID);
	cr_assert_eq(READ("--gpu-memory-utilization", "1.5"), ERR_INVALID);
	says("between 0.01 and 1");
	cr_assert_eq(READ("--gpu-memory-utilization", "nan"), ERR_INVALID);
	cr_assert_eq(READ("--seed", "9223372036854775808"), ERR_INVALID);
	cr_assert_eq(READ("--port"), ERR_INVALID);
	says("--port needs a value");
	cr_assert_eq(READ("--host", "--port", "1"), ERR_INVALID);
	says("--host needs a value");
}

Test(options, values_of_other_servers_say_what_to_use_instead)
{
	static const char *const cases[][3] = {
		{"--quantization", "awq", "auto|int8|int4; a checkpoint that is quantized is read as it is: leave it away"},
		{"--quantization", "fp8", "an FP8 checkpoint is read as it is"},
		{"--kv-cache-dtype", "fp8_e5m2", "fp8 is e4m3 here"},
		{"--device", "cuda:0", "CUDA_VISIBLE_DEVICES"},
		{"--reasoning-parser", "deepseek_r1", "those of think"},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		cr_assert_eq(READ(cases[i][0], cases[i][1]), ERR_INVALID);
		says(cases[i][2]);
	}
	cr_assert_eq(READ("--quantization", "int2"), ERR_INVALID);
	cr_assert_str_eq(em.text, "--quantization is \"int2\": it must be one of auto|int8|int4");
}

Test(options, mistyped_names_are_suggested)
{
	static const char *const cases[][2] = {
		{"--max-model-length", "did you mean --max-model-len?"},
		{"--prot", "did you mean --port?"},
		{"--max-num-seq", "did you mean --max-num-seqs?"},
		{"--tensor-paralel-size", "did you mean --tensor-parallel-size?"},
		{"--api-keys", "did you mean --api-key?"},
	};
	for (size_t i = 0; i < COUNT_OF(cases); i++) {
		cr_assert_eq(READ(cases[i][0], "1"), ERR_NOT_FOUND);
		says(cases[i][1]);
	}
	cr_assert_eq(READ("--quux"), ERR_NOT_FOUND);
	cr_assert_null(strstr(em.text, "did you mean"));
	cr_assert_eq(READ("-port", "1"), ERR_NOT_FOUND);
	cr_assert_eq(READ("-x"), ERR_NOT_FOUND);
	cr_assert_eq(READ("--no-port"), ERR_NOT_FOUND);
}

Test(options, a_name_longer_than_any_is_refused)
{
	char name[500];

	memset(name, 'a', sizeof(name) - 1);
	name[0] = name[1] = '-';
	name[sizeof(name) - 1] = '\0';
	cr_assert_eq(READ(name), ERR_NOT_FOUND);
}

Test(options, only_one_model_is_taken)
{
	cr_assert_eq(READ("a", "b"), ERR_INVALID);
	says("unexpected word \"b\"");
	cr_assert_eq(READ("--model", "a", "b"), ERR_INVALID);
	cr_assert_eq(READ("--", "--odd"), ERR_OK);
	cr_assert_str_eq(o.model, "--odd");
}

Test(options, words_behind_the_model_go_to_the_command_that_wants_them)
{
	const char *argv[] = {"run", "demo", "--port", "1", "Once upon", "--", "-x", NULL};
	const char *words[2];
	u32 count;

	cr_assert_eq(options_read_words(&o, 7, (char **)argv, words, 2, &count, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(count, 2);
	cr_assert_str_eq(o.model, "demo");
	cr_assert_str_eq(words[0], "Once upon");
	cr_assert_str_eq(words[1], "-x");
	cr_assert_eq(options_read_words(&o, 7, (char **)argv, words, 1, &count, &em), ERR_INVALID);
	says("-x");
}

/* ---------------------------------------------------------------- precedence */

Test(options, command_line_beats_file_beats_environment_beats_default)
{
	setenv("TERCET_PORT", "1001", 1);
	setenv("TERCET_MAX_NUM_SEQS", "11", 1);
	setenv("TERCET_BLOCK_SIZE", "32", 1);
	setenv("TERCET_HOST", "", 1);
	setenv("TERCET_UNKNOWN_THING", "x", 1);
	const char *path = yaml("port: 1002\nmax-num-seqs: 22\n");
	/* The file stands behind the option on the line and still loses against it. */
	cr_assert_eq(READ("--port", "1003", "--config", path), ERR_OK, "%s", em.text);
	cr_assert_eq(o.port, 1003);
	cr_assert_eq(o.max_num_seqs, 22);
	cr_assert_eq(o.block_size, 32);
	cr_assert_str_eq(o.host, "127.0.0.1");
	cr_assert_eq(o.async_depth, 2);
}

Test(options, a_list_of_a_stronger_source_replaces_the_weaker)
{
	setenv("TERCET_API_KEY", "a,b", 1);
	cr_assert_eq(READ("m"), ERR_OK);
	cr_assert_eq(o.api_key.count, 2);
	cr_assert_eq(READ("--api-key", "c", "--api-key", "d"), ERR_OK);
	cr_assert_eq(o.api_key.count, 2);
	cr_assert_str_eq(o.api_key.items[0], "c");
	setenv("TERCET_ALLOWED_ORIGINS", "a,b", 1);
	cr_assert_eq(READ("--allowed-origins="), ERR_OK);
	cr_assert_eq(o.allowed_origins.count, 0);
}

Test(options, an_empty_key_does_not_open_the_api)
{
	cr_assert_eq(READ("--api-key", ""), ERR_INVALID);
	says("--api-key is empty");
	cr_assert_eq(READ("--api-key=,"), ERR_INVALID);
	cr_assert_eq(options_read_yaml(&o, yaml("api-key: [\"\"]\n"), &em), ERR_INVALID);
	says("api-key is empty");
	setenv("TERCET_API_KEY", "", 1);
	cr_assert_eq(READ("m"), ERR_INVALID);
	says("TERCET_API_KEY is empty");
}

Test(options, bad_environment_is_named)
{
	setenv("TERCET_PORT", "x", 1);
	cr_assert_eq(options_read_env(&o, &em), ERR_INVALID);
	says("TERCET_PORT is \"x\"");
}

Test(options, config_file_can_come_from_the_environment)
{
	setenv("TERCET_CONFIG", yaml("port: 5"), 1);
	cr_assert_eq(READ("m"), ERR_OK);
	cr_assert_eq(o.port, 5);
}

Test(options, its_own_environment_variables_are_known)
{
	cr_assert(options_owns_env("TERCET_PORT"));
	cr_assert(options_owns_env("TERCET_PORT=7"));
	cr_assert(options_owns_env("TERCET_CONFIG=x"));
	cr_assert_not(options_owns_env("TERCET_BOOT_FD=3"));
	cr_assert_not(options_owns_env("TERCET_POR=3"));
	cr_assert_not(options_owns_env("PATH=/bin"));
	cr_assert_not(options_owns_env(""));
}

/* ---------------------------------------------------------------- YAML */

Test(options, yaml_knows_scalars_lists_flags_and_aliases)
{
	const char *path =
		yaml("# comment\nmodel: \"dir with space\"\nserved-model-name: [a, b]\napi_key: k1,k2\n"
		     "enable-prefix-caching: no\nasync-scheduling: false\nkv-cache-memory-bytes: 2GiB\n"
		     "allowed-origins:\n  - http://a\n  - http://b\n");
	cr_assert_eq(options_read_yaml(&o, path, &em), ERR_OK, "%s", em.text);
	cr_assert_str_eq(o.model, "dir with space");
	cr_assert_eq(o.served_model_name.count, 2);
	cr_assert_eq(o.api_key.count, 2);
	cr_assert_not(o.enable_prefix_caching);
	cr_assert_eq(o.async_depth, 0);
	cr_assert_eq(o.kv_cache_memory, 2ull << 30);
	cr_assert_str_eq(o.allowed_origins.items[1], "http://b");
}

Test(options, yaml_null_leaves_an_option_alone_but_is_no_key)
{
	const char *path = yaml("port: null\nchat-template: ~\nmax-model-len: 7\nserved-model-name: \"null\"\n");
	cr_assert_eq(options_read_yaml(&o, path, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(o.port, 8000);
	cr_assert_str_eq(o.chat_template, "");
	cr_assert_eq(o.max_model_len, 7);
	cr_assert_str_eq(o.served_model_name.items[0], "null");
	unlink(path);
	strcpy(file_path + strlen(file_path) - 6, "XXXXXX");
	cr_assert_eq(options_read_yaml(&o, yaml("api-key: null\n"), &em), ERR_INVALID);
	says("api-key is empty");
}

Test(options, an_empty_yaml_file_changes_nothing)
{
	cr_assert_eq(options_read_yaml(&o, yaml("# nothing\n"), &em), ERR_OK);
	cr_assert_eq(o.port, 8000);
}

static void yaml_refused(const char *text, enum err expected, const char *word)
{
	strcpy(file_path + strlen(file_path) - 6, "XXXXXX");
	cr_assert_eq(options_read_yaml(&o, yaml(text), &em), expected, "%s", text);
	says(word);
	unlink(file_path);
}

Test(options, bad_yaml_is_refused_with_file_and_line)
{
	yaml_refused("a: 1\n  b: [", ERR_FORMAT, ":2: invalid YAML");
	yaml_refused("- a\n- b\n", ERR_FORMAT, "option: value");
	yaml_refused("port\n", ERR_FORMAT, "option: value");
	yaml_refused("host: x\nprot: 1\n", ERR_NOT_FOUND,
		     ":2: prot: there is no such option; did you mean port?");
	yaml_refused("port: 1\nport: 2\n", ERR_INVALID, ":2: port: given twice");
	yaml_refused("port: [1, 2]\n", ERR_INVALID, "is a list");
	yaml_refused("port: {a: 1}\n", ERR_INVALID, "a single value");
	yaml_refused("port: 70000\n", ERR_INVALID, "between 0 and 65535");
	yaml_refused("api-key: [[a]]\n", ERR_INVALID, "every item");
	yaml_refused("{a: b}: 1\n", ERR_INVALID, "a key must be");
	yaml_refused("host: \"a\\0b\"\n", ERR_INVALID, "a single value");
	cr_assert_eq(options_read_yaml(&o, "/nowhere/x.yaml", &em), ERR_IO);
	says("/nowhere/x.yaml: No such file");
}
