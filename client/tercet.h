/* libtercet: a C client of a running Tercet engine, without HTTP in between.
 *
 * A handle submits requests to the scheduler and receives their tokens and text from the output socket. It keeps what
 * it needs to go on by itself: it re-attaches after a broken connection, acknowledges what was delivered, renews its
 * lease, and resubmits unfinished requests with the tokens generated so far when the scheduler was restarted. Every
 * token of a request is delivered exactly once and in order; every submitted request ends in exactly one event for
 * which tercet_event_is_last answers true.
 *
 *	struct tercet *t;
 *	struct tercet_error error;
 *	if (tercet_open(&t, &(struct tercet_config){.run_dir = "/run/tercet"}, &error) != TERCET_OK)
 *		die(error.text);
 *	struct tercet_request request;
 *	tercet_request_init(&request);
 *	request.tokens = ids;
 *	request.token_count = count;
 *	tercet_submit(t, &request, NULL, &error);
 *	struct tercet_event event;
 *	while (tercet_wait(t, -1, &event) == TERCET_OK && !tercet_event_is_last(&event))
 *		if (event.type == TERCET_EVENT_OUTPUT)
 *			fwrite(event.text, 1, event.text_bytes, stdout);
 *	tercet_close(&t);
 *
 * A handle belongs to one thread at a time and must not be used across fork. Only tercet_wait and
 * tercet_wait_ready block; closing may take a tenth of a second. Structures may grow at their end with a new minor
 * version: initialise them with the functions below or with `= {0}`. */
#ifndef TERCET_H
#define TERCET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERCET_API_VERSION 1

/* Results of functions, and the codes of refusals and errors sent by the engine. 0 is success. */
enum tercet_result {
	TERCET_OK = 0,
	TERCET_AGAIN = 1,         /* nothing to do now */
	TERCET_BUSY = 2,          /* a bounded table or queue is full */
	TERCET_GONE = 3,          /* the engine is not there */
	TERCET_INVALID = 4,       /* an argument or a request is wrong; the text says what */
	TERCET_TOO_LONG = 5,      /* longer than a limit */
	TERCET_NOT_FOUND = 6,
	TERCET_EXISTS = 7,
	TERCET_UNSUPPORTED = 8,
	TERCET_FORMAT = 9,        /* malformed data */
	TERCET_VERSION = 10,      /* protocol version or schema differs from the engine's */
	TERCET_SEQUENCE = 11,     /* a message was lost */
	TERCET_IO = 13,
	TERCET_NO_MEMORY = 14,
	TERCET_NEVER_FITS = 17,   /* the request can never fit into the KV cache */
	TERCET_ABORTED = 18,
	TERCET_TIMEOUT = 19,
	TERCET_SHUTDOWN = 21,     /* the engine is shutting down */
	TERCET_INTERNAL = 23,
	TERCET_CONFLICT = 24,     /* the conversation has a turn in work, or is not in a state for what was asked */
	TERCET_DROPPED = 25       /* the session is no longer kept */
};

/* What is wrong and what would be right, for people. */
struct tercet_error {
	char text[1024];
};

/* ---------------------------------------------------------------- requests */

/* Bits of tercet_params.flags. */
enum tercet_flag {
	TERCET_IGNORE_EOS = 1u << 0,
	TERCET_SKIP_SPECIAL = 1u << 1,  /* special tokens give no text (default) */
	TERCET_INCLUDE_STOP = 1u << 2,  /* the stop string or stop token stays in the text */
	TERCET_SPACES_BETWEEN_SPECIAL = 1u << 3, /* shown ones: the space that some decoders put between tokens stays */
	TERCET_NO_CACHE_READ = 1u << 4, /* do not read the prefix cache */
	TERCET_NO_TEXT = 1u << 5,       /* tokens only */
	TERCET_EARLY_STOPPING = 1u << 6, /* a beam search ends with its beam_width-th finished answer */
	TERCET_EMBEDDING = 1u << 7      /* the prompt's embedding comes among its log-probabilities; not of a beam search */
};

struct tercet_params {
	float temperature;        /* 0: greedy; 0 .. 100 */
	float top_p;              /* (0, 1] */
	float min_p;              /* 0 .. 1 */
	uint32_t top_k;           /* 0: off */
	float repetition_penalty; /* 0.01 .. 100; 1: off */
	float presence_penalty;   /* -2 .. 2 */
	float frequency_penalty;  /* -2 .. 2 */
	uint64_t seed;            /* sampling depends on (seed, position) alone, not on what else runs */
	uint32_t max_tokens;      /* at least 1 */
	uint32_t min_tokens;      /* below it neither end-of-sequence nor stop ids end the request */
	int32_t logprobs;         /* -1: none; n: the sampled token and the n best, at most 20 */
	int32_t prompt_logprobs;  /* the same for the prompt's tokens */
	uint32_t flags;           /* enum tercet_flag */
	uint32_t beam_width;      /* 0: sampling; 1 .. 10: beam search with so many beams */
};

/* What the output may be, in which words. Every token is then chosen so that the output can become a whole text of the
 * grammar, and the request ends where it is one and the model says so, or nothing can follow. docs/STRUCTURED_OUTPUT.md. */
enum tercet_grammar {
	TERCET_GRAMMAR_NONE = 0,
	TERCET_GRAMMAR_CHOICE = 1,      /* a JSON array of strings: one of them */
	TERCET_GRAMMAR_REGEX = 2,       /* an expression that the whole output matches */
	TERCET_GRAMMAR_JSON_SCHEMA = 3, /* a JSON Schema */
	TERCET_GRAMMAR_JSON_OBJECT = 4, /* any JSON object; has no source */
	TERCET_GRAMMAR_EBNF = 5,        /* rules as llama.cpp writes them (GBNF), the first being `root` */
	TERCET_GRAMMAR_PARTS = 6        /* a JSON array of texts, schemas and expressions one behind the other */
};

enum tercet_grammar_flag {
	TERCET_GRAMMAR_COMPACT = 1u << 0 /* JSON without white space between its tokens */
};

/* Everything pointed to is borrowed for the call of tercet_submit and copied. */
struct tercet_request {
	uint64_t req_id;          /* 0: the library numbers it (never reused within a handle) */
	void *user;               /* comes back in every event of the request */
	const uint32_t *tokens;   /* the prompt */
	uint32_t token_count;     /* what fits into a message of 64 MiB: TERCET_TOO_LONG beyond */
	struct tercet_params params;
	const uint32_t *stop_ids; /* at most 64 */
	uint32_t stop_id_count;
	const char *const *stop_strings; /* UTF-8 with a NUL behind each; at most 16 with 1,024 bytes together */
	uint32_t stop_string_count;
	const uint32_t *bias_ids; /* added to the logits of these tokens; at most 1,024 */
	const float *bias_values;
	uint32_t bias_count;
	uint64_t cache_salt;      /* the prefix cache is shared only within a salt */
	int32_t priority;         /* lower goes first; other than 0 is refused unless the engine serves by priority */

	/* A conversation whose tokens the engine keeps: `tokens` are only its new turn (there may be none), in front of
	 * which the engine puts everything of it so far. Prompt and output are kept when the request ends, an aborted
	 * one's as far as it came; one that ended before its first token leaves the session as it was. One request at a
	 * time: another one is refused with TERCET_CONFLICT. TERCET_NOT_FOUND, TERCET_DROPPED: there is no such session
	 * (any more); it is begun anew with the whole conversation. */
	const char *session;      /* NULL: none; 1 to 64 letters, digits and "._:-" */
	uint64_t session_owner;   /* of several tenants: whose; the same name is another session for another owner */
	uint32_t session_flags;   /* enum tercet_session_flag */
	uint32_t session_step;    /* with TERCET_SESSION_STEP */
	uint32_t session_join;    /* so many first ones of `tokens` (at most 64) are left out where the history ends with
				     them: what ends an answer and what the model itself may have said; 0: none. Else, an
				     end-of-sequence token at the history's end makes room for them */

	/* Of a beam search. Its answers, the best first, are requests of their own with consecutive ids from req_id on; each
	 * ends in an OUTPUT event of its own, with the same `user`. All come at the end of the search, in which neither
	 * sampling parameters nor penalties nor stop strings have a part: they must be neutral. */
	uint32_t answer_count;    /* 0: one; at most params.beam_width */
	double length_penalty;    /* answers are ordered by log-probability / length ^ length_penalty; -10 .. 10 */

	/* A grammar that the output follows; not of a beam search, nor with TERCET_IGNORE_EOS. What cannot be compiled ends
	 * the request with TERCET_FINISH_ERROR: tercet_check_grammar tells before. min_tokens and stop ids hold as far as the
	 * grammar leaves another token; stop strings and max_tokens end the output wherever it is. */
	enum tercet_grammar grammar_kind;
	uint32_t grammar_flags;   /* enum tercet_grammar_flag */
	const char *grammar;      /* its source, UTF-8, */
	uint32_t grammar_bytes;   /* at most 131,072 */

	const char *lora;         /* the name of an adapter that the engine serves (--lora-modules), at most 256 bytes; NULL or "":
				     the model alone. TERCET_NOT_FOUND: there is none of that name */
};

/* Compiles a grammar and forgets it. TERCET_FORMAT, TERCET_INVALID, TERCET_UNSUPPORTED, TERCET_TOO_LONG: what is wrong with
 * it, and where. Takes milliseconds for a large one. */
enum tercet_result tercet_check_grammar(enum tercet_grammar kind, uint32_t flags, const char *source, size_t bytes,
					struct tercet_error *error);

enum tercet_session_flag {
	TERCET_SESSION_BEGIN = 1u << 0, /* it must not be there yet (TERCET_CONFLICT); without the flag it must */
	TERCET_SESSION_STEP = 1u << 1,  /* go back to the first session_step tokens of the history first */
	TERCET_SESSION_END = 1u << 2    /* its last turn: nothing of it is kept */
};

/* The engine's defaults: temperature 1, max_tokens 16, special tokens skipped, no logprobs, everything else off.
 * With temperature above 0 the caller chooses the seed. */
void tercet_params_init(struct tercet_params *params);
/* No tokens, default parameters, one answer, length_penalty 1. */
void tercet_request_init(struct tercet_request *request);

/* ---------------------------------------------------------------- events */

enum tercet_event_type {
	TERCET_EVENT_NONE = 0,
	/* The engine answered: tercet_get_engine has its properties. Comes again after a restart of the scheduler, when
	 * unfinished requests have been resubmitted. */
	TERCET_EVENT_READY = 1,
	/* The connection broke or the engine is restarting; requests go on by themselves when READY comes again.
	 * code, error_text. */
	TERCET_EVENT_LOST = 2,
	/* The request is in the engine's queue. `waiting`: requests in front of it. Left out when an OUTPUT of the
	 * request was faster. */
	TERCET_EVENT_ACCEPTED = 3,
	/* Last event of a request that was not admitted. code, error_text; retry_after_ms, 0: trying again is of no
	 * use. */
	TERCET_EVENT_REFUSED = 4,
	/* News of a request: tokens, their text, logprobs. finish is not 0 in its last event. */
	TERCET_EVENT_OUTPUT = 5,
	/* The engine closed this client's output (too slow, or chunks it asked for are gone). What follows are the last
	 * events of its unfinished requests, with TERCET_FINISH_ERROR. code, error_text. */
	TERCET_EVENT_DETACHED = 6,
	/* Something the engine could not take, or that this handle could not read. code, error_text; req_id or 0. */
	TERCET_EVENT_ERROR = 7,
	/* The answer to tercet_session_get or tercet_session_end: `session`, or code and error_text. req_id is the
	 * number that these returned. An engine that was restarted meanwhile is asked again. */
	TERCET_EVENT_SESSION = 8
};

struct tercet_session_state {
	uint32_t token_count;  /* of the history, without a turn that runs */
	uint32_t turn_count;
	uint32_t cached_count; /* tokens of it whose KV is in the prefix cache now */
	uint32_t running;      /* 1: a turn runs */
	uint32_t age_s, idle_s;
	uint32_t ttl_s;        /* of idleness, after which it is dropped; 0: never */
};

enum tercet_finish {
	TERCET_FINISH_NONE = 0,
	TERCET_FINISH_STOP = 1,   /* end-of-sequence token, stop id or stop string */
	TERCET_FINISH_LENGTH = 2, /* max_tokens or the context length */
	TERCET_FINISH_ABORT = 3,
	TERCET_FINISH_ERROR = 4   /* error_text */
};

enum tercet_stop {
	TERCET_STOP_NONE = 0,
	TERCET_STOP_ID = 1,    /* stop_value: the stop id of the request that ended it */
	TERCET_STOP_STRING = 2 /* stop_value: the index of the stop string */
};

/* Log-probabilities of a run of tokens. Element i lists counts[i] ids and values, one element behind the other in
 * `ids` and `values`: the token itself first, then the best; ranks[i] is the token's own rank from 1. */
struct tercet_logprobs {
	uint32_t count;            /* elements; 0: none */
	const uint32_t *positions; /* prompt only: the position of each element in the prompt, from 1; else NULL */
	const uint32_t *counts;
	const uint32_t *ranks;
	const uint32_t *ids;
	const float *values;
};

/* Pointers are borrowed until the next call with the same handle. Text is not NUL-terminated. */
struct tercet_event {
	enum tercet_event_type type;
	uint64_t req_id;
	void *user;

	enum tercet_result code;
	const char *error_text; /* "" when there is none; NUL-terminated */
	uint32_t retry_after_ms;
	uint32_t waiting;

	uint64_t chunk;         /* OUTPUT: number of the chunk that it came in */
	uint32_t first_token;   /* output number of tokens[0], from 0 */
	uint32_t token_count;
	const uint32_t *tokens;
	const char *text;       /* decoded form of exactly these tokens; whole UTF-8 characters; never NULL */
	uint32_t text_bytes;
	uint32_t prompt_count;
	uint32_t cached_count;  /* prompt tokens found in the prefix cache */
	enum tercet_finish finish;
	enum tercet_stop stop_kind;
	uint32_t stop_value;
	struct tercet_logprobs logprobs;        /* count is 0 or token_count: element i belongs to tokens[i] */
	/* In one of the request's first OUTPUT events; of a beam search answer 0's. With TERCET_EMBEDDING there is an element of position
	 * prompt_count, whose values are the embedding: what the final norm made of the prompt's last token, not scaled to length 1. */
	struct tercet_logprobs prompt_logprobs;
	struct tercet_session_state session;    /* SESSION */
	uint32_t answer;        /* of a beam search: which one, from 0; in REFUSED 0 stands for all */
};

/* REFUSED, or OUTPUT with a finish: no further event of this request comes, and its id is forgotten. */
bool tercet_event_is_last(const struct tercet_event *event);
/* "stop", "length", "abort", "error"; "" for NONE. */
const char *tercet_finish_name(enum tercet_finish finish);
const char *tercet_result_text(enum tercet_result result);

/* ---------------------------------------------------------------- handle */

struct tercet;

typedef void (*tercet_event_fn)(void *ctx, const struct tercet_event *event);

struct tercet_config {
	const char *run_dir;         /* the engine's run directory; or both endpoints: */
	const char *submit_endpoint; /* "ipc:///run/tercet/submit", "tcp://host:port" */
	const char *output_endpoint;
	const char *name;            /* shown in the engine's log; NULL: "client" */
	uint64_t client_id;          /* 0: a random one. Give the old one to take up an earlier life's requests */
	uint64_t last_chunk;         /* the highest chunk number seen in the earlier life */
	uint32_t max_requests;       /* unfinished at once; 0: 4,096 */
	bool manual_ack;             /* chunks are acknowledged only by tercet_ack; else once they were delivered */
	bool follow;                 /* output of requests unknown to this handle is delivered too (user NULL) */
	const char *record_dir;      /* not NULL: every message is recorded there (`tercet trace --messages`) */
};

/* Begins to connect and returns; READY comes when the engine has answered. Requests may be submitted at once.
 * TERCET_INVALID, TERCET_TOO_LONG (path), TERCET_IO, TERCET_NO_MEMORY. `error` may be NULL everywhere. */
enum tercet_result tercet_open(struct tercet **out, const struct tercet_config *config, struct tercet_error *error);
/* Says good-bye: the engine aborts what is unfinished and forgets the client. NULL accepted. */
void tercet_close(struct tercet **t);
/* Frees the handle without a good-bye: within the lease another handle may take the client up with its id and last
 * chunk number (tercet_adopt). */
void tercet_leave(struct tercet **t);

/* Waits until the engine has answered. Events that come meanwhile stay for tercet_next. TERCET_TIMEOUT;
 * TERCET_VERSION when the engine speaks another protocol. */
enum tercet_result tercet_wait_ready(struct tercet *t, int timeout_ms, struct tercet_error *error);

/* Submits. `req_id` (may be NULL) receives the id. What is wrong with the request is told here where the library can
 * see it (TERCET_INVALID, TERCET_TOO_LONG), else by a REFUSED event. TERCET_BUSY: max_requests are unfinished.
 * TERCET_EXISTS: the id is in use. TERCET_NO_MEMORY. Never blocks: it is sent as soon as the engine takes it. */
enum tercet_result tercet_submit(struct tercet *t, const struct tercet_request *request, uint64_t *req_id,
				 struct tercet_error *error);
/* Asks the engine to end the request, of a beam search all of its answers; its last event (usually TERCET_FINISH_ABORT) still comes.
 * TERCET_NOT_FOUND: unknown or ended. */
enum tercet_result tercet_abort(struct tercet *t, uint64_t req_id);
/* The same, but no further event of the request (of a search: of this answer) is delivered: `user` may be freed afterwards. */
enum tercet_result tercet_discard(struct tercet *t, uint64_t req_id);
/* Takes up a request submitted in an earlier life of this client id, of which `token_count` tokens and `text_bytes`
 * bytes of text were delivered. Before the first tercet_next. Without its prompt it cannot outlive the scheduler. */
enum tercet_result tercet_adopt(struct tercet *t, uint64_t req_id, uint32_t token_count, uint32_t text_bytes,
				void *user);

/* Asks for the state of a session, or ends it (a turn that runs is aborted). `query_id` (may be NULL) receives a number
 * that comes back in the SESSION event, with `user`; numbers of requests are apart from these. TERCET_INVALID: the name.
 * TERCET_BUSY: 1,024 are unanswered. Never blocks. */
enum tercet_result tercet_session_get(struct tercet *t, const char *session, uint64_t owner, void *user,
				      uint64_t *query_id, struct tercet_error *error);
enum tercet_result tercet_session_end(struct tercet *t, const char *session, uint64_t owner, void *user,
				      uint64_t *query_id, struct tercet_error *error);
/* The answer to this query is nobody's: `user` may be freed. */
void tercet_session_discard(struct tercet *t, uint64_t query_id);

/* The next event; TERCET_AGAIN when there is none now. Never blocks. */
enum tercet_result tercet_next(struct tercet *t, struct tercet_event *event);
/* Waits up to `timeout_ms` (-1: for ever) for the next event. TERCET_TIMEOUT; TERCET_IO. */
enum tercet_result tercet_wait(struct tercet *t, int timeout_ms, struct tercet_event *event);
/* Hands all events that are there to `fn`, at most 4,096 of them; returns how many. `fn` may call tercet_submit,
 * tercet_abort, tercet_discard and tercet_ack. Never blocks. */
uint32_t tercet_dispatch(struct tercet *t, tercet_event_fn fn, void *ctx);
/* For foreign event loops: a file descriptor that becomes readable when tercet_next or tercet_dispatch has something
 * to do, timers included. After it fired call tercet_next until TERCET_AGAIN, or tercet_dispatch once. */
int tercet_fd(const struct tercet *t);

/* Chunks up to this one are stored safely: the engine need not keep them. Only with manual_ack. */
void tercet_ack(struct tercet *t, uint64_t chunk);

/* ---------------------------------------------------------------- properties */

struct tercet_engine {
	uint32_t max_model_len;
	uint32_t vocab_size;
	uint32_t block_size;
	uint32_t block_count;
	uint32_t max_num_seqs;
	uint32_t client_lease_s;
	uint32_t embedding_width; /* numbers of an embedding; 0: the engine gives none */
	uint32_t eos_id_count;
	const uint32_t *eos_ids; /* borrowed until the next READY */
	const char *model;       /* the name under which the engine serves its model */
};

/* False before the first READY. */
bool tercet_get_engine(const struct tercet *t, struct tercet_engine *out);
/* True between READY and LOST. */
bool tercet_is_ready(const struct tercet *t);
uint64_t tercet_client_id(const struct tercet *t);
/* The highest chunk number all of whose events were delivered. */
uint64_t tercet_last_chunk(const struct tercet *t);
uint32_t tercet_unfinished_count(const struct tercet *t);

/* ---------------------------------------------------------------- tokens from text */

/* The engine takes token ids. This turns text into those of a model directory, in this process. */
struct tercet_tokenizer;

/* Reads the tokenizer of `model_dir` (docs/TEXT.md says from which files), which may also be a file *.gguf or the name of a download from
 * the Hub (docs/LOADING.md), as "tercet serve" takes them: what is in a file is written into a folder of its own once. TERCET_IO, TERCET_FORMAT, TERCET_UNSUPPORTED with the file and the
 * part named; TERCET_NOT_FOUND: no such download; of a file *.gguf TERCET_INVALID, TERCET_NOT_FOUND, TERCET_DENIED, TERCET_TOO_LONG, too; TERCET_NO_MEMORY. The caller
 * owns `*out`. */
enum tercet_result tercet_tokenizer_open(struct tercet_tokenizer **out, const char *model_dir,
					 struct tercet_error *error);
void tercet_tokenizer_close(struct tercet_tokenizer **t); /* NULL accepted */
/* The ids of `bytes` bytes of UTF-8; `add_special` puts those around it that the model expects (a beginning-of-sequence
 * token and the like). `*ids` is borrowed until the next call. TERCET_FORMAT: no valid UTF-8. */
enum tercet_result tercet_tokenize(struct tercet_tokenizer *t, const char *text, size_t bytes, bool add_special,
				   const uint32_t **ids, uint32_t *count, struct tercet_error *error);

#ifdef __cplusplus
}
#endif

#endif
