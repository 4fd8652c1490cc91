/* What a chat's next turn adds to the turns before it, which are elsewhere: in a session of the engine. The template is
 * asked with stand-ins in their place, in several shapes, and must answer alike. Pure. Never guesses: a template whose
 * rendering of more messages does not begin with that of fewer, answer included, is refused. */
#include <string.h>

#include "common/json.h"
#include "text/text.h"

static const char user_text[] = "Hello", answer_text[] = "Good day";
/* What models that think before they answer put in front; templates that leave it out of earlier answers give another
 * conversation than the one that was generated. */
static const char thoughtful_text[] = "<think>\nLet me see.\n</think>\n\nGood day";

struct stand_in {
	const char *messages[5][2]; /* role, content; the last one is the answer */
	bool optional;		    /* of a shape that not every template takes */
};

static const struct stand_in stand_ins[] = {
	{{{"user", user_text}, {"assistant", answer_text}}, false},
	{{{"system", "Be kind."}, {"user", user_text}, {"assistant", answer_text}}, true},
	{{{"user", user_text}, {"assistant", "Yes?"}, {"user", "Go on"}, {"assistant", answer_text}}, false},
	{{{"user", user_text}, {"assistant", thoughtful_text}}, false},
};

static u32 count_of(const struct stand_in *s)
{
	u32 n = 0;

	while (n < COUNT_OF(s->messages) && s->messages[n][0])
		n++;
	return n;
}

/* Renders the first `count` messages of `s` and, if `more` is an array, those of it behind them. */
static enum err render(const struct chat_template *t, const struct chat_request *request, const struct stand_in *s,
		       u32 count, json_val more, struct buf *out, struct err_msg *em)
{
	struct chat_request r = *request;
	struct json_doc *doc = NULL;
	struct json_writer w;
	struct buf text = {0};

	json_begin(&w, &text);
	json_array_begin(&w);
	for (u32 i = 0; i < count; i++) {
		json_object_begin(&w);
		json_key(&w, "role");
		json_write_cstr(&w, s->messages[i][0]);
		json_key(&w, "content");
		json_write_cstr(&w, s->messages[i][1]);
		json_object_end(&w);
	}
	for (struct json_iter it = json_iterate(more); json_next(&it);)
		json_write_value(&w, it.value);
	json_array_end(&w);
	enum err e = buf_ok(&text) ? json_parse(&doc, buf_cstr(&text), text.bytes, em) : ERR_NO_MEMORY;
	buf_clear(out);
	if (!e) {
		r.messages = json_root(doc);
		e = chat_template_render(t, &r, out, em);
	}
	if (!e && !buf_ok(out))
		e = ERR_NO_MEMORY;
	json_free(&doc);
	buf_fini(&text);
	return e;
}

static bool begins_with(const struct buf *text, const struct buf *before, const char *answer)
{
	size_t bytes = strlen(answer);

	return text->bytes >= before->bytes + bytes && !memcmp(text->data, before->data, before->bytes) &&
	       !memcmp(text->data + before->bytes, answer, bytes);
}

/* The whole of one stand-in with the new messages behind it; *before: up to the end of its answer. */
static enum err extend(const struct chat_template *t, const struct chat_request *request, const struct stand_in *s,
		       struct buf *whole, size_t *before, struct err_msg *em)
{
	struct chat_request prompt = *request;
	struct buf front = {0};
	u32 count = count_of(s);
	const char *answer = s->messages[count - 1][1];

	prompt.add_generation_prompt = true;
	prompt.continue_final_message = false;
	enum err e = render(t, &prompt, s, count - 1, (json_val){0}, &front, em);
	if (e == ERR_INVALID && s->optional)
		e = ERR_NOT_FOUND;
	if (!e)
		e = render(t, request, s, count, request->messages, whole, em);
	if (!e && !begins_with(whole, &front, answer))
		e = err_set(em, ERR_UNSUPPORTED,
			    "the model's chat template writes earlier turns otherwise than it wrote them when they were the "
			    "last ones (%s), so a session would differ from the conversation; send the whole conversation",
			    answer == thoughtful_text ? "it leaves out thoughts" : "it moves or changes text");
	*before = front.bytes + strlen(answer);
	buf_fini(&front);
	return e;
}

/* How many bytes behind the answer are the end of an answer, whatever follows. */
static enum err find_end(const struct chat_template *t, const struct chat_request *request, struct chat_turn *turn,
			 struct err_msg *em)
{
	struct chat_request closed = *request;
	struct buf text = {0};

	closed.add_generation_prompt = closed.continue_final_message = false;
	enum err e = render(t, &closed, &stand_ins[0], count_of(&stand_ins[0]), (json_val){0}, &text, em);
	turn->end_bytes = 0;
	if (!e && text.bytes >= turn->before_bytes && !memcmp(text.data, turn->text.data, turn->before_bytes))
		while (turn->before_bytes + turn->end_bytes < text.bytes &&
		       turn->before_bytes + turn->end_bytes < turn->text.bytes &&
		       text.data[turn->before_bytes + turn->end_bytes] ==
			       turn->text.data[turn->before_bytes + turn->end_bytes])
			turn->end_bytes++;
	buf_fini(&text);
	return e;
}

enum err chat_turn_render(const struct chat_template *t, const struct chat_request *request, struct chat_turn *turn,
			  struct err_msg *em)
{
	struct buf other = {0};
	size_t before;
	enum err e = extend(t, request, &stand_ins[0], &turn->text, &turn->before_bytes, em);

	for (u32 i = 1; !e && i < COUNT_OF(stand_ins); i++) {
		e = extend(t, request, &stand_ins[i], &other, &before, em);
		if (e == ERR_NOT_FOUND) { /* nobody's conversation has this shape */
			e = ERR_OK;
			continue;
		}
		if (!e && (other.bytes - before != turn->text.bytes - turn->before_bytes ||
			   memcmp(other.data + before, turn->text.data + turn->before_bytes, other.bytes - before)))
			e = err_set(em, ERR_UNSUPPORTED,
				    "the model's chat template writes a turn otherwise after other turns than these, which a "
				    "session cannot know; send the whole conversation");
	}
	if (!e)
		e = find_end(t, request, turn, em);
	buf_fini(&other);
	return e;
}

void chat_turn_fini(struct chat_turn *turn)
{
	buf_fini(&turn->text);
	*turn = (struct chat_turn){0};
}

static bool encode_part(const struct tokenizer *t, struct text_scratch *scratch, const struct chat_turn *turn,
			size_t bytes, u32 flags, struct u32_vec *out, enum err *e, struct err_msg *em)
{
	u32_vec_clear(out);
	*e = tokenizer_encode(t, scratch, turn->text.data, bytes, flags, out, em);
	return *e == ERR_OK;
}

static size_t common(const struct u32_vec *a, const struct u32_vec *b)
{
	size_t n = 0;

	while (n < a->count && n < b->count && a->data[n] == b->data[n])
		n++;
	return n;
}

enum err chat_turn_encode(const struct tokenizer *t, struct text_scratch *scratch, const struct chat_turn *turn,
			  u32 flags, struct u32_vec *out, u32 *join, struct err_msg *em)
{
	struct u32_vec whole = {0}, part = {0};
	enum err e;

	*join = 0;
	if (encode_part(t, scratch, turn, turn->text.bytes, flags, &whole, &e, em) &&
	    encode_part(t, scratch, turn, turn->before_bytes, flags, &part, &e, em)) {
		size_t first = part.count;
		if (common(&whole, &part) < first)
			e = err_set(em, ERR_UNSUPPORTED,
				    "the tokens of an answer and of what the chat template puts behind it run into one another; "
				    "send the whole conversation");
		if (!e && encode_part(t, scratch, turn, turn->before_bytes + turn->end_bytes, flags, &part, &e, em)) {
			size_t same = common(&whole, &part);
			*join = same > first ? (u32)(same - first) : 0;
			u32_vec_append(out, whole.data + first, whole.count - first);
		}
	}
	if (!e && (whole.failed || part.failed || out->failed))
		e = err_set(em, ERR_NO_MEMORY, "out of memory");
	u32_vec_fini(&whole);
	u32_vec_fini(&part);
	return e;
}
