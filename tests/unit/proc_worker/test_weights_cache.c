/* Packed weights kept for the next start: used when they are the same, packed anew and said so when anything about
 * them is not. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proc_worker/model/weights_cache.h"
#include "proc_worker/runner.h"
#include "tests/unit/proc_worker/tiny_model.h"

enum { LOGITS = 20 };

struct start {
	struct tiny_model model;
	enum option_quantization quantization;
	char cache[96];
	struct runner *r;
	float logits[LOGITS];
	bool mapped;
};

static void forward(struct start *s)
{
	struct runner *r = s->r;
	struct err_msg em = {""};
	u32 index = 0;
	float *logits;

	r->inputs.tokens = r->inputs.rows = 1;
	r->inputs.ids[0] = 7;
	r->inputs.positions[0] = 0;
	r->inputs.slots[0] = 0;
	r->inputs.query_start[0] = 0;
	r->inputs.query_start[1] = 1;
	r->inputs.context[0] = 1;
	r->inputs.block_tables[0] = 0;
	cr_assert_eq(decoder_forward(&r->decoder, &r->inputs, r->kv.layers, &em), ERR_OK);
	cr_assert_eq(decoder_logits(&r->decoder, &index, 1, &logits, &em), ERR_OK);
	memcpy(s->logits, logits, sizeof(s->logits));
}

static void begin(struct start *s)
{
	tiny_model_write(&s->model);
	snprintf(s->cache, sizeof(s->cache), "%s/cache", s->model.dir);
}

static struct runner_config config_of(const struct start *s)
{
	return (struct runner_config){.model_dir = s->model.dir,
				      .weights_cache = s->cache,
				      .ranks = 1,
				      .threads = 2,
				      .caps = kern_caps_detect(),
				      .quantization = s->quantization,
				      .limits = {.rows_max = 4, .tokens_max = 16, .block_size = 4},
				      .memory_utilization = 0.5};
}

/* Starts, computes, ends. Whether the weights were mapped is in s->mapped. */
static void run(struct start *s)
{
	struct runner_config config = config_of(s);
	struct err_msg em = {""};

	cr_assert_eq(runner_create(&s->r, &config, &em), ERR_OK, "%s", em.text);
	forward(s);
	s->mapped = s->r->weights.mapped;
	runner_destroy(&s->r);
}

/* The plan of a start, for looking at the file itself. */
struct look {
	struct runner *r;
	struct weights_plan plan;
	struct weights_cache_key key;
};

static void look(struct look *l, struct start *s)
{
	struct runner_config config = config_of(s);
	struct err_msg em = {""};

	config.weights_cache = NULL;
	cr_assert_eq(runner_create(&l->r, &config, &em), ERR_OK, "%s", em.text);
	l->plan = (struct weights_plan){.config = &l->r->model,
					.shard = &l->r->shard,
					.checkpoint = l->r->checkpoint,
					.dtype = l->r->dtype,
					.matrix_dtype = l->r->matrix_dtype,
					.caps = l->r->config.caps,
					.threads = l->r->ctx.threads,
					.model_dir = s->model.dir,
					.cache_dir = s->cache};
	cr_assert_eq(weights_cache_key_init(&l->key, &l->plan, model_weights_bytes(&l->plan), &em), ERR_OK, "%s",
		     em.text);
}

static enum err map(struct look *l, struct err_msg *em)
{
	void *memory;
	enum err e = weights_cache_map(&memory, &l->key, &l->plan, em);

	if (!e)
		cr_assert_arr_eq(memory, l->r->weights.memory, l->key.bytes, "the very bytes that were packed");
	weights_cache_unmap(memory, l->key.bytes);
	return e;
}

static void flip(const char *path, u64 at)
{
	FILE *f = fopen(path, "r+b");
	int byte;

	cr_assert(f);
	cr_assert_eq(fseek(f, (long)at, SEEK_SET), 0);
	byte = fgetc(f);
	cr_assert_neq(byte, EOF);
	cr_assert_eq(fseek(f, (long)at, SEEK_SET), 0);
	fputc(byte ^ 0x10, f);
	cr_assert_eq(fclose(f), 0);
}

static void refused(struct look *l, const char *text)
{
	struct err_msg em = {""};

	cr_assert_eq(map(l, &em), ERR_FORMAT, "%s", em.text);
	cr_assert(strstr(em.text, text), "'%s' is not in '%s'", text, em.text);
}

static void second_start_maps(enum option_quantization quantization)
{
	struct start s = {.quantization = quantization};
	float packed[LOGITS];

	begin(&s);
	run(&s);
	cr_assert_not(s.mapped);
	memcpy(packed, s.logits, sizeof(packed));
	run(&s);
	cr_assert(s.mapped, "the second start finds what the first one wrote");
	cr_assert_arr_eq(packed, s.logits, sizeof(packed));
	tiny_model_remove(&s.model);
}

Test(weights_cache, the_second_start_maps_what_the_first_one_packed)
{
	second_start_maps(OPTION_QUANTIZATION_AUTO);
	second_start_maps(OPTION_QUANTIZATION_INT8);
	second_start_maps(OPTION_QUANTIZATION_INT4);
}

Test(weights_cache, types_and_ranks_have_files_of_their_own)
{
	struct start s = {0};
	struct look plain, int8;
	struct model_shard shard;
	struct err_msg em = {""};

	begin(&s);
	look(&plain, &s);
	s.quantization = OPTION_QUANTIZATION_INT8;
	look(&int8, &s);
	cr_assert_str_neq(plain.key.path, int8.key.path);
	cr_assert_eq(model_shard_init(&shard, &int8.r->model, 1, 2, &em), ERR_OK, "%s", em.text);
	int8.plan.shard = &shard;
	struct weights_cache_key whole = int8.key;
	cr_assert_eq(weights_cache_key_init(&int8.key, &int8.plan, model_weights_bytes(&int8.plan), &em), ERR_OK);
	cr_assert_str_neq(whole.path, int8.key.path);
	cr_assert_neq(whole.packing, int8.key.packing);
	runner_destroy(&plain.r);
	runner_destroy(&int8.r);
	tiny_model_remove(&s.model);
}

Test(weights_cache, what_matrices_are_held_in_is_said_type_by_type)
{
	struct start s = {.quantization = OPTION_QUANTIZATION_INT8};
	struct look l;
	char types[64], few[8];

	begin(&s);
	look(&l, &s);
	struct model_weights *w = &l.r->weights;
	model_weights_types(w, types, sizeof(types));
	cr_assert_str_eq(types, "int8");
	enum kern_dtype held = w->layers[1].down.dtype;
	w->layers[1].down.dtype = KERN_I4_64; /* as a checkpoint of two schemes may be */
	w->layers[0].attn_out.dtype = KERN_F32;
	model_weights_types(w, types, sizeof(types));
	cr_assert_str_eq(types, "int8, float32, int4 (groups of 64)");
	model_weights_types(w, few, sizeof(few));
	cr_assert_str_eq(few, "int8, f");
	w->layers[1].down.dtype = w->layers[0].attn_out.dtype = held;
	runner_destroy(&l.r);
	tiny_model_remove(&s.model);
}

Test(weights_cache, a_changed_model_is_packed_anew)
{
	struct start s = {0};
	char path[160];
	const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000, .tv_nsec = 1}};

	begin(&s);
	run(&s);
	snprintf(path, sizeof(path), "%s/model.safetensors", s.model.dir);
	cr_assert_eq(utimensat(AT_FDCWD, path, times, 0), 0);
	run(&s);
	cr_assert_not(s.mapped, "another time of change");
	run(&s);
	cr_assert(s.mapped, "the file was written anew");
	flip(path, 4000); /* and another time of change again */
	run(&s);
	cr_assert_not(s.mapped);
	run(&s);
	cr_assert(s.mapped);
	snprintf(path, sizeof(path), "%s/config.json", s.model.dir);
	FILE *f = fopen(path, "a");
	cr_assert(f && fputs("\n", f) >= 0 && fclose(f) == 0);
	run(&s);
	cr_assert_not(s.mapped, "another config.json");
	tiny_model_remove(&s.model);
}

Test(weights_cache, a_damaged_or_truncated_file_is_found_out_wherever_it_is_damaged)
{
	struct start s = {.quantization = OPTION_QUANTIZATION_INT8};
	struct look l;
	struct err_msg em = {""};
	struct stat st;

	begin(&s);
	run(&s);
	look(&l, &s);
	cr_assert_eq(map(&l, &em), ERR_OK, "%s", em.text);
	for (u64 at = 0; at < 56; at++) { /* the header */
		flip(l.key.path, at);
		cr_assert_eq(map(&l, &em), ERR_FORMAT, "byte %llu of the header", (unsigned long long)at);
		flip(l.key.path, at);
	}
	flip(l.key.path, 4096);
	refused(&l, "checksums are damaged");
	flip(l.key.path, 4096);
	const u64 places[] = {0, 1, l.key.bytes / 3, l.key.bytes - 1};
	for (u32 i = 0; i < COUNT_OF(places); i++) {
		flip(l.key.path, WEIGHTS_CACHE_HEAD + places[i]);
		refused(&l, "block 1 of 1");
		flip(l.key.path, WEIGHTS_CACHE_HEAD + places[i]);
	}
	cr_assert_eq(map(&l, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(stat(l.key.path, &st), 0);
	cr_assert_eq(truncate(l.key.path, st.st_size + 1), 0);
	refused(&l, "should have");
	cr_assert_eq(truncate(l.key.path, st.st_size - 1), 0);
	refused(&l, "should have");
	cr_assert_eq(truncate(l.key.path, 10), 0);
	refused(&l, "cut short");
	run(&s);
	cr_assert_not(s.mapped);
	run(&s);
	cr_assert(s.mapped, "what was cut short has been replaced");
	runner_destroy(&l.r);
	tiny_model_remove(&s.model);
}

Test(weights_cache, several_blocks_are_written_and_the_damaged_one_is_named)
{
	struct start s = {0};
	struct look l;
	struct err_msg em = {""};
	const u64 bytes = 70ull * WEIGHTS_CACHE_BLOCK + 12345; /* more than a turn, and a last one that is shorter */
	char *memory = malloc(bytes);
	void *mapped;

	begin(&s);
	look(&l, &s);
	for (u64 i = 0; i < bytes; i++)
		memory[i] = (char)(i * 2654435761u >> 13);
	cr_assert_eq(weights_cache_key_init(&l.key, &l.plan, bytes, &em), ERR_OK);
	cr_assert_eq(weights_cache_store(&l.key, memory, &l.plan, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(weights_cache_map(&mapped, &l.key, &l.plan, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(memcmp(mapped, memory, bytes), 0);
	cr_assert_eq((uintptr_t)mapped % 64, 0);
	weights_cache_unmap(mapped, bytes);
	flip(l.key.path, WEIGHTS_CACHE_HEAD + 70ull * WEIGHTS_CACHE_BLOCK + 12344);
	cr_assert_eq(weights_cache_map(&mapped, &l.key, &l.plan, &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "block 71 of 71"), "%s", em.text);
	flip(l.key.path, WEIGHTS_CACHE_HEAD + 3ull * WEIGHTS_CACHE_BLOCK);
	cr_assert_eq(weights_cache_map(&mapped, &l.key, &l.plan, &em), ERR_FORMAT);
	cr_assert(strstr(em.text, "block 4 of 71"), "%s", em.text);
	free(memory);
	runner_destroy(&l.r);
	tiny_model_remove(&s.model);
}

Test(weights_cache, a_folder_that_cannot_be_written_costs_a_warning_only)
{
	struct start s = {0};
	struct look l;
	struct err_msg em = {""};
	struct rlimit limit;
	char path[sizeof(l.key.path) + 8];

	begin(&s);
	snprintf(s.cache, sizeof(s.cache), "%s/config.json", s.model.dir); /* a file, no folder */
	run(&s);
	cr_assert_not(s.mapped);
	snprintf(s.cache, sizeof(s.cache), "%s/no/such", s.model.dir);
	run(&s);
	cr_assert_not(s.mapped);
	snprintf(s.cache, sizeof(s.cache), "%s/cache", s.model.dir);
	look(&l, &s);
	/* A full disk: no file may be longer than a page. */
	signal(SIGXFSZ, SIG_IGN);
	cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
	const struct rlimit small = {4096, limit.rlim_max};
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
	enum err e = weights_cache_store(&l.key, l.r->weights.memory, &l.plan, &em);
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	cr_assert_eq(e, ERR_IO, "%s", em.text);
	snprintf(path, sizeof(path), "%s.tmp", l.key.path);
	cr_assert_neq(access(path, F_OK), 0, "nothing is left behind");
	cr_assert_eq(map(&l, &em), ERR_NOT_FOUND);
	runner_destroy(&l.r);
	tiny_model_remove(&s.model);
}

/* Not when all is packed. */
Test(weights_cache, a_folder_that_cannot_be_made_is_found_before_packing)
{
	struct start s = {0};
	struct look l;
	struct err_msg em = {""};
	char missing[128];

	begin(&s);
	look(&l, &s);
	snprintf(missing, sizeof(missing), "%s/not/there", s.cache);
	const char *const dirs[] = {missing, "/dev/null", s.cache};
	for (size_t i = 0; i < COUNT_OF(dirs); i++) {
		l.plan.cache_dir = dirs[i];
		cr_assert_null(weights_cache_find(&l.key, &l.plan, model_weights_bytes(&l.plan)));
		cr_assert_eq(l.key.path[0] != '\0', i == 2, "%s: only there anything can be kept", dirs[i]);
	}
	l.plan.cache_dir = missing;
	cr_assert_eq(weights_cache_key_init(&l.key, &l.plan, model_weights_bytes(&l.plan), &em), ERR_OK, "%s", em.text);
	cr_assert_eq(weights_cache_store(&l.key, l.r->weights.memory, &l.plan, &em), ERR_IO);
	cr_assert(strstr(em.text, "/not/there would be in is not there: make it"), "%s", em.text);
	runner_destroy(&l.r);
	tiny_model_remove(&s.model);
}

Test(weights_cache, one_process_writes_at_a_time_and_a_dead_ones_file_is_taken_over)
{
	struct start s = {0};
	struct look l;
	struct err_msg em = {""};
	char path[sizeof(l.key.path) + 8];

	begin(&s);
	look(&l, &s);
	snprintf(path, sizeof(path), "%s.tmp", l.key.path);
	cr_assert_eq(mkdir(s.cache, 0755), 0);
	int fd = open(path, O_RDWR | O_CREAT, 0644);
	cr_assert(fd >= 0 && write(fd, "left over", 9) == 9 && flock(fd, LOCK_EX) == 0);
	cr_assert_eq(weights_cache_store(&l.key, l.r->weights.memory, &l.plan, &em), ERR_BUSY, "%s", em.text);
	close(fd); /* as when its process dies */
	cr_assert_eq(weights_cache_store(&l.key, l.r->weights.memory, &l.plan, &em), ERR_OK, "%s", em.text);
	cr_assert_neq(access(path, F_OK), 0);
	cr_assert_eq(map(&l, &em), ERR_OK, "%s", em.text);
	cr_assert_eq(symlink("/dev/null", path), 0); /* a link is not followed */
	cr_assert_neq(weights_cache_store(&l.key, l.r->weights.memory, &l.plan, &em), ERR_OK);
	cr_assert(unlink(path) == 0 && mkfifo(path, 0600) == 0);
	cr_assert_eq(weights_cache_store(&l.key, l.r->weights.memory, &l.plan, &em), ERR_IO);
	cr_assert(strstr(em.text, ".tmp is there and no regular file: remove it"), "%s", em.text);
	runner_destroy(&l.r);
	tiny_model_remove(&s.model);
}
