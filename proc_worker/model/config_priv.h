/* What the files that read config.json share: fields with their bounds, and which fields there may be. */
#ifndef TERCET_PROC_WORKER_MODEL_CONFIG_PRIV_H
#define TERCET_PROC_WORKER_MODEL_CONFIG_PRIV_H

#include "common/json.h"
#include "proc_worker/model/config.h"

enum {
	CONFIG_DIM_MAX = 1 << 20,
	CONFIG_HEAD_DIM_MAX = 1024,
	CONFIG_CONTEXT_MAX = 1 << 24,
};

/* Readers of one field of `v`. ERR_FORMAT, ERR_INVALID: name the field, what was found and what would be
 * right. `may` readers answer `fallback` where the field is missing or null. */
MUST_CHECK enum err config_need_u32(json_val v, const char *name, u32 max, u32 *out, struct err_msg *em);
MUST_CHECK enum err config_may_u32(json_val v, const char *name, u32 max, u32 fallback, u32 *out,
				   struct err_msg *em);
/* Finite and above 0. */
MUST_CHECK enum err config_need_positive(json_val v, const char *name, double *out, struct err_msg *em);
MUST_CHECK enum err config_may_positive(json_val v, const char *name, double fallback, double *out,
					struct err_msg *em);
/* ERR_INVALID: `value`, that of the field or made of it, would be 0 or infinity as a float. */
MUST_CHECK enum err config_check_float(const char *name, double value, struct err_msg *em);
/* Above 0 and neither 0 nor infinity as a float, which is what the model computes with. */
MUST_CHECK enum err config_may_float(json_val v, const char *name, double fallback, f32 *out, struct err_msg *em);
/* From 0 to `max`. */
MUST_CHECK enum err config_may_count(json_val v, const char *name, u32 max, u32 fallback, u32 *out, struct err_msg *em);
MUST_CHECK enum err config_may_bool(json_val v, const char *name, bool fallback, bool *out,
				    struct err_msg *em);

/* Whether both are the same: numbers by value, however they are written. */
bool config_same_value(json_val x, json_val y);
/* Two names of one field: ERR_INVALID names both if they are set to different values, for programs differ in which they read. */
MUST_CHECK enum err config_check_pair(json_val v, const char *one, const char *other, struct err_msg *em);

/* `v` with the names that all families share where `arch` has others; `*out` NULL: it has none. The caller owns `*out`.
 * ERR_INVALID: a field is there under both names, with two values. ERR_NO_MEMORY, ERR_FORMAT. */
MUST_CHECK enum err config_rename(struct json_doc **out, const struct arch *arch, json_val v, struct err_msg *em);
/* Says behind an error that names such fields, in quotes or not, what `file` calls them: the object before it was renamed. A name that it has for
 * itself is left as it is. */
void config_name_in_file(const struct arch *arch, json_val file, struct err_msg *em);

/* Of a model with parts for images, `name` its architecture: the object that describes its language, which `*text`, the whole file, becomes, and the
 * family of that, c->arch. ERR_UNSUPPORTED: there is no such architecture (`known`: those that there are), or its part is of no family that it may have. */
MUST_CHECK enum err config_read_text_part(struct model_config *c, json_val *text, const char *name, const char *known, struct err_msg *em);
/* The part with what the configuration class of its "model_type" has for fields that are missing (null is not that). `*out` NULL: nothing is known
 * of that type. The caller owns `*out`. ERR_NO_MEMORY. */
MUST_CHECK enum err config_fill_part(struct json_doc **out, json_val part, struct err_msg *em);
/* Which of both has the field: the part where it does. */
json_val config_whose(json_val whole, json_val text, const char *name);
/* Whether lm_head is the embedding, with c->arch filled: what the whole says, the part where it says nothing, or the family; of some models either of the
 * two (arch_ties_either). Fills c->tied_embeddings and tied_headless. ERR_FORMAT. */
MUST_CHECK enum err config_read_tied(struct model_config *c, json_val whole, json_val text, struct err_msg *em);
/* Whether the model gives embeddings of the last token: what `dir`'s 1_Pooling/config.json (sentence-transformers) says, where there is
 * one, or config.json of a model in GGUF ("_pooling_mode"), fills c->no_embeddings. ERR_FORMAT: it cannot be read; ERR_TOO_LONG: the path. */
MUST_CHECK enum err config_read_pooling(struct model_config *c, json_val whole, const char *dir, struct err_msg *em);

/* Every field is one that this architecture has, or says nothing about what is computed, or switches off what
 * is not there (null, false, an empty list, or the neutral number of a known field).
 * ERR_UNSUPPORTED names the first that is none of these. */
MUST_CHECK enum err config_check_fields(const struct arch *arch, json_val v, struct err_msg *em);

/* Whether a field of that name says nothing about the computation, of whatever family. */
bool config_is_inert(const char *name);

/* Activation, biases, caps, multipliers and epsilon: after the architecture and the sizes are known. ERR_INVALID, ERR_UNSUPPORTED, of a field that
 * *em names. */
MUST_CHECK enum err config_read_arithmetic(struct model_config *c, json_val v, struct err_msg *em);

/* Leaves the layers out that "cross_attention_layers" has: `left_out`, and `layers` are the others. ERR_FORMAT, ERR_INVALID. */
MUST_CHECK enum err config_leave_out(struct model_config *c, json_val v, struct err_msg *em);

/* Of a model of several parts what describes those that read: of most the whole, of some that also speak its "thinker_config". */
json_val config_thinker(json_val whole);

/* "sliding_window" and what says which layers have it, "layer_types", "no_rope_layers"; with `c` filled up to the sizes:
 * fills c->window and flags of layers. */
MUST_CHECK enum err config_read_windows(struct model_config *c, json_val v, struct err_msg *em);

/* The sizes of heads of a family with arch.latent, with `c` filled up to the number of heads: fills c->latent and head_dim, and makes one
 * KV head of all. */
MUST_CHECK enum err config_read_latent(struct model_config *c, json_val v, struct err_msg *em);
/* Ends c->context_max at `most` tokens because of `field`, which outlives `c`, unless it ends before. */
void config_bound_context(struct model_config *c, u32 most, const char *field);

/* Whether it is one of the fields that say them. */
bool config_is_latent_field(const char *name);

/* Whether it says which tokens a family whose layers attend to chosen ones chooses. */
bool config_is_index_field(const struct arch *arch, const char *name);
/* How such a family chooses, with `c` filled up to the sizes of latents and to `interleaved`: fills c->index. ERR_UNSUPPORTED, ERR_FORMAT, ERR_INVALID: name
 * the field. */
MUST_CHECK enum err config_read_index(struct model_config *c, json_val v, struct err_msg *em);

/* What layers without a window have for themselves, in families with arch.global_heads: their sizes, with `c` filled up to those of
 * heads; and which layers these are, with its windows read. */
MUST_CHECK enum err config_read_global(struct model_config *c, json_val v, struct err_msg *em);
MUST_CHECK enum err config_mark_global(struct model_config *c, json_val v, struct err_msg *em);

/* Of a family with arch.altup: the width of its MLPs, a number or one for each layer; and, with `c` filled up to the sizes of heads, its streams, what
 * its layers add of a token by itself, which of them have sparse gates and which no keys and values. */
MUST_CHECK enum err config_read_altup_width(struct model_config *c, json_val v, struct err_msg *em);
MUST_CHECK enum err config_read_altup(struct model_config *c, json_val v, struct err_msg *em);
/* With windows read and own_kv_layers filled: flags of the layers behind these. ERR_INVALID: one of them has no layer of its kind to read from. */
MUST_CHECK enum err config_mark_shared(struct model_config *c, struct err_msg *em);

/* Of a family with arch.hyper, with `c` filled up to the activation: its streams, and the bound of its experts' gates. ERR_FORMAT, ERR_INVALID, ERR_UNSUPPORTED. */
MUST_CHECK enum err config_read_hyper(struct model_config *c, json_val v, struct err_msg *em);

/* Numbers of a family with arch.state_beside, with `c` filled up to the heads' scale: c->scales and what they go with. */
MUST_CHECK enum err config_read_scales(struct model_config *c, json_val v, struct err_msg *em);
/* Whether norms stand behind the blocks of a family that may have them ("use_post_norm"): then these multiply by `residual`, too. */
MUST_CHECK enum err config_read_post_norms(struct model_config *c, json_val v, f32 embedding, f32 residual, struct err_msg *em);
/* Whether it is one of the fields that say them in a family. */
bool config_is_scale_field(const struct arch *arch, const char *name);

/* Whether all heads of a family with "multi_query" share one key and one value, with `c` filled up to the number of KV heads: makes it one or that of
 * all, unless "new_decoder_architecture" leaves it as the file says. ERR_INVALID: the file has another number. */
MUST_CHECK enum err config_read_multi_query(struct model_config *c, json_val v, struct err_msg *em);
/* Of a family with arch.quarters, whether its heads have some, with `c` filled up to their size. ERR_INVALID; ERR_UNSUPPORTED: "head_dim", which only
 * files have that divide heads otherwise. */
MUST_CHECK enum err config_check_quarters(const struct model_config *c, json_val v, struct err_msg *em);
/* How the blocks of a Falcon stand, with `c` filled up to the arithmetic: fills norm_each and alibi. ERR_UNSUPPORTED, ERR_INVALID: a
 * combination that no model of the family has. */
MUST_CHECK enum err config_read_falcon(struct model_config *c, json_val v, struct err_msg *em);

/* Which block each layer of a family with arch.single_blocks is: fills the number of layers, their flags and own_kv_layers. */
MUST_CHECK enum err config_read_blocks(struct model_config *c, json_val v, struct err_msg *em);

/* Of a family with arch.shortcut, how many layers it has, and which of them have experts; and, with the sizes of heads read, these. */
MUST_CHECK enum err config_read_pairs(struct model_config *c, json_val v, struct err_msg *em);
MUST_CHECK enum err config_read_shortcut(struct model_config *c, json_val v, struct err_msg *em);

/* Of a family with arch.shared_blocks, how many layers it has and which have a block; with the number of heads read, how large these are; and with all else read, what
 * depends on that. ERR_FORMAT, ERR_INVALID, ERR_UNSUPPORTED name the field. */
MUST_CHECK enum err config_read_shared_layers(struct model_config *c, json_val v, struct err_msg *em);
MUST_CHECK enum err config_read_shared_heads(struct model_config *c, json_val v, struct err_msg *em);
MUST_CHECK enum err config_end_shared(struct model_config *c, json_val v, struct err_msg *em);

/* Of a Baichuan, with `c` filled up to the hidden size, whether its heads rotate, or what of ALiBi they have, and which kind of lm_head: fills c->alibi,
 * context_max where that goes with it, and unit_head. ERR_UNSUPPORTED: nothing says it. */
MUST_CHECK enum err config_read_baichuan(struct model_config *c, json_val v, struct err_msg *em);
/* Of a family with arch.alibi, with `c` filled up to the arithmetic: fills c->alibi where all its models have that, and of an MPT all that "attn_config"
 * and what goes with it say: kv_heads, alibi or learned_positions, clip, attention_scale, attention_bias. And, before, how wide an MPT's MLP is.
 * ERR_FORMAT, ERR_INVALID, ERR_UNSUPPORTED name the field. */
MUST_CHECK enum err config_read_alibi(struct model_config *c, json_val v, struct err_msg *em);
MUST_CHECK enum err config_read_mpt_width(struct model_config *c, json_val v, struct err_msg *em);
/* Of a family with arch.alibi, with rope read: that nothing rotates where c->alibi is, whatever base a file states all the same. ERR_UNSUPPORTED: it
 * states more. */
MUST_CHECK enum err config_end_alibi(struct model_config *c, struct err_msg *em);
/* Of a GPT Neo, "attention_types" or "attention_layers": which layers have windows, and of how many tokens. ERR_FORMAT, ERR_INVALID, ERR_UNSUPPORTED. */
MUST_CHECK enum err config_read_attention_types(struct model_config *c, json_val v, struct err_msg *em);
/* Of a family with "seq_length", with `c` filled up to context_max: ends that where the model would compute otherwise. ERR_FORMAT, ERR_INVALID. */
MUST_CHECK enum err config_read_seq_length(struct model_config *c, json_val v, struct err_msg *em);

/* How many KV heads each layer of a family with arch.by_layer has and how wide its MLP is, with `c` filled up to the number of heads: fills flags,
 * own_kv_layers, kv_heads and intermediate, too. ERR_FORMAT, ERR_INVALID, ERR_UNSUPPORTED: name layer and field. */
MUST_CHECK enum err config_read_by_layer(struct model_config *c, json_val v, struct err_msg *em);

/* Of arch.head_experts, how many heads a token has: one for each KV head and expert of its. ERR_FORMAT, ERR_INVALID. */
MUST_CHECK enum err config_read_head_experts(struct model_config *c, json_val v, struct err_msg *em);
/* "num_attention_heads_per_layer", with `c` filled up to the numbers of heads: fills heads_by_layer, and makes `heads` the most. ERR_FORMAT, ERR_INVALID. */
MUST_CHECK enum err config_read_heads(struct model_config *c, json_val v, struct err_msg *em);
/* What a file of Step's says, as other families say it: lists without what guesses further tokens, heads of each layer, how kinds of layers rotate. The
 * caller owns `*out`. ERR_FORMAT, ERR_UNSUPPORTED: name the field; ERR_NO_MEMORY. */
MUST_CHECK enum err config_say_step(struct json_doc **out, json_val v, struct err_msg *em);
/* "swiglu_limits" and "swiglu_limits_shared" of such a family, with `c` filled up to the activation: fills the bounds. ERR_FORMAT, ERR_UNSUPPORTED. */
MUST_CHECK enum err config_read_limits(struct model_config *c, json_val v, struct err_msg *em);
/* "gating": whether heads have one gate each or one for each of their values (gate_by_head). ERR_UNSUPPORTED: it is another word. */
MUST_CHECK enum err config_read_gating(struct model_config *c, json_val field, struct err_msg *em);

/* Of families with arch.attention_free: that no field speaks of attention, what stands for its numbers, and the layers' flags, with `c` filled up to
 * the number of layers. */
MUST_CHECK enum err config_read_attention_free(struct model_config *c, json_val v, struct err_msg *em);
/* "attn_layer_period": which layers keep a state; "expert_layer_period": experts, and which layers have them. */
MUST_CHECK enum err config_mark_period(struct model_config *c, json_val v, struct err_msg *em);
MUST_CHECK enum err config_read_periodic(struct model_config *c, json_val v, struct err_msg *em);
/* The sizes of layers of RECURRENT_SELECTIVE. */
MUST_CHECK enum err config_read_selective(struct model_config *c, json_val v, struct err_msg *em);

/* Of RECURRENT_LRU: which layers keep a state, and which attend; and the sizes of the former. */
MUST_CHECK enum err config_mark_lru(struct model_config *c, json_val v, struct err_msg *em);
MUST_CHECK enum err config_read_lru(struct model_config *c, json_val v, struct err_msg *em);
/* Of RECURRENT_LIGHTNING: which layers keep a state, if a field lists them (`*ruled`) or nothing does; and the sizes of these. */
MUST_CHECK enum err config_mark_lightning(struct model_config *c, json_val v, bool *ruled, struct err_msg *em);
MUST_CHECK enum err config_read_lightning(struct model_config *c, struct err_msg *em);
/* Of arch.normed_residual: fills residuals. */
MUST_CHECK enum err config_read_residuals(struct model_config *c, json_val v, struct err_msg *em);
/* Over how many tokens convolutions go, which the field `name` says, or `usual`: fills recurrent.taps. ERR_FORMAT, ERR_UNSUPPORTED. */
MUST_CHECK enum err config_read_taps(struct model_config *c, json_val v, const char *name, u32 usual, struct err_msg *em);

/* Which layers of a family with arch.recurrent keep a state, and what it is, with `c` filled up to the arithmetic. */
MUST_CHECK enum err config_read_recurrent(struct model_config *c, json_val v, struct err_msg *em);
/* Of a family with Kimi delta attention, by `own`, its "linear_attn_config": which layers keep a state, if it lists them (`*ruled`). */
MUST_CHECK enum err config_mark_kda(struct model_config *c, json_val own, bool *ruled, struct err_msg *em);
/* The error where neither it nor "layer_types" lists them: ERR_FORMAT. */
MUST_CHECK enum err config_kda_unmarked(const struct model_config *c, json_val own, struct err_msg *em);
/* Of a family with arch.state_wide, whose files do not list layers: every so many are of attention ("layer_group_size"). */
MUST_CHECK enum err config_mark_groups(struct model_config *c, json_val v, struct err_msg *em);
/* And of which sizes it is, in there or beside. */
MUST_CHECK enum err config_read_kda(struct model_config *c, json_val v, struct err_msg *em);
/* Whether it is one of the fields that say this in a family. */
bool config_is_recurrent_field(const struct arch *arch, const char *name);
/* This rank's share of such layers; `s` has the ranks. ERR_INVALID: they cannot be divided like that; names the number and which counts would do. */
MUST_CHECK enum err config_share_recurrent(struct model_shard *s, const struct model_config *c, struct err_msg *em);

/* Mixtures of experts: how many, how wide, in which layers, how chosen. */
MUST_CHECK enum err config_read_experts(struct model_config *c, json_val v, struct err_msg *em);

/* Experts beside an MLP in every layer, if the file says so (arch.global_heads). */
MUST_CHECK enum err config_read_beside(struct model_config *c, json_val v, struct err_msg *em);

/* "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", with `c` filled up to head_dim
 * and context_max; fills c->rope (and c->local_rope) and stretches context_max where the scaling does. */
MUST_CHECK enum err config_read_rope(struct model_config *c, json_val v, struct err_msg *em);

#endif
