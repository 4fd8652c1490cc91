/* Measures the machine. A run is short, the best of many counts: other work only ever makes one slower. */
#include "tests/kern/limits.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/clock.h"
#include "kernels/cpu/variants_priv.h"

enum {
	STEPS = 20000,
	SUMS = 12,
	TILE_STEPS = 16,
	RUNS_MIN = 3,
	READ_RUNS_MIN = 10,
	READ_TASKS_A_THREAD = 4,
	READ_STREAMS = 4,
	READ_AHEAD = 2048, /* bytes of a stream, for memory to answer in, */
	READ_VISIT = 2048, /* or as many as are read of one before the next, while lines of all are asked for in turns */
	LINE = 64,
	WINDOW = 1 << 27,
	CACHES = 4, /* of the largest one's size together: what was read is gone before it is read again */
	WINDOWS_MIN = 4, /* whatever is known of caches */
};

typedef void (*compute_fn)(void);

#if defined(__x86_64__)
/* Twelve independent sums: more than the latency of an instruction times its throughput. The values come from
 * volatile memory and go back there: nothing to compute beforehand, nothing to leave out. */
#define COMPUTE(name, isa, type, load, zero, step_fn, keep)                                              \
	__attribute__((target(isa))) static void name(void)                                              \
	{                                                                                                \
		volatile int word = 1;                                                                   \
		type x = load(word), s[SUMS];                                                            \
		_Pragma("GCC unroll 12") for (u32 i = 0; i < SUMS; i++) s[i] = load(word);               \
		for (u32 step = 0; step < STEPS; step++) {                                               \
			_Pragma("GCC unroll 12") for (u32 i = 0; i < SUMS; i++) s[i] = step_fn(s[i], x); \
		}                                                                                        \
		for (u32 i = 1; i < SUMS; i++)                                                           \
			s[0] += s[i];                                                                    \
		word = keep(s[0]);                                                                       \
	}
#define LOAD_INT256(w)	  _mm256_set1_epi32(w)
#define LOAD_PS256(w)	  _mm256_set1_ps((float)(w)*0x1p-10f)
#define LOAD_PS512(w)	  _mm512_set1_ps((float)(w)*0x1p-10f)
#define LOAD_INT(w)	  _mm512_set1_epi32(w)
#define KEEP_INT256(s)	  _mm256_cvtsi256_si32(s)
#define KEEP_PS256(s)	  (int)_mm256_cvtss_f32(s)
#define KEEP_PS512(s)	  (int)_mm512_cvtss_f32(s)
#define KEEP_INT(s)	  _mm512_cvtsi512_si32(s)
#define STEP_AVX2(s, x)	  _mm256_fmadd_ps(x, x, s)
#define STEP_AVX512(s, x) _mm512_fmadd_ps(x, x, s)
#define STEP_BF16(s, x)	  _mm512_dpbf16_ps(s, (__m512bh)(x), (__m512bh)(x))
/* Written out, or the compiler copies the sums from register to register, which takes slots of the multipliers: it measured 770 Gop/s where an
 * Emerald Rapids core has 870. */
#define STEP_DOT(s, x, type, of, dot)                                                                               \
	({                                                                                                          \
		type sum = s;                                                                                       \
		__asm__(dot " %1, %1, %0" : "+" of(sum) : of(x));                                                    \
		sum;                                                                                                \
	})
#define STEP_VNNI(s, x)	    STEP_DOT(s, x, __m512i, "v", "vpdpbusd")
#define STEP_AVX_VNNI(s, x) STEP_DOT(s, x, __m256i, "x", "%{vex%} vpdpbusd")
/* Written out, or the compiler takes the product, always the same, out of the loop. */
#define STEP_WIDE(s, x)                                                                                             \
	({                                                                                                          \
		__m256i sum = s, product;                                                                           \
		__asm__("vpmaddwd %2, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(x));           \
		sum;                                                                                                \
	})
#define STEP_NARROW(s, x)                                                                                           \
	({                                                                                                          \
		__m256i sum = s, product;                                                                           \
		__asm__("vpmaddubsw %2, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=&x"(product) : "x"(x));         \
		sum;                                                                                                \
	})
COMPUTE(compute_avx2, "avx2,fma", __m256, LOAD_PS256, 0, STEP_AVX2, KEEP_PS256)
COMPUTE(compute_wide, "avx2", __m256i, LOAD_INT256, 0, STEP_WIDE, KEEP_INT256)
COMPUTE(compute_narrow, "avx2", __m256i, LOAD_INT256, 0, STEP_NARROW, KEEP_INT256)
COMPUTE(compute_avx_vnni, "avx2,avxvnni", __m256i, LOAD_INT256, 0, STEP_AVX_VNNI, KEEP_INT256)
COMPUTE(compute_avx512, "avx512f", __m512, LOAD_PS512, 0, STEP_AVX512, KEEP_PS512)
COMPUTE(compute_bf16, "avx512f,avx512bf16", __m512, LOAD_PS512, 0, STEP_BF16, KEEP_PS512)

/* Tiles full of numbers of all kinds: of zeros, or of the same ones, a processor with little power to spare multiplies faster. Four sums, each
 * product a TILE_STEPS-th of the steps that vectors take. */
#define COMPUTE_TILES(name, product)                                                                                              \
	static void name(void)                                                                                                    \
	{                                                                                                                         \
		_Alignas(64) u16 values[4][512];                                                                                  \
		const u64 stride = 64;                                                                                            \
		for (u32 i = 0; i < 4 * 512; i++)                                                                                 \
			(&values[0][0])[i] = (u16)((i * 40503u & 0x80ff) | 0x3f00); /* of bfloat16 between 0.5 and 2, of both signs */ \
		amx_rows_amx(32);                                                                                                 \
		__asm__ volatile("tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"                    \
				 "tileloadd (%0,%4), %%tmm4\n\ttileloadd (%1,%4), %%tmm5\n\ttileloadd (%2,%4), %%tmm6\n\t"    \
				 "tileloadd (%3,%4), %%tmm7"                                                                      \
				 : : "r"(values[0]), "r"(values[1]), "r"(values[2]), "r"(values[3]), "r"(stride) : "memory");     \
		for (u32 step = 0; step < STEPS / TILE_STEPS * SUMS / 4; step++)                                                  \
			__asm__ volatile(product " %tmm6, %tmm4, %tmm0\n\t" product " %tmm7, %tmm4, %tmm1\n\t"                  \
				 product " %tmm6, %tmm5, %tmm2\n\t" product " %tmm7, %tmm5, %tmm3");                             \
	}
COMPUTE_TILES(compute_amx_bf16, "tdpbf16ps")
COMPUTE_TILES(compute_amx_bytes, "tdpbsud")
COMPUTE(compute_vnni, "avx512f,avx512vnni", __m512i, LOAD_INT, 0, STEP_VNNI, KEEP_INT)
#else
static void compute_none(void)
{
}
#define compute_avx2   compute_none
#define compute_wide   compute_none
#define compute_narrow compute_none
#define compute_avx_vnni compute_none
#define compute_avx512 compute_none
#define compute_bf16   compute_none
#define compute_vnni   compute_none
#define compute_amx_bf16 compute_none
#define compute_amx_bytes compute_none
#endif

static const struct {
	const char *name;
	u32 caps;
	u32 operations; /* of a step of one sum */
	compute_fn run;
} KINDS[LIMIT_KINDS] = {
	[LIMIT_AVX2] = {"avx2 f32", KERN_CAP_AVX2, 16, compute_avx2},
	[LIMIT_WIDE] = {"avx2 i16", KERN_CAP_AVX2, 32, compute_wide},
	[LIMIT_NARROW] = {"avx2 i8", KERN_CAP_AVX2, 64, compute_narrow},
	[LIMIT_AVX_VNNI] = {"avx vnni", KERN_CAP_AVX_VNNI, 64, compute_avx_vnni},
	[LIMIT_AVX512] = {"avx512 f32", KERN_CAP_AVX512, 32, compute_avx512},
	[LIMIT_BF16] = {"avx512 bf16", KERN_CAP_AVX512_BF16, 64, compute_bf16},
	[LIMIT_VNNI] = {"avx512 vnni", KERN_CAP_AVX512_VNNI, 128, compute_vnni},
	[LIMIT_AMX_BF16] = {"amx bf16", KERN_CAP_AMX, 2 * 16 * 16 * 32 / TILE_STEPS, compute_amx_bf16},
	[LIMIT_AMX_BYTES] = {"amx i8", KERN_CAP_AMX, 2 * 16 * 16 * 64 / TILE_STEPS, compute_amx_bytes},
};

const char *limits_name(enum limit_kind k)
{
	return KINDS[k].name;
}

bool limits_has(enum limit_kind k, u32 caps)
{
	return (caps & KINDS[k].caps) != 0;
}

static void compute_task(void *arg, u32 task, u32 thread)
{
	(void)task;
	(void)thread;
	(*(const compute_fn *)arg)();
}

struct runs {
	u64 best_ns, all_ns;
	u32 count;
	double operations; /* of one, 1e9 a second when divided by ns */
};

static struct runs compute_runs(enum limit_kind k, struct kern_threads *threads, u32 ms)
{
	u32 tasks = kern_threads_count(threads) * 4;
	struct runs r = {.best_ns = UINT64_MAX, .operations = (double)tasks * KINDS[k].operations * SUMS * STEPS};
	compute_fn fn = KINDS[k].run;
	for (; r.count < RUNS_MIN || r.all_ns < ms * 1000000ull; r.count++) {
		u64 begin = clock_now_ns();
		kern_threads_run(threads, tasks, compute_task, &fn);
		u64 took = clock_now_ns() - begin;
		r.best_ns = took < r.best_ns ? took : r.best_ns;
		r.all_ns += took;
	}
	return r;
}

double limits_gops(enum limit_kind k, struct kern_threads *threads, u32 ms)
{
	struct runs r = compute_runs(k, threads, ms);
	return r.operations / (double)r.best_ns;
}

double limits_gops_mean(enum limit_kind k, struct kern_threads *threads, u32 ms)
{
	struct runs r = compute_runs(k, threads, ms);
	return r.operations * r.count / (double)r.all_ns;
}

/* Of one; 0: not known. */
static size_t largest_cache(void)
{
	long largest = 0;
#ifdef _SC_LEVEL4_CACHE_SIZE
	static const int names[] = {_SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE, _SC_LEVEL4_CACHE_SIZE};
	for (u32 i = 0; i < COUNT_OF(names); i++) {
		long bytes = sysconf(names[i]);
		largest = bytes > largest ? bytes : largest;
	}
#endif
	return (size_t)largest;
}

bool limits_memory_init(struct limits_memory *m)
{
	const size_t windows = (CACHES * largest_cache() + WINDOW - 1) / WINDOW, bytes = (windows > WINDOWS_MIN ? windows : WINDOWS_MIN) * WINDOW;
	void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*m = (struct limits_memory){0};
	if (data == MAP_FAILED)
		return false;
	madvise(data, bytes, MADV_HUGEPAGE);
	memset(data, 1, bytes);
	*m = (struct limits_memory){.data = data, .bytes = bytes, .window = WINDOW};
	return true;
}

void limits_memory_fini(struct limits_memory *m)
{
	if (m->data)
		munmap(m->data, m->bytes);
	*m = (struct limits_memory){0};
}

/* How a part is read; which is the fastest differs between processors. */
static const struct read_form {
	u32 streams;
	bool asks, visits;
} read_forms[] = {
	{1, false, false}, {1, true, false}, {READ_STREAMS, false, false}, {READ_STREAMS, true, false}, {READ_STREAMS, true, true}};

struct read_job {
	const char *data;
	size_t part;
	struct read_form form;
	u64 sink[256];
};

/* Whole lines with the widest plain load that every build has; four lines at a time, of one place after the other or of four
 * places. */
static void read_task(void *arg, u32 task, u32 thread)
{
	struct read_job *j = arg;
	typedef u64 words __attribute__((vector_size(16)));
	enum { LINE_WORDS = LINE / sizeof(words), AHEAD_WORDS = READ_AHEAD / sizeof(words) };
	const words *from = (const words *)(const void *)(j->data + j->part * task);
	const u32 streams = j->form.streams;
	const size_t count = j->part / sizeof(words), apart = streams > 1 ? count / READ_STREAMS : LINE_WORDS;
	const size_t step = streams > 1 ? LINE_WORDS : READ_STREAMS * LINE_WORDS;
	words sums[READ_STREAMS * LINE_WORDS] = {{0}};
	(void)thread;
	for (size_t i = 0; i < count / streams; i += step) {
		for (u32 s = 0; s < READ_STREAMS && j->form.asks; s++)
			__builtin_prefetch(from + i + s * apart + AHEAD_WORDS);
		for (u32 s = 0; s < READ_STREAMS; s++)
			for (u32 w = 0; w < LINE_WORDS; w++)
				sums[s * LINE_WORDS + w] |= from[i + s * apart + w];
	}
	for (u32 lane = 1; lane < COUNT_OF(sums); lane++)
		sums[0] |= sums[lane];
	j->sink[task % 256] = sums[0][0];
}

/* Two KB of each place after the other, while lines of all are asked for in turns. */
static void visit_task(void *arg, u32 task, u32 thread)
{
	struct read_job *j = arg;
	typedef u64 words __attribute__((vector_size(16)));
	const char *from = j->data + j->part * task;
	const size_t apart = j->part / READ_STREAMS / READ_VISIT * READ_VISIT;
	words sums[LINE / sizeof(words)] = {{0}};
	(void)thread;
	for (size_t i = 0; i < apart; i += READ_VISIT)
		for (u32 s = 0; s < READ_STREAMS; s++) {
			const char *at = from + i + s * apart, *ahead = from + i + READ_VISIT + s * (READ_VISIT / READ_STREAMS);
			for (u32 line = 0; line < READ_VISIT / LINE; line++)
				__builtin_prefetch(ahead + line % READ_STREAMS * apart + line / READ_STREAMS * LINE);
			for (u32 line = 0; line < READ_VISIT; line += LINE)
				for (u32 w = 0; w < COUNT_OF(sums); w++)
					sums[w] |= ((const words *)(const void *)(at + line))[w];
		}
	for (u32 w = 1; w < COUNT_OF(sums); w++)
		sums[0] |= sums[w];
	j->sink[task % 256] = sums[0][0];
}

double limits_read(struct limits_memory *m, struct kern_threads *threads, u32 ms)
{
	u32 tasks = kern_threads_count(threads) * READ_TASKS_A_THREAD;
	struct read_job j = {.part = m->window / tasks & ~(size_t)4095};
	u64 start = clock_now_ns(), best = UINT64_MAX;
	for (u32 run = 0; run < READ_RUNS_MIN || clock_now_ns() - start < ms * 1000000ull; run++) {
		j.data = (const char *)m->data + m->at;
		m->at = (m->at + m->window) % m->bytes;
		u64 begin = clock_now_ns();
		j.form = read_forms[run % COUNT_OF(read_forms)];
		kern_threads_run(threads, tasks, j.form.visits ? visit_task : read_task, &j);
		u64 took = clock_now_ns() - begin;
		best = took < best ? took : best;
	}
	return (double)(j.part * tasks) / (double)best;
}
