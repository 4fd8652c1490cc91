/* What the two parts of the writing of config.json share. */
#ifndef TERCET_TEXT_GGUF_CONFIG_PRIV_H
#define TERCET_TEXT_GGUF_CONFIG_PRIV_H

#include "text/gguf_priv.h"

enum { GGUF_ARCH_BYTES_MAX = 32, GGUF_KEYS_MAX = 96, GGUF_COUNT_MAX = 1 << 30, GGUF_GATING_SOFTMAX = 1, GGUF_GATING_SIGMOID = 2, GGUF_GATING_CHOSEN = 3 /* a softmax of those that are chosen */ };

/* ---- families ---- */

enum gguf_family_trait {
	INTERLEAVE = 1u << 0,	   /* rows of q and k lie so that neighbours turn together, which the checkpoint's do not */
	PARTIAL = 1u << 1,	   /* "partial_rotary_factor" */
	WINDOW = 1u << 2,	   /* "sliding_window", null where the file has none */
	ATTENTION_BIAS = 1u << 3,  /* "attention_bias", by the tensors that there are */
	MLP_BIAS = 1u << 4,
	USE_BIAS = 1u << 5,	   /* one field for both */
	QKV_BIAS = 1u << 6,	   /* "use_qkv_bias" */
	SOFT_CAPS = 1u << 7,
	LOCAL_ROPE = 1u << 8,
	EXPERTS = 1u << 9,	   /* experts of their own width beside "intermediate_size" */
	EXPERTS_ALL = 1u << 10,	   /* "intermediate_size" is theirs */
	NORM_TOPK = 1u << 11,	   /* their weights add up to 1 */
	KEEP_TOPK = 1u << 12,	   /* they are left as they are */
	SHARED = 1u << 13,	   /* one more expert for all tokens */
	MULTIPLIERS = 1u << 14,
	LOGIT_SCALE = 1u << 15,
	CLIP = 1u << 16,
	LATENT = 1u << 20,	   /* one latent instead of keys and values */
	ROUTED = 1u << 21,	   /* experts with DeepSeek's router, and some for all tokens */
	GREEDY = 1u << 22,	   /* DeepSeek V2's, which does not choose by scores and biases */
	QUERY_SCALE = 1u << 19,	   /* scores of far tokens count more */
	CONV = 1u << 23,	   /* layers that keep a state: gated short convolutions */
	DELTA = 1u << 24,	   /* the gated delta rule */
	SCAN = 1u << 25,	   /* Mamba 2 */
	BLOCKS = 1u << 26,	   /* Mamba 2, in layers of one block each */
	RECURRENT = CONV | DELTA | SCAN | BLOCKS,
	SIGMOID = 1u << 27,	   /* experts with sigmoid scores, and biases that only choose */
	OSS = 1u << 30,		   /* gpt-oss: what its configuration says and no value does */
	DRAFTS = 1u << 28,	   /* layers that guess further tokens are counted, too */
	SECTIONS = 1u << 18,	   /* of rotations for images; of text all turn by the same place */
};

/* Experts that one family has. */
enum gguf_own_experts { NO_OWN_EXPERTS, ERNIE_EXPERTS, HUNYUAN_EXPERTS, COHERE_EXPERTS, LLAMA4_EXPERTS, EXAONE_EXPERTS, LING_EXPERTS, AFMOE_EXPERTS, KIMI_EXPERTS /* these four of ROUTED */ };

struct gguf_family {
	const char *arch;   /* general.architecture */
	const char *name;   /* in "architectures" */
	const char *layer_norm; /* the field of its epsilon; NULL: RMS norms */
	u32 traits;
	enum gguf_own_experts own_experts;
	u32 gating; /* what scores of EXPERTS_ALL become; 0: what a softmax makes of them */
	const char *activation; /* "hidden_act"; NULL: what the family has anyway */
	bool whole_factor; /* rope.scaling.yarn_attn_factor is all that yarn scales attention by, not what is beside the usual factor */
	bool selective; /* layers that keep a state: Mamba's first generation */
	bool state_beside; /* every layer keeps a state as Mamba 2's do, and attends */
	bool attention_free; /* of these, and of BLOCKS: no others, and none of an MLP */
	bool global_heads; /* layers without a window have heads of their own sizes */
	bool positions; /* are learned, or heads have ALiBi: nothing rotates */
	bool shares_key; /* heads share one key or have one each ("multi_query") */
	bool blocks_apart; /* Falcon: its blocks may have a norm each, and its heads as many keys as the file says */
	bool parallel_choice; /* attention and MLP side by side, or one behind the other ("use_parallel_residual") */
	bool values_known; /* files of LATENT leave out how wide values are, a head's share of the stream, and the context that factors begin behind, the whole */
	bool streams; /* the residual stream is several */
	bool by_layer; /* layers differ in their heads and MLPs ("block_configs") */
	bool delta_latent; /* some layers have Kimi delta attention, the others LATENT, and nothing rotates */
	bool chosen; /* layers attend to tokens that are chosen ("index_topk") */
	bool dense; /* of LATENT: no layer has experts, though files say how wide these are */
	bool scales; /* of far and near, which are one number in files ("short_mscale") */
	bool parallel_unsaid; /* attention and MLP side by side where the MLP has no norm of its own */
	bool sections_halves; /* with SECTIONS halves of heads turn together, which are neighbours in the checkpoint */
	bool attention_apart; /* MPT: what attention is stands in an object of its own */
	bool context_apart; /* Baichuan 13B: its context stands in "model_max_length" */
	const char *head_norms; /* the field that says whether there are norms of queries and keys */
	bool step; /* Step 3.5: layers differ in heads, rotations and bounds of gates */
	bool windows_listed; /* with a window the file has a list of the layers that have it */
	u32 pattern; /* of layers with a window every so many have none, where the file does not say */
};

/* One config.json on its way. Errors stick: after the first one nothing is read any more. */
struct gguf_config {
	const struct gguf *g;
	const struct gguf_family *family;
	char arch[GGUF_ARCH_BYTES_MAX + 1]; /* what the names of the family's values begin with */
	char key[128];			    /* the whole name of the value that was asked for last */
	const char *asked[GGUF_KEYS_MAX];   /* all that were asked for, without `arch` */
	u32 asked_count;
	u32 layers, heads, head_dim, hidden, context;
	u32 blocks; /* layers, with those that guess further tokens */
	bool rotates;
	struct json_writer w;
	struct err_msg *em;
	enum err e;
};

/* Values by their names behind "ARCH.". The first three answer false where there is none; one that is of another kind or
 * negative is an error. A list of numbers that are all the same is that number. */
bool gguf_config_int(struct gguf_config *c, const char *name, u32 *out);
bool gguf_config_float(struct gguf_config *c, const char *name, double *out);
bool gguf_config_bool(struct gguf_config *c, const char *name, bool fallback);
struct gguf_text gguf_config_text(struct gguf_config *c, const char *name);
/* Of a list the number of a layer; else the same for all. */
bool gguf_config_layer_int(struct gguf_config *c, const char *name, u32 layer, u32 *out);
/* The one number that all layers have but those that have 0. False: none has one. */
bool gguf_config_some_int(struct gguf_config *c, const char *name, u32 *out);
/* Whether some layer has such a tensor ("attn_q.bias"). */
bool gguf_config_layers_have(const struct gguf_config *c, const char *name);
/* One that must be there, and above 0; 0 with an error. */
u32 gguf_config_need_int(struct gguf_config *c, const char *name);
/* One that must be there; 0 with an error. */
double gguf_config_need_float(struct gguf_config *c, const char *name);
bool gguf_config_has_tensor(const struct gguf_config *c, const char *name);
static inline bool gguf_config_has(const struct gguf_config *c, u32 traits)
{
	return c->family->traits & traits;
}
/* Whether some of the family's layers keep a state of each sequence. */
static inline bool gguf_config_keeps_state(const struct gguf_config *c)
{
	return gguf_config_has(c, RECURRENT) || c->family->selective || c->family->delta_latent;
}
/* A value of that name is no news. */
void gguf_config_know(struct gguf_config *c, const char *name);
/* Sets the error, unless there is one. */
void gguf_config_fail(struct gguf_config *c, enum err e, const char *fmt, ...) PRINTF_LIKE(3, 4);

void gguf_config_write_uint(struct gguf_config *c, const char *field, u32 value);
void gguf_config_write_float(struct gguf_config *c, const char *field, double value);
void gguf_config_write_bool(struct gguf_config *c, const char *field, bool value);

/* Writes "layer_types". False: the file does not say of each layer whether it has a window, as older ones do not. */
bool gguf_config_write_layer_types(struct gguf_config *c);
/* Writes "rope_theta", "partial_rotary_factor" and "rope_scaling". */
void gguf_config_write_rope(struct gguf_config *c);
/* Of families with `global_heads` the widths, heads and kinds of layers; and, for the end, how both kinds rotate. */
void gguf_config_write_global(struct gguf_config *c);
void gguf_config_write_global_rope(struct gguf_config *c);
/* Of families with `attention_apart`, `kv` being the number of KV heads: "attn_config" and what goes with it. */
void gguf_config_write_attention(struct gguf_config *c, u32 kv);
/* Of families with `step` heads, kinds of layers, experts, bounds of gates and rotations. */
void gguf_config_write_step(struct gguf_config *c);
/* Of families with `by_layer` what blocks each layer has, and how wide. */
void gguf_config_write_by_layer(struct gguf_config *c);
/* Of families with `chosen` what chooses tokens, how many, and in which layers. */
void gguf_config_write_indexer(struct gguf_config *c);
/* Of families with `streams` how many there are, what layers add beside, and which have sparse gates. */
void gguf_config_write_streams(struct gguf_config *c);
/* Which layers keep a state, and of what sizes. */
void gguf_config_write_recurrent(struct gguf_config *c);
/* Of families with `state_beside` the sizes of the states. */
void gguf_config_write_beside(struct gguf_config *c);
/* The same of Mamba's first generation, with experts and layers that have them. */
void gguf_config_write_selective(struct gguf_config *c);
/* How many experts, how wide, how chosen. */
void gguf_config_write_experts(struct gguf_config *c);
/* Heads and sizes of latent attention. */
void gguf_config_write_latent(struct gguf_config *c);
/* "_pooling_mode", where embeddings are not of the last token, which is what models here give anyway. */
void gguf_config_write_pooling(struct gguf_config *c);

#endif
