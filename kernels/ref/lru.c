/* Reference and only variant: the real-gated linear recurrent unit, some channels a task. The state is rounded to float with every token, so that it does
 * not matter where a call ends. */
#include <math.h>

#include "kernels/kern_priv.h"
#include "kernels/ref/activation_priv.h"

enum { CHANNELS_A_TASK = 64 };

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static void channel(const struct kern_lru_args *a, float *S, u32 t, u32 c, bool begins)
{
	const size_t at = (size_t)t * a->stride + c, gate = (size_t)t * a->gate_stride + c;
	const double i = sigmoid((double)a->input[gate] + (double)a->input_bias[c]), r = sigmoid((double)a->fade[gate] + (double)a->fade_bias[c]);
	const double fades = -8 * (double)a->rate[c] * r, taken = begins ? 1 : sqrt(-expm1(2 * fades));

	S[c] = (float)((begins ? 0 : exp(fades) * (double)S[c]) + taken * i * (double)a->x[at]);
	a->out[at] = (float)((double)S[c] * ref_activate(a->act, (double)a->gate[at]));
}

static void channels_task(void *arg, u32 task, u32 thread)
{
	const struct kern_lru_args *a = arg;
	const struct kern_state *s = &a->state;
	const u32 begin = task * CHANNELS_A_TASK, end = kern_min(begin + CHANNELS_A_TASK, a->channels);

	(void)thread;
	for (u32 row = 0; row < s->rows; row++) {
		float *S = s->data + s->slots[row] * s->stride;
		const u32 first = s->query_start[row], last = s->query_start[row + 1];
		for (u32 t = first; t < last; t++)
			for (u32 c = begin; c < end; c++)
				channel(a, S, t, c, t == first && s->context[row] == last - first);
	}
}

enum err lru_ref(struct kern_ctx *ctx, const struct kern_lru_args *a)
{
	struct kern_lru_args job = *a;

	kern_threads_run(ctx->threads, (a->channels + CHANNELS_A_TASK - 1) / CHANNELS_A_TASK, channels_task, &job);
	return ERR_OK;
}
