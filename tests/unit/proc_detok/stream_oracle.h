/* Requests drawn at random and what they must give: an oracle that sees all tokens of a request at once and
 * shares no code with the streams. */
#ifndef TERCET_TESTS_STREAM_ORACLE_H
#define TERCET_TESTS_STREAM_ORACLE_H

#include "stream_fixture.h"

/* One request as the oracle sees it: all tokens at once, the whole text, then the stops. */
struct oracle {
	u32 tokens[64];
	u32 token_count; /* until the end */
	char text[1024];
	size_t text_bytes;
	u32 finish;
	u32 stop_kind;
	u32 stop_value;
};

struct scenario {
	u32 tokens[64];
	u32 token_count;
	const char *stops[3];
	u32 stop_count;
	u32 stop_id;
	u32 flags;
	u32 output_min;
	u32 output_max;
};

/* Sets fixture_words; before everything else. */
void oracle_words(void);
void scenario_draw(struct scenario *c);
/* `list` keeps the stop strings for as long as the OPEN is used. */
struct ipc_open scenario_open(const struct scenario *c, u64 seq, struct stop_list *list);
void oracle_run(const struct scenario *c, struct oracle *o);
/* Text of the first `count` tokens: joined bytes, then ill-formed parts replaced; an unfinished character at
 * the end is left out unless `flush`. With `last_stop` the last token is an end-of-sequence or stop token. */
size_t naive_text(const struct scenario *c, u32 count, bool last_stop, bool flush, char *out);

#endif
