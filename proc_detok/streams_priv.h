/* What streams.c and stream_groups.c share. */
#ifndef TERCET_PROC_DETOK_STREAMS_PRIV_H
#define TERCET_PROC_DETOK_STREAMS_PRIV_H

#include "common/map.h"
#include "proc_detok/chunk_writer.h"
#include "proc_detok/early.h"
#include "proc_detok/stream.h"
#include "proc_detok/streams.h"

#define NO_INDEX UINT32_MAX

enum {
	ENDED_MAX = 4096, /* ended sequences that are remembered */
	SPARE_SLOTS = 64, /* for ends of requests that found no room */
};

/* What a client said it holds of one request. */
struct stream_claim {
	u64 req_id;
	u32 tokens;
};

/* The streams of one client. */
struct stream_group {
	u64 client_id;
	u64 since_ns;  /* first OPEN of a client that is not ready */
	u64 bytes;     /* pending in its streams */
	u32 head;      /* all its streams, by `next` */
	u32 news_head; /* those with news, oldest first, by `news_next` */
	u32 news_tail;
	u32 next; /* in the list of groups with news */
	bool used;
	bool ready; /* has attached */
	bool hold;
	bool queued;		     /* is in the list of groups with news */
	struct stream_claim *claims; /* owned; sorted by req_id */
	u32 claim_count;
};

/* A stream and its places in the lists. */
struct stream_slot {
	struct stream s;
	u32 group;
	u32 prev;
	u32 next; /* also: next free slot */
	u32 news_next;
	u32 stopped_next;
	u32 bytes; /* counted in the group */
	bool has_news;
	bool stopped_queued;
};

/* A sequence that has ended, so that what still comes of it is recognised. */
struct ended {
	u64 seq;
	u64 key; /* of client and request */
	u32 tokens;
};

struct streams {
	struct streams_config config;
	struct streams_counters counters;
	u64 epoch; /* of the scheduler */
	bool gap;  /* results are missing */
	struct stream_slot *slots;
	u32 slots_used; /* slots at and above were never used */
	u32 free_head;
	u32 live;
	struct map by_seq;     /* -> slot; streams that are LIVE or HELD */
	struct map by_request; /* request_key -> slot; streams that are LIVE, HELD or ORPHAN */
	struct map by_client;  /* -> group */
	struct stream_group *groups;
	u32 groups_head; /* with news and allowed to send */
	u32 groups_tail;
	u32 stopped_head;
	u32 stopped_tail;
	struct ended *ended;	 /* ring of ENDED_MAX */
	u64 ended_count;	 /* ever */
	struct map ended_by_seq; /* -> place in the ring */
	struct map ended_by_request;
	struct early early;
	struct chunk_writer writer;
};

/* One key for a client's request. */
u64 stream_request_key(const struct streams *ss, u64 client_id, u64 req_id);

/* Finds or makes the group; NO_INDEX when there are clients_max others. */
u32 stream_group_of(struct streams *ss, u64 client_id, u64 now_ns);
void stream_group_add(struct streams *ss, u32 group, u32 slot);
void stream_group_remove(struct streams *ss, u32 slot);
/* The slot has something to give out, or may have; also counts its bytes. */
void stream_group_news(struct streams *ss, u32 slot);
/* Tells the stream what its client holds of it, if the client said so. */
void stream_group_claim(struct streams *ss, u32 slot);
/* Puts a slot into the queue for STOPPED, if it is due. */
void stream_stopped_queue(struct streams *ss, u32 slot);
/* The stream has ended and everything of it is out: gives the slot back. */
void stream_slot_release(struct streams *ss, u32 slot);
/* Takes an ended stream out of the look-ups and remembers that it ended. */
void stream_slot_ended(struct streams *ss, u32 slot);

#endif
