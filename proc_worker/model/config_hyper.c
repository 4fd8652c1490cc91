/* Gated residual streams, as config.json describes them. Runs in the worker at start. */
#include "proc_worker/model/config_priv.h"

/* Where nothing says it. */
static const u32 STREAMS = 4;
static const double MAGNITUDE = 2, EPS = 1e-6, LIMIT = 10;

enum err config_read_hyper(struct model_config *c, json_val v, struct err_msg *em)
{
	f32 limit = 0;

	enum err e = config_may_u32(v, "hc_mult", KERN_STREAMS_MAX, STREAMS, &c->hyper.streams, em);
	if (!e)
		e = config_may_float(v, "hc_magnitude", MAGNITUDE, &c->hyper.magnitude, em);
	if (!e)
		e = config_may_float(v, "hc_eps", EPS, &c->hyper.eps, em);
	if (!e && (u64)c->hyper.streams * c->hidden > CONFIG_DIM_MAX)
		e = err_set(em, ERR_INVALID, "config.json: \"hc_mult\" is %u; so many streams of hidden_size, which is %u, are wider than %d", c->hyper.streams, c->hidden,
			    CONFIG_DIM_MAX);
	if (!e && c->activation != KERN_SILU)
		e = err_set(em, ERR_UNSUPPORTED, "config.json: \"hidden_act\" is '%.64s'; of a %s it must be silu", json_cstr(json_get(v, "hidden_act"), ""), c->arch->name);
	if (!e)
		e = config_may_float(v, "swiglu_limit", LIMIT, &limit, em);
	for (u32 i = 0; !e && i < c->layers; i++)
		c->expert_limits[i] = (struct gate_limit){.gate = limit, .up = limit};
	c->limited = !e;
	return e;
}
