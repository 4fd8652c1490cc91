/* Request bodies from outside: whatever they are, they end in a request that keeps to its limits or in an
 * error with a text. The first byte chooses the endpoint. */
#include <stdlib.h>

#include "fuzz.h"
#include "proc_gateway/openai_request.h"

enum { MODEL_LEN = 512 };

static void load(struct openai_model *m)
{
	static const char *const names[] = {"demo"};
	static struct tokenizer *tokenizer;
	static struct text_scratch *scratch;
	static struct chat_template *chat_template;
	struct err_msg em;
	if (!tokenizer && (tokenizer_load(&tokenizer, DEMO_DIR, &em) || text_scratch_create(&scratch) ||
			   chat_template_load(&chat_template, DEMO_DIR, "", &em)))
		abort();
	*m = (struct openai_model){.tokenizer = tokenizer,
				   .scratch = scratch,
				   .chat_template = chat_template,
				   .names = names,
				   .name_count = 1,
				   .max_model_len = MODEL_LEN,
				   .vocab_size = 4096,
				   .embedding_width = 256,
				   .token_bytes_max = 32,
				   .logprobs_max = 20};
	generation_config_default(&m->defaults);
}

static void check(const struct openai_request *r)
{
	for (size_t i = 0; i < r->ids.count; i++) {
		if (r->ids.data[i] >= 4096)
			abort();
	}
	if (r->asked == OPENAI_COUNT_TOKENS) /* ids alone, however many */
		return;
	if (r->prompt_count == 0 || (u64)r->prompt_count * r->n > OPENAI_CHOICES_MAX)
		abort();
	for (u32 i = 0; i < r->prompt_count; i++) {
		const struct openai_prompt *p = &r->prompts[i];
		if (p->count == 0 || p->count + r->params.max_tokens > MODEL_LEN ||
		    p->first + p->count > r->ids.count)
			abort();
	}
	if (r->stop_count > OPENAI_STOPS_MAX || r->stop_id_count > OPENAI_STOP_IDS_MAX ||
	    r->bias_ids.count > OPENAI_BIASES_MAX || r->params.max_tokens == 0 || !(r->params.top_p > 0))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct openai_model m;
	struct openai_request r;
	struct api_error e = {0};
	if (bytes == 0)
		return 0;
	load(&m);
	enum openai_endpoint endpoint = data[0] & 16  ? (data[0] & 1 ? OPENAI_LLAMA_INFILL : OPENAI_LLAMA_COMPLETION)
					: data[0] & 8   ? (data[0] & 1 ? OPENAI_LLAMA_EMBEDDING : OPENAI_EMBEDDINGS)
					: data[0] & 4 ? (data[0] & 1 ? OPENAI_COUNT_TOKENS : OPENAI_MESSAGES)
					: data[0] & 2 ? OPENAI_RESPONSES
					: data[0] & 1 ? OPENAI_CHAT
						      : OPENAI_COMPLETIONS;
	if (openai_any_read(&r, &m, endpoint, (const char *)data + 1, bytes - 1, 0, &e))
		check(&r);
	else if (e.status < 400 || !e.message[0])
		abort();
	openai_request_fini(&r);
	return 0;
}
