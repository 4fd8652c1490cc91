/* Grammars from outside: every source is compiled or refused with a reason, and states keep what they promise: a token is taken
 * where the mask has it and nowhere else, copies and replays are at the same place, and the way back to the end is never lost. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "text/grammar.h"
#include "text/text.h"

enum { TOKENS = 260, EOS = 256, STEPS_MAX = 40 };

/* 256 tokens of one byte, the end, and some of several bytes, as a tokenizer.json of the byte-level kind. */
static struct tokenizer *make_tokenizer(void)
{
	struct tokenizer *t = NULL;
	struct buf json = {0};
	struct err_msg em;
	buf_append_str(&json, "{\"added_tokens\":[{\"id\":256,\"content\":\"<e>\",\"special\":true}],\"decoder\":{\"type\":\"ByteLevel\"},"
			      "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
	for (u32 b = 0, other = 0; b < 256; b++) {
		bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
		buf_printf(&json, "\"\\u%04x\":%u,", plain ? b : 256 + other, b);
		other += !plain;
	}
	buf_append_str(&json, "\"\\\",\\\"\":257,\"{\\\"\":258,\"00\":259}}}");
	if (tokenizer_parse(&t, json.data, json.bytes, &em) != ERR_OK)
		abort();
	buf_fini(&json);
	return t;
}

static u32 popcount(const u32 *bits)
{
	u32 count = 0;
	for (size_t i = 0; i < grammar_mask_words(TOKENS); i++)
		count += (u32)__builtin_popcount(bits[i]);
	return count;
}

static void check_mask(struct grammar_state *s, const u32 *bits)
{
	for (u32 id = 0; id < TOKENS; id++) {
		struct grammar_state *copy;
		if (grammar_state_copy(&copy, s) != ERR_OK)
			abort();
		enum err e = grammar_state_advance(copy, id);
		bool set = (bits[id / 32] >> id % 32 & 1) != 0;
		if (e != ERR_TOO_LONG && set != (e == ERR_OK))
			abort();
		grammar_state_destroy(&copy);
	}
}

/* One of the allowed tokens, as the input says. */
static u32 choose(const u32 *bits, u32 nth)
{
	nth %= popcount(bits);
	for (u32 id = 0; id < TOKENS; id++) {
		if ((bits[id / 32] >> id % 32 & 1) && nth-- == 0)
			return id;
	}
	abort();
}

/* `ambiguous`: there may be more ways to read a text than are kept. */
static void walk(struct grammar *g, struct grammar_vocab *v, bool ambiguous, const uint8_t *data, size_t bytes)
{
	struct grammar_state *s, *again;
	u32 bits[(TOKENS + 31) / 32], other[(TOKENS + 31) / 32], ids[STEPS_MAX];
	size_t count = 0;
	if (grammar_state_create(&s, g, v) != ERR_OK)
		return;
	for (; count < STEPS_MAX; count++) {
		enum err e = grammar_state_mask(s, bits);
		if (e == ERR_TOO_LONG || e == ERR_TIMEOUT || (e == ERR_NOT_FOUND && ambiguous))
			break;
		if (e != ERR_OK)
			abort(); /* with tokens for all bytes there is always one */
		if (count % 8 == 0)
			check_mask(s, bits);
		ids[count] = choose(bits, bytes > 0 ? data[count % bytes] + (u32)count : 0);
		e = grammar_state_advance(s, ids[count]);
		if (e == ERR_TOO_LONG || ids[count] == EOS)
			break;
		if (e != ERR_OK)
			abort();
	}
	if (grammar_state_create(&again, g, v) != ERR_OK)
		abort();
	if (grammar_state_replay(again, ids, count, NULL) == ERR_OK && count < STEPS_MAX && grammar_state_mask(again, other) == ERR_OK &&
	    memcmp(bits, other, sizeof(bits)) != 0)
		abort();
	grammar_state_destroy(&again);
	grammar_state_destroy(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct tokenizer *tokenizer;
	static struct grammar_vocab *vocab;
	const u32 eos = EOS;
	struct err_msg em = {.text = ""};
	struct grammar *g = NULL;
	if (tokenizer == NULL) {
		tokenizer = make_tokenizer();
		if (grammar_vocab_create(&vocab, tokenizer, TOKENS, &eos, 1, &em) != ERR_OK)
			abort();
	}
	if (bytes == 0)
		return 0;
	enum grammar_kind kind = (enum grammar_kind)(1 + (data[0] & 15) % (GRAMMAR_KIND_COUNT - 1));
	u32 flags = data[0] & 16 ? GRAMMAR_COMPACT : 0;
	enum err e = grammar_compile(&g, kind, flags, (const char *)data + 1, bytes - 1, &em);
	if (e == ERR_OK)
		walk(g, vocab, kind != GRAMMAR_CHOICE && kind != GRAMMAR_JSON_SCHEMA && kind != GRAMMAR_JSON_OBJECT, data, bytes);
	else if (em.text[0] == '\0')
		abort();
	grammar_unref(&g);
	return 0;
}
