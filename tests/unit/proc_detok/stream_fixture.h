/* Streams over a vocabulary of the test's own, and a reader that puts chunks together again. */
#ifndef TERCET_TESTS_STREAM_FIXTURE_H
#define TERCET_TESTS_STREAM_FIXTURE_H

#include "proc_detok/streams.h"

/* Token 0..255: that byte. 256: special, no text when special tokens are skipped, else "<s>". 257: end of
 * sequence, special, "</s>". 258 and up: words[id - 258]. */
enum { TOK_SPECIAL = 256, TOK_EOS = 257, TOK_WORDS = 258, WORDS_MAX = 64 };

extern const char *fixture_words[WORDS_MAX];

/* What a client put together of one request. */
struct request_view {
	u64 req_id;
	u32 tokens[4096];
	u32 token_count;
	char text[65536];
	u32 text_bytes;
	u32 entries;
	u32 lp_count;	   /* tokens that came with log-probabilities */
	u32 lp_tokens[64]; /* the output numbers of the first of them */
	f32 lp_first[64];  /* value of the sampled id */
	u32 lp_listed[64];
	u32 lp_rank[64];
	u32 plp_count;
	u32 plp_next;
	u32 finish;
	u32 finishes;
	u32 stop_kind;
	u32 stop_value;
	char error[256];
};

struct client_view {
	struct request_view requests[64];
	u32 count;
	u32 chunks;
	bool skip_ended; /* what comes for ended requests is passed over instead of being an error */
};

struct request_view *view_request(struct client_view *v, u64 req_id);
/* Asserts that the chunk goes on exactly where the view ends. */
void view_add(struct client_view *v, const struct ipc_chunk *chunk);
/* Takes every chunk there is; `v` for all clients. */
void view_drain(struct client_view *v, struct streams *ss);

struct streams *fixture_streams(u32 streams_max);
void fixture_ready(struct streams *ss, u64 client_id);

/* An OPEN with sensible values, to be changed before use. */
struct ipc_open fixture_open(u64 seq, u64 client_id, u64 req_id);
/* Sets the stop strings; arrays are static to the call's storage. */
struct stop_list {
	u32 lengths[STOP_STRINGS_MAX];
	u8 text[STOP_STRING_BYTES_MAX];
};
void fixture_stops(struct ipc_open *open, struct stop_list *list, const char *const *stops, u32 count);
/* One token as a RESULT of its own. */
void fixture_push(struct streams *ss, u64 seq, u32 position, u32 token);
/* The bytes of `text` one token each, from `position` on; the next position. */
u32 fixture_push_text(struct streams *ss, u64 seq, u32 position, const char *text);

#endif
