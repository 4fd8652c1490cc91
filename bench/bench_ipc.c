/* Messages: encoding and decoding the common ones, and a round trip between two channels. Prints one JSON line.
 *   bench_ipc [ROUND_TRIPS] */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/assert.h"
#include "common/clock.h"
#include "ipc/ipc.h"

enum { CODEC_ROUNDS = 200000, ROWS = 1024 };

struct cost {
	double encode_us, decode_us;
	size_t bytes;
};

static struct cost measure(const struct ipc_msg *msg, u32 rounds)
{
	struct buf frame = {0};
	struct ipc_scratch scratch = {0};
	struct ipc_msg read;
	struct cost c;
	u64 begin = clock_now_ns();
	for (u32 i = 0; i < rounds; i++) {
		buf_clear(&frame);
		ipc_encode(msg, &frame);
	}
	u64 middle = clock_now_ns();
	for (u32 i = 0; i < rounds; i++)
		ASSERT(ipc_decode(frame.data, frame.bytes, &scratch, &read, NULL) == ERR_OK);
	u64 end = clock_now_ns();
	c.encode_us = (double)(middle - begin) / rounds / 1e3;
	c.decode_us = (double)(end - middle) / rounds / 1e3;
	c.bytes = frame.bytes;
	buf_fini(&frame);
	ipc_scratch_fini(&scratch);
	return c;
}

static struct ipc_channel *open_end(struct ipc_context *ctx, const char *dir, bool bind)
{
	struct err_msg em;
	char endpoint[128];
	struct ipc_channel *ch = NULL;
	struct ipc_channel_config config = {.name = "bench", .endpoint = endpoint,
					    .pattern = bind ? IPC_ROUTER : IPC_DEALER, .bind = bind};
	ASSERT(ipc_endpoint(endpoint, sizeof(endpoint), dir, "bench", &em) == ERR_OK);
	if (ipc_channel_open(&ch, ctx, &config, &em) != ERR_OK) {
		fprintf(stderr, "bench_ipc: %s\n", em.text);
		exit(1);
	}
	return ch;
}

static void wait_message(struct ipc_channel *ch, u32 type, ipc_peer *from)
{
	struct ipc_msg msg = {0};
	while (ipc_recv(ch, from, &msg, NULL) != ERR_OK || msg.type != type)
		;
}

/* Both ends in one thread, so this is the cost of four crossings of ZeroMQ's I/O threads and nothing else. */
static double round_trip_us(u32 rounds)
{
	char dir[] = "/tmp/tercet_bench_XXXXXX";
	char path[64];
	struct ipc_context *a = NULL;
	struct ipc_context *b = NULL;
	ipc_peer peer, nobody;
	struct ipc_msg msg = {.type = IPC_TYPE_STEP, .step = {.step = 1}};
	if (!mkdtemp(dir) || ipc_context_create(&a, NULL) != ERR_OK || ipc_context_create(&b, NULL) != ERR_OK)
		exit(1);
	struct ipc_channel *router = open_end(a, dir, true);
	struct ipc_channel *dealer = open_end(b, dir, false);
	wait_message(router, IPC_TYPE_HELLO, &peer);
	wait_message(dealer, IPC_TYPE_HELLO, &nobody);
	u64 begin = clock_now_ns();
	for (u32 i = 0; i < rounds; i++) {
		ASSERT(ipc_send(router, peer, &msg) == ERR_OK);
		wait_message(dealer, IPC_TYPE_STEP, &nobody);
		ASSERT(ipc_send(dealer, nobody, &msg) == ERR_OK);
		wait_message(router, IPC_TYPE_STEP, &peer);
	}
	double us = (double)(clock_now_ns() - begin) / rounds / 1e3;
	ipc_channel_close(&dealer);
	ipc_channel_close(&router);
	ipc_context_destroy(&a);
	ipc_context_destroy(&b);
	snprintf(path, sizeof(path), "%s/bench", dir);
	unlink(path);
	rmdir(dir);
	return us;
}

int main(int argc, char **argv)
{
	static u64 seqs[ROWS];
	static u32 columns[ROWS];
	u32 rounds = argc > 1 ? (u32)atoi(argv[1]) : 2000;
	struct ipc_msg steady = {.type = IPC_TYPE_STEP, .step = {.step = 12345, .digest = 0x123456789abcdef0u}};
	struct ipc_msg grown = steady;
	grown.step.grow_row = grown.step.grow_block = columns;
	grown.step.grow_row_count = grown.step.grow_block_count = ROWS / 16;
	struct ipc_msg result = {.type = IPC_TYPE_RESULT,
				 .result = {.seq = seqs, .seq_count = ROWS, .position = columns, .position_count = ROWS,
					    .token = columns, .token_count = ROWS}};
	struct cost s = measure(&steady, CODEC_ROUNDS);
	struct cost g = measure(&grown, CODEC_ROUNDS);
	struct cost r = measure(&result, CODEC_ROUNDS / 10);
	printf("{\"bench\":\"ipc\",\"steady_step_bytes\":%zu,\"steady_step_encode_us\":%.3f,\"steady_step_decode_us\":%.3f,"
	       "\"grow64_step_bytes\":%zu,\"grow64_step_encode_us\":%.3f,\"grow64_step_decode_us\":%.3f,"
	       "\"result1024_bytes\":%zu,\"result1024_encode_us\":%.3f,\"result1024_decode_us\":%.3f,"
	       "\"round_trip_us\":%.1f}\n",
	       s.bytes, s.encode_us, s.decode_us, g.bytes, g.encode_us, g.decode_us, r.bytes, r.encode_us, r.decode_us,
	       round_trip_us(rounds));
	return 0;
}
