/* Answers clients: SUBMIT, ABORT, ALIVE, BYE. Runs in the scheduler's loop. Never blocks: what a client does
 * not take waits in a bounded outbox, and a client for which even that is full is treated as gone. */
#include <inttypes.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "proc_scheduler/scheduler_priv.h"

enum { NOT_READY_RETRY_MS = 1000, MODEL_NAME_MAX = 4096 };
_Static_assert(sizeof(((struct err_msg *)NULL)->text) <= IPC_ERROR_TEXT_MAX,
	       "every error text fits into a message");

static void drop_client(struct scheduler *s, u64 client_id, const char *why)
{
	u32 ended = s->sched ? sched_abort_client(s->sched, client_id, s->streams.now_ns) : 0;

	clients_forget(&s->clients, client_id);
	parked_forget_client(&s->parked, client_id);
	if (ended)
		LOG_INFO("CLIENT_GONE", "client=%" PRIu64 " reason=\"%s\" aborted=%u", client_id, why, ended);
}

void scheduler_reply(struct scheduler *s, ipc_peer to, u64 client_id, const struct ipc_msg *msg)
{
	enum err e = outbox_send(&s->submit_outbox, to, msg);

	if (e == ERR_OK)
		return;
	if (client_id)
		drop_client(s, client_id, err_text(e));
	else if (ipc_channel_may_log(s->submit_channel))
		LOG_WARN("REPLY_LOST", "type=%s reason=\"%s\"", ipc_type_name(msg->type), err_text(e));
}

static void refuse(struct scheduler *s, ipc_peer to, const struct ipc_submit *m, enum err code,
		   u32 retry_after_ms, const char *text)
{
	struct ipc_msg msg = {.type = IPC_TYPE_REFUSED, .epoch = s->epoch};

	msg.refused = (struct ipc_refused){
		.req_id = m->req_id,
		.code = code,
		.retry_after_ms = retry_after_ms,
		.text = (const u8 *)text,
		.text_count = (u32)strlen(text), /* of a struct err_msg at most: fits */
	};
	scheduler_reply(s, to, 0, &msg);
}

static void complain(struct scheduler *s, ipc_peer to, enum err code, const char *text)
{
	struct ipc_msg msg = {.type = IPC_TYPE_ERROR, .epoch = s->epoch};

	msg.error =
		(struct ipc_error){.code = code, .text = (const u8 *)text, .text_count = (u32)strlen(text)};
	scheduler_reply(s, to, 0, &msg);
}

void scheduler_send_engine(struct scheduler *s, ipc_peer to)
{
	const struct sched *core = s->sched;
	const struct options *o = s->options;
	const char *model = o->served_model_name.count ? o->served_model_name.items[0] : o->model;
	struct ipc_msg msg = {.type = IPC_TYPE_ENGINE, .epoch = s->epoch};

	msg.engine = (struct ipc_engine){
		.max_model_len = core->context_max,
		.vocab_size = core->config.vocab_size,
		.embedding_width = core->config.no_embeddings[0] ? 0 : core->config.embedding_width,
		.block_size = core->config.block_size,
		.block_count = core->kv.count,
		.max_num_seqs = core->config.max_num_seqs,
		.client_lease_s = (u32)o->client_lease,
		.eos_ids = core->config.eos_ids,
		.eos_ids_count = core->config.eos_count,
		.model = (const u8 *)model,
		.model_count = (u32)strnlen(model, MODEL_NAME_MAX),
	};
	scheduler_reply(s, to, 0, &msg);
}

/* True: it waits for the end of its session's turn, and nothing was answered. */
static bool park(struct scheduler *s, ipc_peer from, const struct ipc_submit *m)
{
	struct ipc_msg msg = {.type = IPC_TYPE_SUBMIT, .sequence = 1, .submit = *m};

	return parked_add(&s->parked, from, &msg, s->streams.now_ns);
}

static void on_submit(struct scheduler *s, ipc_peer from, const struct ipc_submit *m, bool may_wait)
{
	struct sched_admission admission;
	struct err_msg em;

	if (!s->sched || !streams_have_room(&s->streams)) {
		refuse(s, from, m, ERR_BUSY, NOT_READY_RETRY_MS,
		       s->sched ? "the detokenizer does not keep up; try again later"
				: "the model is still loading; try again later");
		return;
	}
	enum err e = sched_submit(s->sched, m, s->streams.now_ns, &admission, &em);
	if (e == ERR_CONFLICT && admission.turn_runs && may_wait && park(s, from, m))
		return;
	if (e) {
		if (admission.turn_runs)
			stats_add(s->stats, STATS_REQUESTS_REFUSED, 1);
		refuse(s, from, m, e, admission.retry_after_ms, em.text);
		LOG_DEBUG("REFUSED", "client=%" PRIu64 " req=%" PRIu64 " code=%s reason=\"%s\"", m->client_id,
			  m->req_id, err_name(e), em.text);
		return;
	}
	struct ipc_msg msg = {.type = IPC_TYPE_ACCEPTED, .epoch = s->epoch};
	msg.accepted = (struct ipc_accepted){m->req_id, admission.seq, admission.waiting};
	scheduler_reply(s, from, m->client_id, &msg);
}

void scheduler_try_parked(struct scheduler *s, u64 now_ns)
{
	struct ipc_msg msg;

	s->streams.now_ns = now_ns;
	for (u32 i = 0; i < s->parked.count;) {
		bool late = now_ns >= s->parked.items[i].due_ns;
		ipc_peer from = s->parked.items[i].from;
		if (!parked_get(&s->parked, i, &msg)) {
			parked_remove(&s->parked, i);
			continue;
		}
		struct ipc_session q = {.session_owner = msg.submit.session_owner,
					.session = msg.submit.session,
					.session_count = msg.submit.session_count};
		if (!late && s->sched && sched_session_runs(s->sched, &q, now_ns)) {
			i++;
			continue;
		}
		/* What it points to stays where it is until another one is read. */
		parked_remove(&s->parked, i);
		on_submit(s, from, &msg.submit, false);
	}
}

void scheduler_refuse_parked(struct scheduler *s, enum err code, const char *text)
{
	for (; s->parked.count; parked_remove(&s->parked, 0)) {
		const struct ipc_submit m = {.req_id = s->parked.items[0].req_id};
		stats_add(s->stats, STATS_REQUESTS_REFUSED, 1); /* whoever has the answer finds it counted */
		refuse(s, s->parked.items[0].from, &m, code, 0, text);
	}
}

static void on_abort(struct scheduler *s, ipc_peer from, const struct ipc_abort *m)
{
	u32 place = parked_find(&s->parked, m->client_id, m->req_id);
	const struct ipc_submit never = {.req_id = m->req_id};

	if (place != PARKED_MAX) {
		parked_remove(&s->parked, place);
		stats_add(s->stats, STATS_REQUESTS_REFUSED, 1);
		refuse(s, from, &never, ERR_ABORTED, 0, "the request was aborted before it was admitted");
	} else if (s->sched) {
		sched_abort(s->sched, m->client_id, m->req_id, s->streams.now_ns);
	}
}

/* The client the message speaks for; 0 for messages that name none. */
static u64 client_of(const struct ipc_msg *msg)
{
	switch (msg->type) {
	case IPC_TYPE_HELLO:
		return msg->hello.client_id;
	case IPC_TYPE_SUBMIT:
		return msg->submit.client_id;
	case IPC_TYPE_ABORT:
		return msg->abort.client_id;
	case IPC_TYPE_ALIVE:
		return msg->alive.client_id;
	case IPC_TYPE_SESSION:
		return msg->session.client_id;
	case IPC_TYPE_BYE:
		return msg->bye.client_id;
	default:
		return 0;
	}
}

/* The table of clients is full: whoever has no requests can do without a place in it. */
static bool make_room(struct scheduler *s)
{
	const struct seqs *seqs = s->sched ? &s->sched->seqs : NULL;

	for (u32 i = 0; seqs && i < seqs->slot_count; i++)
		if (seqs->slots[i].id)
			clients_mark_busy(&s->clients, seqs->slots[i].client_id);
	return clients_forget_idle(&s->clients);
}

static enum err note_speaker(struct scheduler *s, ipc_peer from, const struct ipc_msg *msg, u64 client_id)
{
	u64 now = s->streams.now_ns;

	return msg->type == IPC_TYPE_HELLO ? clients_greet(&s->clients, client_id, from, now)
					   : clients_heard(&s->clients, client_id, from, now);
}

/* Whether `from` may speak for the client it names. If not, it is told. */
static bool admit_speaker(struct scheduler *s, ipc_peer from, const struct ipc_msg *msg, u64 client_id)
{
	static const char *const texts[] = {
		[ERR_DENIED] = "another peer speaks for this client_id; greet with it in HELLO to take over",
		[ERR_INVALID] = "client_id is 0; a client draws a random one and sends it in HELLO and in "
				"every message",
		[ERR_BUSY] = "too many clients; try again later",
	};
	enum err e = note_speaker(s, from, msg, client_id);

	if (e == ERR_BUSY && make_room(s))
		e = note_speaker(s, from, msg, client_id);
	if (e == ERR_OK)
		return true;
	const char *text = e < COUNT_OF(texts) && texts[e] ? texts[e] : err_text(e);
	if (msg->type == IPC_TYPE_SUBMIT)
		refuse(s, from, &msg->submit, e, e == ERR_BUSY ? NOT_READY_RETRY_MS : 0, text);
	else
		complain(s, from, e, text);
	return false;
}

void scheduler_on_client(void *ctx, struct ipc_channel *ch, ipc_peer from, const struct ipc_msg *msg)
{
	struct scheduler *s = ctx;
	u64 client_id = client_of(msg);

	(void)ch;
	s->streams.now_ns = clock_now_ns();
	if (!(msg->type == IPC_TYPE_HELLO && client_id == 0) && !admit_speaker(s, from, msg, client_id))
		return;
	switch (msg->type) {
	case IPC_TYPE_HELLO:
		if (s->sched)
			scheduler_send_engine(s, from);
		break;
	case IPC_TYPE_SUBMIT:
		scheduler_try_parked(s, s->streams.now_ns); /* who waited is first */
		on_submit(s, from, &msg->submit, true);
		break;
	case IPC_TYPE_ABORT:
		on_abort(s, from, &msg->abort);
		break;
	case IPC_TYPE_SESSION:
		scheduler_on_session(s, from, &msg->session);
		break;
	case IPC_TYPE_BYE:
		drop_client(s, client_id, "bye");
		break;
	case IPC_TYPE_ALIVE:
		break;
	default:
		complain(s, from, ERR_UNSUPPORTED,
			 "clients send HELLO, SUBMIT, ABORT, ALIVE, SESSION and BYE on this channel");
	}
}

void scheduler_expire_clients(struct scheduler *s, u64 now_ns)
{
	u64 lease_ns = (u64)s->options->client_lease * 1000000000u;
	const struct client *silent;

	if (now_ns < lease_ns)
		return;
	while ((silent = clients_find_silent(&s->clients, now_ns - lease_ns)))
		drop_client(s, silent->id, "no sign of life for a whole lease");
}
