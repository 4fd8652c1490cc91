/* The columns of the chunk that is being filled. Pure. */
#ifndef TERCET_PROC_DETOK_CHUNK_WRITER_H
#define TERCET_PROC_DETOK_CHUNK_WRITER_H

#include "common/buf.h"
#include "ipc/ipc.h"
#include "proc_detok/stream.h"

struct chunk_writer {
	u32 rows;
	u64 req_id[IPC_ROWS_MAX];
	u32 first_token[IPC_ROWS_MAX];
	u32 token_count[IPC_ROWS_MAX];
	u32 text_bytes[IPC_ROWS_MAX];
	u32 prompt_count[IPC_ROWS_MAX];
	u32 cached_count[IPC_ROWS_MAX];
	u8 finish[IPC_ROWS_MAX];
	u8 stop_kind[IPC_ROWS_MAX];
	u32 stop_value[IPC_ROWS_MAX];
	struct u32_vec tokens;
	struct buf text;
	struct u32_vec lp_token;
	struct u32_vec lp_count;
	struct u32_vec lp_rank;
	struct u32_vec lp_ids;
	struct buf lp_values;
	struct u32_vec plp_entry;
	struct u32_vec plp_position;
	struct u32_vec plp_count;
	struct u32_vec plp_rank;
	struct u32_vec plp_ids;
	struct buf plp_values;
	struct buf error_text;
};

enum chunk_added {
	CHUNK_NOTHING, /* the stream has nothing that may leave now */
	CHUNK_ALL,     /* all of it that may leave is in the chunk; its finish too, if it has ended */
	CHUNK_PART,    /* the chunk is full; there is more */
};

void chunk_writer_fini(struct chunk_writer *w);
void chunk_writer_clear(struct chunk_writer *w);
/* Moves what may leave from the stream into the chunk, up to about `bytes_max` bytes for the whole chunk. */
enum chunk_added chunk_writer_add(struct chunk_writer *w, struct stream *s, size_t bytes_max);
/* Arrays of `out` point into `w`. */
void chunk_writer_message(const struct chunk_writer *w, u64 client_id, struct ipc_chunk *out);

#endif
