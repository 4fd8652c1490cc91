/* Requests on their way through the engine. One HTTP request becomes one engine request per choice (prompts
 * times samples, seed + i), or with beam search one per prompt, whose answers are its choices; what comes back is put
 * together by index and written as one reply or as a stream of events. Latencies are observed by the scheduler, where the requests of all clients pass; here only
 * what a request is over HTTP. */
#ifndef TERCET_PROC_GATEWAY_REQUESTS_H
#define TERCET_PROC_GATEWAY_REQUESTS_H

#include "client/tercet.h"
#include "common/shm_stats.h"
#include "proc_gateway/http_server.h"
#include "proc_gateway/logprobs.h"
#include "proc_gateway/openai_request.h"

/* An item of a reply (reply_items.c): a piece of what was thought or said, or a call. */
struct reply_item {
	u32 kind, number;
	size_t begin, end; /* of its text; end: once it is over */
	bool over;
};

/* What llama-server's replies tell of an answer on its way, and what may end it (llama_follow.c). */
struct llama_progress {
	u64 first_ns, last_ns; /* of the first token and the last one; 0: none */
	bool new_line;	       /* there was one in the text */
	bool at_line_start;    /* only white space stands behind it */
	u32 indent;	       /* how much of that */
	bool cut;	       /* the answer was ended */
};

/* How far a reply of items has got. */
struct reply_items {
	bool begun;
	u32 sequence;	/* of the next event */
	struct reply_item *list;
	u32 count, room;
	u32 calls;	/* that have an item */
	size_t told;	/* of the newest item's text */
};

struct choice {
	struct group *group;
	u32 index;
	const struct openai_prompt *prompt;
	u64 req_id; /* in the engine, 0: not there (any more) */
	bool accepted;
	bool echoed; /* what stands in front of the first token is in the text */
	bool begun;  /* the stream has had its first chunk */
	bool done;
	/* Not written yet: all of it for a whole reply, the news for a stream. */
	struct buf text;
	struct u32_vec tokens;
	struct thoughts thoughts; /* parts what is thought from the text, in chats */
	struct buf thought;	  /* as `text`: not written yet */
	bool thought_any;	  /* something was thought, written or not */
	struct tool_calls tools; /* looks through the text where the request has tools */
	struct logprobs_writer logprobs;
	struct prompt_logprobs prompt_logprobs;
	u32 prompt_count; /* tokens in front of the answer; of a session also those before this turn */
	u32 token_count; /* generated so far */
	u32 thought_tokens; /* of these, those that came while the model thought */
	u32 cached_count;
	enum tercet_finish finish;
	enum tercet_stop stop_kind;
	u32 stop_value;
	f64 logprob_sum; /* of the generated tokens; where the engine lists them */
	bool logprob_lost; /* of some it is not known */
	struct llama_progress llama;
	bool left_out;	 /* not among the best */
	u32 tries;	 /* of an embedding that came incomplete */
};

struct group {
	struct requests *requests;
	struct group *previous, *next;
	struct http_request *http;
	struct openai_request request;
	char id[160]; /* "chatcmpl-...", "cmpl-...", "resp_...", "msg_..." */
	i64 created_s;
	bool streaming; /* the stream has begun */
	bool gone;	/* the client's connection broke; its close callback will come */
	struct reply_items items; /* where the reply has them */
	u32 choice_count, accepted_count, done_count;
	struct choice choices[];
};

struct requests {
	struct tercet *engine;
	const struct openai_model *model;
	struct stats_page *stats; /* borrowed */
	struct group *groups;
	u32 group_count;
	u32 choice_count; /* in the engine */
	struct buf out;	  /* scratch of one reply or event */
	struct buf said;  /* scratch: what of a piece of text is no thought */
};

void requests_open(struct requests *rs, struct tercet *engine, const struct openai_model *model,
		   struct stats_page *stats);
/* Replies 503 to what is unfinished. */
void requests_close(struct requests *rs);

/* Hands a request to the engine and replies when the engine has: takes `request` over in any case. `id` is
 * what the reply carries behind "cmpl-" or "chatcmpl-". */
void requests_start(struct requests *rs, struct http_request *http, struct openai_request *request,
		    const char *id);
/* What the engine refused, as a reply: status, code and field (requests_refusal.c). */
void requests_refusal(struct api_error *e, enum tercet_result code, const char *text, u32 retry_after_ms);
/* Of the samples of each prompt the n best come to stand in front, the best first, and are its answers (requests_best.c). */
void requests_choose_best(struct group *g);
/* For tercet_dispatch. */
void requests_on_event(void *requests, const struct tercet_event *event);
/* Replies 503 with that text to what is unfinished. */
void requests_fail_all(struct requests *rs, const char *text);

#endif
