/* Owns the prompt of /infill: text before and behind a gap, with the tokens that models made for it know, and further files
 * in front. Runs in the gateway. Never cuts more than has to be cut. */
#include <stdio.h>
#include <string.h>

#include "proc_gateway/llama.h"

enum fim { FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FIM_REPO, FIM_FILE, FIM_PAD, FIM_COUNT };
enum { SPELLINGS_MAX = 8 };

/* As the vocabularies write them: Qwen, Granite, StarCoder, DeepSeek, Code Llama, GLM, and others made like these. */
static const char *const spellings[FIM_COUNT][SPELLINGS_MAX] = {
	[FIM_PREFIX] = {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>", "<|code_prefix|>",
			"<|prefix|>"},
	[FIM_SUFFIX] = {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>", "<|code_suffix|>",
			"<|suffix|>"},
	[FIM_MIDDLE] = {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>", "<|code_middle|>",
			"<|middle|>"},
	[FIM_REPO] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
	[FIM_FILE] = {"<|file_sep|>"},
	[FIM_PAD] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"},
};

static bool find(const struct openai_model *m, enum fim which, u32 *id)
{
	for (u32 i = 0; i < SPELLINGS_MAX && spellings[which][i]; i++)
		if (tokenizer_find(m->tokenizer, spellings[which][i], id) && *id < m->vocab_size)
			return true;
	return false;
}

u32 llama_infill_stops(const struct openai_model *m, u32 ids[8])
{
	u32 count = 0;
	for (u32 i = FIM_REPO; i <= FIM_PAD; i++)
		count += find(m, (enum fim)i, &ids[count]);
	return count;
}

/* What a prompt is made of. Texts are ids of what is written, special tokens in them being text. */
struct parts {
	const struct openai_model *m;
	struct api_error *e;
	u32 prefix_id, suffix_id, middle_id;
	struct u32_vec extra, before, behind, begun;
};

static bool find_all(struct parts *p)
{
	const bool before = find(p->m, FIM_PREFIX, &p->prefix_id), behind = find(p->m, FIM_SUFFIX, &p->suffix_id),
		   middle = find(p->m, FIM_MIDDLE, &p->middle_id);
	if (before && behind && middle)
		return true;
	return api_error_set(p->e, 501, NULL, "unsupported_model",
			     "This model cannot fill in: its tokenizer has no token for%s%s%s; a model made for it has, as <|fim_prefix|>, "
			     "<|fim_suffix|> and <|fim_middle|>.",
			     before ? "" : " the prefix", behind ? "" : before ? " the suffix" : ", the suffix",
			     middle ? "" : before && behind ? " the middle" : ", the middle");
}

static bool add_text(struct parts *p, struct u32_vec *to, const char *text, size_t bytes)
{
	return openai_encode_into(to, p->m, text, bytes, TEXT_PLAIN, p->e);
}

static bool read_text(struct parts *p, struct u32_vec *to, json_val root, const char *name, bool needed)
{
	json_val v = json_get(root, name);
	const char *text;
	size_t bytes;
	if (!json_present(v) && !needed)
		return true;
	if (!json_present(v))
		return api_error_set(p->e, 400, name, NULL, "Field '%s' is missing; it must be a string.", name);
	if (!json_string(v, &text, &bytes))
		return api_error_field(p->e, name, v, "is not a string", "a string");
	return add_text(p, to, text, bytes);
}

/* One line in front of a file; without the token for it, another mark. */
static bool begin_file(struct parts *p, const char *name, size_t bytes)
{
	static const char mark[] = "\n\n--- snippet ---\n\n";
	u32 id;
	if (!find(p->m, FIM_FILE, &id))
		return add_text(p, &p->extra, mark, sizeof(mark) - 1);
	struct buf line = {0};
	buf_append(&line, name, bytes);
	buf_append_char(&line, '\n');
	u32_vec_push(&p->extra, id);
	bool ok = buf_ok(&line) ? add_text(p, &p->extra, line.data, line.bytes)
				: api_error_set(p->e, 503, NULL, NULL, "There is no memory for the request.");
	buf_fini(&line);
	return ok;
}

static bool read_extra(struct parts *p, json_val extra)
{
	static const char project[] = "myproject\n", current[] = "filename";
	size_t index = 0;
	u32 id;
	if (json_present(extra) && json_type(extra) != JSON_ARRAY)
		return api_error_field(p->e, "input_extra", extra, "is no list", "a list of {\"filename\": \"...\", \"text\": \"...\"}");
	if (find(p->m, FIM_REPO, &id)) {
		u32_vec_push(&p->extra, id);
		if (!add_text(p, &p->extra, project, sizeof(project) - 1))
			return false;
	}
	for (struct json_iter it = json_iterate(extra); json_next(&it); index++) {
		json_val file = json_get(it.value, "filename");
		const char *text, *name = "tmp";
		size_t bytes, name_bytes = 3;
		char field[64];
		snprintf(field, sizeof(field), "input_extra[%zu]", index);
		if (!json_string(json_get(it.value, "text"), &text, &bytes) || (json_present(file) && !json_string(file, &name, &name_bytes)))
			return api_error_field(p->e, field, it.value, "is no file", "{\"filename\": \"...\", \"text\": \"...\"}");
		if (!begin_file(p, name, name_bytes) || !add_text(p, &p->extra, text, bytes))
			return false;
	}
	return !find(p->m, FIM_FILE, &id) || begin_file(p, current, sizeof(current) - 1);
}

/* Of what does not fit, the text nearest to the gap stays: three quarters before it and one behind, if both are longer. */
static void cut(struct parts *p, size_t room, size_t *before, size_t *behind, size_t *extra)
{
	*before = p->before.count;
	*behind = p->behind.count;
	if (*before + *behind > room) {
		const size_t share = room / 4;
		*behind = *behind < share ? *behind : *before < room - share ? room - *before : share;
		*before = *before < room - *behind ? *before : room - *behind;
	}
	room -= *before + *behind;
	*extra = p->extra.count < room ? p->extra.count : room;
}

static bool put_together(struct parts *p, struct u32_vec *ids, i64 wanted)
{
	struct u32_vec around = {0};
	const size_t length = p->m->max_model_len, answer = wanted > 0 && (size_t)wanted < length / 4 ? (size_t)wanted : length / 4 + 1;
	size_t before, behind, extra;
	bool ok = openai_encode_into(&around, p->m, "", 0, TEXT_ADD_SPECIAL, p->e);
	const char *bos = tokenizer_bos(p->m->tokenizer);
	u32 bos_id;
	const bool begins = ok && around.count > 0 && tokenizer_find(p->m->tokenizer, bos, &bos_id) && around.data[0] == bos_id;
	const size_t fixed = answer + p->begun.count + 4;
	cut(p, fixed < length ? length - fixed : 0, &before, &behind, &extra);
	if (begins)
		u32_vec_push(ids, bos_id);
	if (extra)
		u32_vec_append(ids, p->extra.data + p->extra.count - extra, extra);
	u32_vec_push(ids, p->prefix_id);
	if (before)
		u32_vec_append(ids, p->before.data + p->before.count - before, before);
	if (p->begun.count)
		u32_vec_append(ids, p->begun.data, p->begun.count);
	u32_vec_push(ids, p->suffix_id);
	if (behind)
		u32_vec_append(ids, p->behind.data, behind);
	u32_vec_push(ids, p->middle_id);
	u32_vec_fini(&around);
	return ok && (!ids->failed || api_error_set(p->e, 503, NULL, NULL, "There is no memory for the request."));
}

bool llama_infill_prompt(struct u32_vec *ids, json_val root, const struct openai_model *m, i64 wanted, struct api_error *e)
{
	struct parts p = {.m = m, .e = e};
	bool ok = find_all(&p) && read_text(&p, &p.before, root, "input_prefix", true) &&
		  read_text(&p, &p.behind, root, "input_suffix", true) && read_text(&p, &p.begun, root, "prompt", false) &&
		  read_extra(&p, json_get(root, "input_extra")) && put_together(&p, ids, wanted);
	u32_vec_fini(&p.extra);
	u32_vec_fini(&p.before);
	u32_vec_fini(&p.behind);
	u32_vec_fini(&p.begun);
	return ok;
}
