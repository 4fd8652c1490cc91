/* The inside of a libtercet handle: the requests it holds, what it has to tell, and its two channels. Its functions
 * have the library's prefix, so that they meet nobody's when it is linked statically, and are hidden, so that the
 * shared library shows tercet.h only. */
#ifndef TERCET_CLIENT_LIBTERCET_PRIV_H
#define TERCET_CLIENT_LIBTERCET_PRIV_H

#include "client/tercet.h"
#include "common/buf.h"
#include "common/map.h"
#include "ipc/ipc.h"

#pragma GCC visibility push(hidden)

/* ---------------------------------------------------------------- requests (libtercet_held.c) */

enum request_state {
	REQUEST_FREE,
	REQUEST_DUE,      /* to be sent as soon as the engine takes it */
	REQUEST_SENT,
	REQUEST_ACCEPTED, /* or first heard of by its output */
};

/* A place in the output that begins an entry: only there is the length of the text in front of a token known. */
struct output_mark {
	u32 tokens;
	u64 text_bytes;
};

enum { MARKS_MAX = 32 };

struct held_request {
	enum request_state state;
	bool again;      /* sent before: the engine may know it */
	bool abort_due;  /* ABORT is still to be sent */
	bool aborted;
	bool discarded;  /* its events are nobody's */
	bool adopted;    /* its prompt is unknown */
	bool failed;     /* its last event is to be made here */
	bool over;       /* its last event was delivered; it stays for the other answers of its search */
	u64 req_id;
	u64 first_id;    /* of a beam search: the request of its answer 0, which is the one that is submitted; else req_id */
	u32 answer;
	u32 others;      /* in answer 0: further answers that are unfinished */
	void *user;
	u32 previous;    /* in the order of submission */
	u32 next;
	struct ipc_submit submit; /* arrays but the tokens point into `store` */
	char *store;              /* owned */
	struct u32_vec tokens;    /* the prompt and the outputs delivered so far */
	u32 prompt_count;
	u32 output_count;
	u64 text_bytes;
	u32 prompt_next;          /* prompt positions below it came with their log-probabilities */
	u32 mark_count;           /* 0 unless it was submitted again or adopted */
	struct output_mark marks[MARKS_MAX];
};

enum { REQUEST_NONE = UINT32_MAX };

struct held_requests {
	struct held_request *slots; /* [capacity] */
	struct map by_id;
	u32 capacity;
	u32 count;
	u32 free_head; /* chained by `next` */
	u32 head;      /* oldest */
	u32 tail;
	u32 due_count; /* REQUEST_DUE or abort_due */
	u32 failed_count;
	u32 over_count;
};

MUST_CHECK enum err tercet_held_init(struct held_requests *rs, u32 capacity);
void tercet_held_fini(struct held_requests *rs);
/* Copies `q` into a new request of id `req_id`, state REQUEST_DUE. The further answers of a beam search become requests
 * with the ids behind it, which share its state. ERR_BUSY, ERR_EXISTS, ERR_NO_MEMORY. */
MUST_CHECK enum err tercet_held_add(struct held_requests *rs, const struct tercet_request *q, u64 req_id, u64 client_id,
				 struct held_request **out);
/* A request of an earlier life. */
MUST_CHECK enum err tercet_held_adopt(struct held_requests *rs, u64 req_id, u32 token_count, u64 text_bytes, void *user,
				   struct held_request **out);
struct held_request *tercet_held_find(struct held_requests *rs, u64 req_id);
/* Answer 0 of a search stays, over, until all others are removed. */
void tercet_held_remove(struct held_requests *rs, struct held_request *r);
/* Answer 0 of its search; else `r`. */
struct held_request *tercet_held_first(struct held_requests *rs, struct held_request *r);
/* Of the search of `first` the unfinished answer behind `r` (NULL: the first one); NULL: there are no more. */
struct held_request *tercet_held_next_answer(struct held_requests *rs, struct held_request *first,
					     const struct held_request *r);
void tercet_held_set_state(struct held_requests *rs, struct held_request *r, enum request_state state);
void tercet_held_set_abort_due(struct held_requests *rs, struct held_request *r, bool due);
/* Whether a session keeps what it has generated when it is aborted, so that even then an engine that forgot it has to
 * hear of it again. */
bool tercet_held_leaves_history(const struct held_request *r);
void tercet_held_set_failed(struct held_requests *rs, struct held_request *r);
/* The next in the order of submission; NULL: from the oldest, or no more. */
struct held_request *tercet_held_next(struct held_requests *rs, struct held_request *r);

/* What of an entry is new. An entry may repeat what an earlier life of scheduler or detokenizer already delivered. */
struct output_part {
	u32 skip_tokens;
	u32 skip_bytes;
};
/* Accounts for an entry and tells what of it was delivered before. False: what lies between is lost. ERR_NO_MEMORY
 * shows as r->tokens.failed. */
bool tercet_held_take_output(struct held_request *r, u32 first_token, const u32 *tokens, u32 token_count,
			     u32 text_bytes, struct output_part *part);
/* Removes from an event the log-probabilities of prompt positions that were delivered before: a detokenizer that
 * begins anew gives them once more. */
void tercet_held_take_prompt(struct held_request *r, struct tercet_logprobs *lp);
/* From now on the engine may repeat what lies behind this point. */
void tercet_held_mark(struct held_request *r);

/* ---------------------------------------------------------------- chunks (libtercet_chunk.c) */

/* The chunk whose entries are being handed out. Its arrays belong to the output channel. */
struct chunk_cursor {
	struct ipc_chunk chunk;
	bool in_hand;
	u32 entry;
	u32 token;
	u32 text;
	u32 lp;
	u32 lp_ids;
	u32 plp;
	u32 plp_ids;
};

/* Takes a chunk in hand when its columns fit together. ERR_FORMAT says which does not. */
MUST_CHECK enum err tercet_chunk_begin(struct chunk_cursor *c, const struct ipc_chunk *chunk, struct err_msg *em);
/* The next entry, as an event without request; false: the chunk is done. */
bool tercet_chunk_next(struct chunk_cursor *c, struct tercet_event *event);
/* Removes from the front of an entry's event what was delivered before. */
void tercet_chunk_skip(struct tercet_event *event, const struct output_part *part);

/* ---------------------------------------------------------------- sessions (libtercet_session.c) */

struct session_query {
	u64 id; /* 0: free */
	void *user;
	u32 action;
	u64 owner;
	bool sent, discarded;
	char name[SESSION_NAME_MAX + 1];
};

enum { SESSION_QUERIES_MAX = 1024 };

struct session_queries {
	struct session_query *slots; /* [SESSION_QUERIES_MAX], made with the first */
	u32 count, due_count;
	u64 next_id;
};

/* ---------------------------------------------------------------- handle */

/* An event that is not part of a chunk, waiting to be delivered. */
struct notice {
	enum tercet_event_type type;
	u64 req_id;
	void *user;
	enum tercet_result code;
	u32 retry_after_ms;
	u32 waiting;
	struct tercet_session_state session;
	char text[IPC_ERROR_TEXT_MAX + 1];
};

enum { NOTICES_MAX = 8 };

struct tercet {
	u64 client_id;
	bool manual_ack;
	bool follow;
	char name[64];
	struct ipc_context *ipc;
	struct ipc_channel *submit;
	struct ipc_channel *output;
	int epoll_fd; /* what the caller sees */
	int timer_fd;
	int wake_fd;
	bool woken;
	u64 timer_ns; /* what timer_fd is set to; 0: off */

	bool engine_there;   /* ENGINE came in this life of the scheduler */
	bool engine_known;   /* ENGINE came in any life */
	bool attached;
	bool attach_refused; /* another handle took the client over */
	bool told_ready;
	enum tercet_result refused_code; /* the engine speaks another protocol */
	struct err_msg refused_text;
	struct ipc_engine engine;
	char model[4097];
	u32 eos_ids[EOS_IDS_MAX];

	u64 next_req_id;
	struct held_requests requests;
	struct session_queries queries;
	struct notice notices[NOTICES_MAX];
	u32 notice_first;
	u32 notice_count;
	struct notice delivered; /* what the last event's pointers point into */
	enum tercet_result fail_code;
	char fail_text[IPC_ERROR_TEXT_MAX + 1];

	struct chunk_cursor cursor;
	u64 seen_chunk;      /* taken in hand */
	u64 delivered_chunk; /* all of its events were handed out */
	u64 acked_chunk;
	u64 alive_due_ns;
	u64 attach_due_ns;   /* 0: no attach is to be repeated */
};

/* The text of an error as the rest of Tercet has it: the same memory. NULL for NULL. */
static inline struct err_msg *message_of(struct tercet_error *error)
{
	return (struct err_msg *)error;
}

bool tercet_session_name_ok(const char *name);
/* Sends queries that are due, as long as the engine takes them and their answers have room. */
void tercet_session_send_due(struct tercet *t);
/* The connection broke: what was sent is asked again. */
void tercet_session_lost(struct tercet *t);
void tercet_session_answer(struct tercet *t, const struct ipc_session_state *m);
void tercet_session_fini(struct session_queries *q);

/* Puts an event behind those that wait. */
void tercet_handle_notify(struct tercet *t, const struct notice *n);
/* Every request the engine had is over: their last events say so. */
void tercet_handle_fail_requests(struct tercet *t, enum tercet_result code, const char *text);
/* Sends ATTACH with all that is held. */
void tercet_handle_send_attach(struct tercet *t);
/* Sends what is due: requests, aborts, attach, sign of life, acknowledgements. */
void tercet_handle_send_due(struct tercet *t, u64 now_ns);

/* After a send from outside of tercet_next: it may have swallowed the edge of a message that came before. */
void tercet_handle_sent(struct tercet *t);
/* Makes the descriptor readable where there is something to hand out or to receive. */
void tercet_handle_wake(struct tercet *t);

/* Takes one message off a channel and puts what follows from it into notices, requests and cursor. False: there is
 * none. */
bool tercet_handle_receive_submit(struct tercet *t);
bool tercet_handle_receive_output(struct tercet *t);

#pragma GCC visibility pop

#endif
