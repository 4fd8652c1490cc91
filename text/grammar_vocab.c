/* Owns what tokens say, byte for byte, as a trie in preorder. Runs in workers, once at start. Never allows a token that
 * says nothing. */
#include <stdlib.h>
#include <string.h>

#include "common/assert.h"
#include "text/grammar_priv.h"
#include "text/tokenizer_priv.h"

/* What a token says, appended; nothing where it is never allowed. Special tokens begin with GRAMMAR_SPECIAL_BYTE, which no
 * other token may have. */
static void append_token(const struct tokenizer *t, u32 id, struct buf *out)
{
	if (id >= t->vocab.count || !(t->decoder.pieces[id].flags & PIECE_PRESENT))
		return;
	size_t from = out->bytes;
	if (t->decoder.pieces[id].flags & PIECE_SPECIAL) {
		const char *text = tokenizer_token_text(t, id);
		buf_append_char(out, (char)GRAMMAR_SPECIAL_BYTE);
		if (text != NULL)
			buf_append_str(out, text);
		return;
	}
	tokenizer_token_bytes(t, id, out);
	if (!out->failed && memchr(out->data + from, GRAMMAR_SPECIAL_BYTE, out->bytes - from) != NULL)
		out->bytes = from;
}

enum { LEARNT_BYTES_MAX = 256 << 20 };

static bool is_eos(const struct grammar_vocab *v, u32 id)
{
	for (u32 i = 0; i < v->eos_count; i++) {
		if (v->eos[i] == id)
			return true;
	}
	return false;
}

static enum err copy_bytes(struct grammar_vocab *v, const struct tokenizer *t)
{
	struct buf pool = {0};
	v->first = malloc(((size_t)v->size + 1) * sizeof(*v->first));
	if (v->first == NULL)
		return ERR_NO_MEMORY;
	for (u32 id = 0; id < v->size; id++) {
		v->first[id] = (u32)pool.bytes;
		if (!is_eos(v, id))
			append_token(t, id, &pool);
		u32 bytes = (u32)pool.bytes - v->first[id];
		v->token_bytes_max = bytes > v->token_bytes_max ? bytes : v->token_bytes_max;
	}
	v->first[v->size] = (u32)pool.bytes;
	if (!buf_ok(&pool)) {
		buf_fini(&pool);
		return ERR_NO_MEMORY;
	}
	v->pool = pool.data;
	return ERR_OK;
}

/* ---- the trie ---- */

struct key {
	u64 prefix; /* the first bytes, big-endian: most comparisons end here */
	u32 at;
	u32 bytes;
	u32 token;
};
struct order {
	const char *pool;
	struct key *keys;
	u32 count;
};

static int compare_keys(const void *a, const void *b, void *pool)
{
	const struct key *x = a, *y = b;
	if (x->prefix != y->prefix)
		return x->prefix < y->prefix ? -1 : 1;
	u32 n = x->bytes < y->bytes ? x->bytes : y->bytes;
	int order = memcmp((const char *)pool + x->at, (const char *)pool + y->at, n);
	if (order != 0)
		return order;
	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? -1 : 1;
	return x->token < y->token ? -1 : 1;
}

static enum err sort_tokens(const struct grammar_vocab *v, struct order *o)
{
	*o = (struct order){.pool = v->pool};
	o->keys = malloc(((size_t)v->size + 1) * sizeof(*o->keys));
	if (o->keys == NULL)
		return ERR_NO_MEMORY;
	for (u32 id = 0; id < v->size; id++) {
		struct key k = {.at = v->first[id], .bytes = v->first[id + 1] - v->first[id], .token = id};
		if (k.bytes == 0)
			continue;
		for (u32 i = 0; i < 8; i++)
			k.prefix = k.prefix << 8 | (i < k.bytes ? (u8)v->pool[k.at + i] : 0);
		o->keys[o->count++] = k;
	}
	qsort_r(o->keys, o->count, sizeof(*o->keys), compare_keys, v->pool);
	return ERR_OK;
}

static u32 shared_bytes(const char *pool, const struct key *a, const struct key *b)
{
	u32 n = a->bytes < b->bytes ? a->bytes : b->bytes, i = 0;
	while (i < n && pool[a->at + i] == pool[b->at + i])
		i++;
	return i;
}

static u32 count_nodes(const struct order *o)
{
	u32 nodes = 1;
	for (u32 i = 0; i < o->count; i++)
		nodes += o->keys[i].bytes - (i > 0 ? shared_bytes(o->pool, &o->keys[i - 1], &o->keys[i]) : 0);
	return nodes;
}

/* `open`: the nodes of the way to the last token, by depth. */
static void write_nodes(struct grammar_vocab *v, const struct order *o, u32 *open)
{
	u32 depth = 0;
	open[0] = 0;
	v->nodes[0] = (struct trie_node){.token = GRAMMAR_NONE};
	v->node_count = 1;
	for (u32 i = 0; i < o->count; i++) {
		const struct key *k = &o->keys[i];
		u32 shared = i > 0 ? shared_bytes(o->pool, &o->keys[i - 1], k) : 0;
		if (shared == k->bytes && depth == shared) {
			v->same[k->token] = v->nodes[open[depth]].token;
			v->nodes[open[depth]].token = k->token;
			v->nodes[open[depth]].same = true;
			continue;
		}
		for (; depth > shared; depth--)
			v->nodes[open[depth]].skip = v->node_count;
		for (; depth < k->bytes; depth++) {
			open[depth + 1] = v->node_count;
			v->nodes[v->node_count++] = (struct trie_node){
				.token = GRAMMAR_NONE, .depth = (u16)(depth + 1), .byte = (u8)v->pool[k->at + depth]};
		}
		v->nodes[open[depth]].token = k->token;
	}
	for (u32 d = depth + 1; d > 0; d--)
		v->nodes[open[d - 1]].skip = v->node_count;
}

static enum err make_trie(struct grammar_vocab *v)
{
	struct order o;
	enum err e = sort_tokens(v, &o);
	if (e != ERR_OK)
		return e;
	v->nodes = malloc((size_t)count_nodes(&o) * sizeof(*v->nodes));
	v->same = malloc((size_t)v->size * sizeof(*v->same));
	u32 *open = malloc(((size_t)v->token_bytes_max + 1) * sizeof(*open));
	if (v->nodes != NULL && v->same != NULL && open != NULL) {
		memset(v->same, 0xff, (size_t)v->size * sizeof(*v->same));
		write_nodes(v, &o, open);
	} else {
		e = ERR_NO_MEMORY;
	}
	free(open);
	free(o.keys);
	return e;
}

/* What walks over long or short tokens only need. */
static enum err measure_tokens(struct grammar_vocab *v)
{
	v->deep = calloc(v->node_count, sizeof(*v->deep));
	v->short_bits = calloc(grammar_mask_words(v->size) + 1, sizeof(*v->short_bits));
	if (v->deep == NULL || v->short_bits == NULL)
		return ERR_NO_MEMORY;
	for (u32 i = v->node_count; i-- > 0;) { /* children stand behind their parents */
		const struct trie_node *n = &v->nodes[i];
		u32 deep = n->token != GRAMMAR_NONE ? n->depth : 0;
		for (u32 child = i + 1; child < n->skip; child = v->nodes[child].skip)
			deep = v->deep[child] > deep ? v->deep[child] : deep;
		v->deep[i] = (u8)(deep < 255 ? deep : 255);
	}
	for (u32 id = 0; id < v->size; id++) {
		if (v->first[id + 1] - v->first[id] <= TOKEN_SHORT)
			v->short_bits[id / 32] |= 1u << id % 32;
	}
	return ERR_OK;
}

enum err grammar_vocab_create(struct grammar_vocab **out, const struct tokenizer *t, u32 vocab_size, const u32 *eos,
			      size_t eos_count, struct err_msg *em)
{
	*out = NULL;
	struct grammar_vocab *v = calloc(1, sizeof(*v));
	enum err e = v != NULL ? ERR_OK : ERR_NO_MEMORY;
	if (e == ERR_OK) {
		v->size = vocab_size;
		v->learnt_bytes_max = LEARNT_BYTES_MAX;
		v->eos = malloc((eos_count + 1) * sizeof(*v->eos));
		if (v->eos == NULL)
			e = ERR_NO_MEMORY;
	}
	for (size_t i = 0; e == ERR_OK && i < eos_count; i++) {
		if (eos[i] < vocab_size)
			v->eos[v->eos_count++] = eos[i];
	}
	if (e == ERR_OK && v->eos_count == 0) {
		e = err_set(em, ERR_INVALID, "structured output needs a token that ends an answer: none of the %zu eos ids is below the vocabulary's %u",
			    eos_count, vocab_size);
		goto destroy;
	}
	if (e == ERR_OK)
		e = copy_bytes(v, t);
	if (e == ERR_OK)
		e = make_trie(v);
	if (e == ERR_OK)
		e = measure_tokens(v);
	if (e != ERR_OK) {
		err_set(em, e, "no memory for the bytes of %u tokens", vocab_size);
		goto destroy;
	}
	*out = v;
	return ERR_OK;
destroy:
	grammar_vocab_destroy(&v);
	return e;
}

void grammar_vocab_destroy(struct grammar_vocab **v)
{
	struct grammar_vocab *at = *v;
	*v = NULL;
	if (at == NULL)
		return;
	for (u32 i = 0; i < at->common_count; i++) {
		free(at->common[i].nodes);
		local_mask_fini(&at->common[i].mask);
	}
	free(at->common);
	free(at->eos);
	free(at->nodes);
	free(at->deep);
	free(at->short_bits);
	free(at->same);
	free(at->first);
	free(at->pool);
	free(at);
}

size_t grammar_vocab_bytes(const struct grammar_vocab *v)
{
	size_t per_token = sizeof(*v->same) + sizeof(*v->first);
	return sizeof(*v) + v->common_bytes + v->learnt_bytes + v->node_count * (sizeof(*v->nodes) + sizeof(*v->deep)) + grammar_mask_words(v->size) * sizeof(u32) + v->size * per_token + v->first[v->size];
}
