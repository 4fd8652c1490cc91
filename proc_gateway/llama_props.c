/* Owns the reply of /props: what is served, and what a request without fields is generated with. Runs in the gateway. */
#include "proc_gateway/gateway.h"
#include "proc_gateway/llama.h"

static void write_generation(const struct gateway *g, struct json_writer *w)
{
	struct generation_config d;
	struct llama_settings s = {.n_predict = -1, .any_seed = g->model.seed == 0, .lora = -1, .max_model_len = g->model.max_model_len, .grammar = ""};
	llama_defaults(&g->model, &d);
	tercet_params_init(&s.params);
	s.params.temperature = (f32)d.temperature;
	s.params.top_p = (f32)d.top_p;
	s.params.min_p = (f32)d.min_p;
	s.params.top_k = d.top_k < 0 ? 0 : (u32)d.top_k;
	s.params.repetition_penalty = (f32)d.repetition_penalty;
	s.params.seed = g->model.seed;
	json_key(w, "default_generation_settings");
	json_object_begin(w);
	json_key(w, "n_ctx");
	json_write_uint(w, g->model.max_model_len);
	json_key(w, "params");
	llama_settings_write(&s, w);
	json_object_end(w);
}

static void key_cstr(struct json_writer *w, const char *key, const char *text)
{
	json_key(w, key);
	json_write_cstr(w, text);
}

static void write_modalities(struct json_writer *w)
{
	json_key(w, "modalities");
	json_object_begin(w);
	json_key(w, "vision");
	json_write_bool(w, false);
	json_key(w, "audio");
	json_write_bool(w, false);
	json_object_end(w);
}

void llama_props_write(const struct gateway *g, struct buf *out)
{
	struct json_writer w;
	json_begin(&w, out);
	json_object_begin(&w);
	write_generation(g, &w);
	json_key(&w, "total_slots");
	json_write_int(&w, g->options->max_num_seqs);
	key_cstr(&w, "model_alias", g->model.names[0]);
	key_cstr(&w, "model_path", g->root);
	write_modalities(&w);
	key_cstr(&w, "chat_template", g->chat_template ? chat_template_source(g->chat_template) : "");
	key_cstr(&w, "bos_token", tokenizer_bos(g->tokenizer));
	key_cstr(&w, "eos_token", tokenizer_eos(g->tokenizer));
	key_cstr(&w, "build_info", "tercet-" TERCET_RELEASE);
	json_key(&w, "is_sleeping");
	json_write_bool(&w, false);
	json_object_end(&w);
}
