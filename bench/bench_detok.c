/* Tokens per second through the detokenizer's core: RESULTs of all streams in, encoded chunks out, no
 * sockets. bench_detok [MODEL [STREAMS [STEPS]]] prints one JSON line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "proc_detok/streams.h"

static const char story[] = "Once upon a time there lived in a small house near the forest an old woman and "
			    "her three sons. The eldest was "
			    "strong, the second was clever, and of the youngest \xe2\x80\x94 he was called "
			    "Jo\xc3\xa3o \xe2\x80\x94 nobody "
			    "knew what he was. \xe2\x80\x9cMother,\xe2\x80\x9d said he one morning, "
			    "\xe2\x80\x9cI will go and see the "
			    "world.\xe2\x80\x9d\n\nSo he took his coat and his hat and went, and when he had "
			    "gone a little way he met a fox.";

struct bench {
	struct tokenizer *tokenizer;
	struct streams *streams;
	struct u32_vec text;
	u32 count;
	u32 steps;
	u64 *seqs;
	u32 *positions;
	u32 *tokens;
	u64 bytes;
};

static void fail(const char *what)
{
	fprintf(stderr, "bench_detok: %s\n", what);
	exit(1);
}

static void open_all(struct bench *b, bool with_stops)
{
	static const u8 stops[] = "\n\nUser:</end>";
	static const u32 lengths[] = {7, 6};
	static const u32 eos[] = {0};
	for (u32 i = 0; i < b->count; i++) {
		struct ipc_open open = {.seq = i + 1,
					.client_id = 1,
					.req_id = i + 1,
					.output_max = UINT32_MAX,
					.flags = SAMPLING_SKIP_SPECIAL,
					.eos_ids = eos,
					.eos_ids_count = 1};
		if (with_stops) {
			open.stop_strings = stops;
			open.stop_strings_count = sizeof(stops) - 1;
			open.stop_string_bytes = lengths;
			open.stop_string_bytes_count = 2;
		}
		streams_open(b->streams, &open, 1, 0);
		b->seqs[i] = i + 1;
	}
}

static double run(struct bench *b, bool with_stops)
{
	struct streams_config config = {
		.tokenizer = b->tokenizer, .streams_max = b->count, .clients_max = 1, .early_max = 16};
	struct ipc_attach attach = {.client_id = 1};
	struct buf frame = {0};
	if (streams_create(&b->streams, &config) != ERR_OK ||
	    streams_client_ready(b->streams, &attach) != ERR_OK)
		fail("out of memory");
	open_all(b, with_stops);
	b->bytes = 0;
	u64 begin_ns = clock_now_ns();
	for (u32 step = 0; step < b->steps; step++) {
		for (u32 i = 0; i < b->count; i++) {
			b->positions[i] = step;
			b->tokens[i] = b->text.data[(step + 7 * i) % b->text.count];
		}
		struct ipc_result r = {.step = step,
				       .seq = b->seqs,
				       .seq_count = b->count,
				       .position = b->positions,
				       .position_count = b->count,
				       .token = b->tokens,
				       .token_count = b->count};
		struct ipc_msg msg = {.type = IPC_TYPE_CHUNK};
		streams_result(b->streams, &r, 1, step);
		while (streams_next_chunk(b->streams, &msg.chunk)) {
			buf_clear(&frame);
			ipc_encode(&msg, &frame);
			b->bytes += frame.bytes;
		}
	}
	u64 spent_ns = clock_now_ns() - begin_ns;
	if (streams_counters(b->streams)->tokens != (u64)b->count * b->steps)
		fail("tokens were lost");
	buf_fini(&frame);
	streams_destroy(&b->streams);
	return (double)spent_ns / ((double)b->count * b->steps);
}

int main(int argc, char **argv)
{
	struct bench b = {.count = argc > 2 ? (u32)atoi(argv[2]) : 256,
			  .steps = argc > 3 ? (u32)atoi(argv[3]) : 4000};
	struct text_scratch *scratch;
	struct err_msg em = {.text = ""};
	if (b.count == 0 || b.count > IPC_ROWS_MAX || b.steps == 0)
		fail("use: bench_detok [MODEL [STREAMS 1..1024 [STEPS]]]");
	if (tokenizer_load(&b.tokenizer, argc > 1 ? argv[1] : "demo", &em) != ERR_OK ||
	    text_scratch_create(&scratch) != ERR_OK ||
	    tokenizer_encode(b.tokenizer, scratch, story, strlen(story), 0, &b.text, &em) != ERR_OK)
		fail(em.text);
	b.seqs = calloc(b.count, sizeof(*b.seqs));
	b.positions = calloc(b.count, sizeof(*b.positions));
	b.tokens = calloc(b.count, sizeof(*b.tokens));
	if (!b.seqs || !b.positions || !b.tokens)
		fail("out of memory");

	double plain_ns = run(&b, false);
	u64 bytes = b.bytes;
	double stops_ns = run(&b, true);
	printf("{\"bench\":\"detok\",\"streams\":%u,\"steps\":%u,\"ns_per_token\":%.1f,\"tokens_per_s\":%.0f,"
	       "\"step_us\":%.1f,\"ns_per_token_with_stops\":%.1f,\"chunk_bytes_per_token\":%.1f}\n",
	       b.count, b.steps, plain_ns, 1e9 / plain_ns, plain_ns * b.count / 1000, stops_ns,
	       (double)bytes / ((double)b.count * b.steps));
	text_scratch_free(&scratch);
	tokenizer_free(&b.tokenizer);
	u32_vec_fini(&b.text);
	free(b.seqs);
	free(b.positions);
	free(b.tokens);
	return 0;
}
