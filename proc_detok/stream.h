/* One sequence on its way from tokens to text: decoding, stop strings and the end. Pure. */
#ifndef TERCET_PROC_DETOK_STREAM_H
#define TERCET_PROC_DETOK_STREAM_H

#include "common/buf.h"
#include "common/finish.h"
#include "ipc/ipc.h"
#include "proc_detok/pending.h"
#include "proc_detok/stop_strings.h"
#include "text/text.h"

enum stream_state {
	STREAM_FREE,
	STREAM_LIVE,   /* the scheduler runs it */
	STREAM_ORPHAN, /* its scheduler is gone; a resubmission with the same client and request id goes on
			  with it */
	STREAM_HELD,   /* `finish` is set, but its scheduler has to say first that it has this end, too */
	STREAM_ENDED,  /* `finish` is set; what is pending is still to be given out */
};

/* CHUNK's stop_kind */
enum stop_kind { STOP_KIND_NONE, STOP_KIND_ID, STOP_KIND_STRING };

enum stream_push { STREAM_TAKEN, STREAM_DOUBLED, STREAM_LATE, STREAM_GAP };

struct stream {
	enum stream_state state;
	u64 seq;
	u64 epoch; /* results of earlier ones are late */
	u64 client_id;
	u64 req_id;
	u64 since_ns; /* closing or orphaned: since when; held: since when its scheduler is gone, 0: it is there */
	u64 gap_ns;   /* results are missing since then, or, held, the scheduler's word is; 0: nothing is */
	u32 prompt_count;
	u32 cached_count;
	u32 flags;	 /* enum sampling_flag */
	u32 token_count; /* outputs known */
	u32 base; /* outputs that the client holds from an earlier life: they are decoded, not given out */
	u32 plp_next;	    /* prompt positions below it have their log-probabilities */
	struct u32_vec ids; /* what `rule` points into */
	struct finish_rule rule;
	struct text_stream text;
	struct stop_strings stops;
	struct pending pending;
	bool confirm;	/* an end that its tokens give is held until the scheduler has it */
	bool confirmed; /* it has, */
	u32 kept_count; /* and keeps so many outputs */
	bool closing;
	u32 close_count;
	u8 close_reason;
	u8 finish; /* enum finish_reason */
	u8 stop_kind;
	u32 stop_value;
	bool stop_due; /* the scheduler does not know of this end: STOPPED with stop_count has to reach it */
	u32 stop_count;
	struct buf error;
};

/* Begins a new sequence in a stream that is FREE; memory of an earlier one is used again.
 * `open->output_tokens` are decoded; given out are, until stream_set_base says otherwise, those behind the first
 * `open->held_count`: what was asked for after its client had attached is in no claim of that client's, though the
 * scheduler may have come here later still. ERR_INVALID: stop strings that do not add up; ERR_NO_MEMORY. After an error
 * the stream is FREE. */
MUST_CHECK enum err stream_open(struct stream *s, const struct tokenizer *t, const struct ipc_open *open,
				u64 epoch);
/* Begins a stream that is FREE and ends it at once: with FINISH_ERROR and `text`, or, with a NULL text, as
 * aborted. */
void stream_refuse(struct stream *s, const struct ipc_open *open, u64 epoch, const char *text);
/* The same request in a new life (new sequence, new epoch, or opened again): what was decoded stays and what
 * the scheduler has in `open->output_tokens` beyond it is added; the longer list wins. One that is held stays so, and
 * tells the scheduler where it ends. */
MUST_CHECK enum err stream_continue(struct stream *s, const struct ipc_open *open, u64 epoch);
/* The client holds the first `tokens` outputs: what is given out begins behind them. */
void stream_set_base(struct stream *s, u32 tokens);

/* Output number `position` is `token`. */
enum stream_push stream_push(struct stream *s, u64 epoch, u32 position, u32 token,
			     const struct token_logprobs *lp);
/* Log-probabilities of prompt position `position`; doubled ones (a recomputed prompt) are passed over. */
enum stream_push stream_push_prompt(struct stream *s, u64 epoch, u32 position,
				    const struct token_logprobs *lp);
/* Ends with `reason` as soon as `output_count` outputs are known. `text` goes with FINISH_ERROR. With FINISH_NONE it ends by
 * its tokens alone, and the scheduler knows of that. One that is held ends as it was to, unless the scheduler keeps more outputs
 * than it has: then the scheduler has not read STOPPED yet, and another CLOSE will come. Where a turn ends that has stop strings and was
 * given up (FINISH_ABORT) the scheduler is told in any case. */
void stream_close(struct stream *s, u32 output_count, enum finish_reason reason, const u8 *text,
		  u32 text_bytes, u64 now_ns);
/* Ends now, whatever is missing; the scheduler has to be told when `tell`. No effect on one that has ended; one that is
 * held ends as it was to, or with the error that this is. */
void stream_end(struct stream *s, enum finish_reason reason, const char *text, bool tell);

/* Text bytes that may not leave yet. */
u32 stream_held(const struct stream *s);
/* Forgets everything but the memory. */
void stream_clear(struct stream *s);
void stream_fini(struct stream *s);

#endif
