/* Layers that keep a state of each sequence instead of keys and values: what stands between their first product and their last one. */
#ifndef TERCET_PROC_WORKER_MODEL_RECURRENT_H
#define TERCET_PROC_WORKER_MODEL_RECURRENT_H

#include "proc_worker/model/decoder.h"

/* Of a token's row, which SLOT_QKV makes, all but the tail: where each part begins and how much there is, in floats, on one rank. */
struct recurrent_layout {
	u32 channels;		    /* the convolution's */
	u32 q, k, v, gate, beta, decay; /* of RECURRENT_CONV v is x, k is `before` and gate is `behind` */
	u32 low_decay, low_gate;    /* of RECURRENT_KDA: what products of their own make decays and gates of */
	u32 out, out_width;	    /* where recurrent_mix leaves what the last product reads */
	u32 width;		    /* all of it */
	u32 tail;		    /* of that, the last, which SLOT_QKV does not make */
	u32 stride; /* to the next token's: with LAYER_BESIDE queries, keys and values of attention come behind it */
};
struct recurrent_layout recurrent_layout(const struct model_config *m, const struct model_shard *s);

/* Floats that layer `index` keeps of a sequence on this rank: the inputs of its convolution, then the state of its heads; 0: it is not recurrent. */
size_t recurrent_floats(const struct model_config *m, const struct model_shard *s, u32 index);
/* The former, behind which the latter begins. */
size_t recurrent_conv_floats(const struct model_config *m, const struct recurrent_layout *l);

/* From decoder.qkv, the product of SLOT_QKV, to recurrent_layout.out in it, of all tokens of the step; the sequences' states move on. The errors of
 * the ops. */
MUST_CHECK enum err recurrent_mix(struct decoder *d, u32 index, const struct inputs *in, struct err_msg *em);

#endif
