/* What llama.cpp (February 2025) and ik_llama.cpp (August 2026, the better of its modes) reached with random
 * weights of the shapes of tools/make-checkpoint, in tokens a second, on two Zen 4 cores. */
#ifndef TERCET_BENCH_CPU_PEERS_H
#define TERCET_BENCH_CPU_PEERS_H

#include "common/types.h"

enum peer_format { PEER_BF16, PEER_INT8, PEER_INT4, PEER_FORMATS }; /* there: bf16, q8_0, q4_0 */

struct peer_case {
	u32 hidden; /* tells the shape: 2048 Llama-3.2-1B, 576 SmolLM2-135M */
	enum peer_format format;
	u32 threads;
	const char *what; /* "prefill", "decode" */
	u32 size;	  /* tokens of the prompt; sequences that decode */
	double llama, ik;
};

const char *peer_format_name(enum peer_format f);
/* Of a model with that hidden size and vocabulary. NULL: was not measured. */
const struct peer_case *peer_find(u32 hidden, u32 vocab, enum peer_format f, u32 threads, const char *what, u32 size);
/* Limits of the machine they ran on: memory, and the arithmetic of the format. */
double peer_gbytes_s(u32 threads);
double peer_gops(enum peer_format f, u32 threads);

#endif
