/* Owns what may end an answer of llama-server's API besides the engine: a line that is indented less than 'n_indent', and
 * 't_max_predict_ms' once there is a whole line. Runs in the gateway; pure: time and text come in. */
#include "proc_gateway/llama.h"

/* Where a line begins that is indented too little, its white space included; else the text's end. */
static size_t follow_text(struct llama_progress *p, const struct buf *text, size_t at, u32 indent_min)
{
	for (; at < text->bytes; at++) {
		const char byte = text->data[at];
		if (byte == '\n') {
			p->new_line = p->at_line_start = true;
			p->indent = 0;
		} else if (p->at_line_start && (byte == ' ' || byte == '\t')) {
			p->indent++;
		} else if (p->at_line_start) {
			p->at_line_start = false;
			if (p->indent < indent_min)
				break;
		}
	}
	return at;
}

bool llama_follow(struct choice *c, size_t told, u32 tokens, u64 now_ns)
{
	struct llama_progress *p = &c->llama;
	const struct openai_request *r = &c->group->request;
	if (tokens > 0) {
		p->first_ns = p->first_ns ? p->first_ns : now_ns;
		p->last_ns = now_ns;
	}
	const size_t end = follow_text(p, &c->text, told, r->indent_min);
	const bool late = p->new_line && r->predict_ms_max && !c->done && now_ns - p->first_ns > r->predict_ms_max * 1000000ull;
	p->cut = late || end < c->text.bytes;
	c->text.bytes = end;
	return p->cut;
}
