/* What a libtercet handle asks about sessions: queries in the order in which they were asked, sent again to an engine
 * that forgot them. Runs in the client's thread; owns the table of queries. Never blocks. */
#include <stdlib.h>
#include <string.h>

#include "client/libtercet_priv.h"
#include "common/clock.h"

bool tercet_session_name_ok(const char *name)
{
	size_t bytes = strlen(name);

	return bytes > 0 && bytes <= SESSION_NAME_MAX && strspn(name, SESSION_NAME_ALLOWED) == bytes;
}

void tercet_session_fini(struct session_queries *q)
{
	free(q->slots);
	*q = (struct session_queries){0};
}

static struct session_query *find(struct session_queries *q, u64 id)
{
	for (u32 i = 0; q->count && i < SESSION_QUERIES_MAX; i++)
		if (q->slots[i].id == id)
			return &q->slots[i];
	return NULL;
}

static struct session_query *oldest_due(struct session_queries *q)
{
	struct session_query *oldest = NULL;

	for (u32 i = 0; i < SESSION_QUERIES_MAX; i++)
		if (q->slots[i].id && !q->slots[i].sent && (!oldest || q->slots[i].id < oldest->id))
			oldest = &q->slots[i];
	return oldest;
}

void tercet_session_send_due(struct tercet *t)
{
	while (t->engine_there && t->queries.due_count) {
		struct session_query *q = oldest_due(&t->queries);
		struct ipc_msg msg = {.type = IPC_TYPE_SESSION};
		msg.session = (struct ipc_session){.client_id = t->client_id,
						   .req_id = q->id,
						   .action = q->action,
						   .session_owner = q->owner,
						   .session = (const u8 *)q->name,
						   .session_count = (u32)strlen(q->name)};
		if (ipc_send(t->submit, (ipc_peer){0}, &msg) != ERR_OK)
			return; /* tried again by the timer */
		q->sent = true;
		t->queries.due_count--;
	}
}

void tercet_session_lost(struct tercet *t)
{
	for (u32 i = 0; t->queries.count && i < SESSION_QUERIES_MAX; i++) {
		struct session_query *q = &t->queries.slots[i];
		if (!q->id || !q->sent)
			continue;
		q->sent = false;
		t->queries.due_count++;
	}
}

static void forget(struct tercet *t, struct session_query *q)
{
	t->queries.count--;
	t->queries.due_count -= !q->sent;
	q->id = 0;
}

void tercet_session_answer(struct tercet *t, const struct ipc_session_state *m)
{
	struct session_query *q = find(&t->queries, m->req_id);
	struct notice n = {.type = TERCET_EVENT_SESSION, .req_id = m->req_id, .code = (enum tercet_result)m->code};

	if (!q || !m->req_id)
		return;
	n.user = q->user;
	n.session = (struct tercet_session_state){.token_count = m->token_count,
						  .turn_count = m->turn_count,
						  .cached_count = m->cached_count,
						  .running = m->running,
						  .age_s = m->age_s,
						  .idle_s = m->idle_s,
						  .ttl_s = m->ttl_s};
	if (m->text_count)
		memcpy(n.text, m->text, m->text_count);
	bool silent = q->discarded;
	forget(t, q);
	if (!silent)
		tercet_handle_notify(t, &n);
}

static enum tercet_result ask(struct tercet *t, u32 action, const char *session, u64 owner, void *user, u64 *query_id,
			      struct tercet_error *error)
{
	struct err_msg *em = (struct err_msg *)error;
	struct session_queries *q = &t->queries;

	if (!session || !tercet_session_name_ok(session))
		return (enum tercet_result)err_set(em, ERR_INVALID,
						   "the session's name must be 1 to %d letters, digits and \"._:-\"",
						   SESSION_NAME_MAX);
	if (!q->slots)
		q->slots = calloc(SESSION_QUERIES_MAX, sizeof(*q->slots));
	if (!q->slots)
		return (enum tercet_result)err_set(em, ERR_NO_MEMORY, "no memory for a query");
	if (q->count == SESSION_QUERIES_MAX)
		return (enum tercet_result)err_set(em, ERR_BUSY, "%d queries are unanswered", SESSION_QUERIES_MAX);
	struct session_query *slot = q->slots;
	while (slot->id)
		slot++;
	*slot = (struct session_query){.id = ++q->next_id, .user = user, .action = action, .owner = owner};
	memcpy(slot->name, session, strlen(session));
	q->count++;
	q->due_count++;
	if (query_id)
		*query_id = slot->id;
	tercet_handle_send_due(t, clock_now_ns());
	tercet_handle_sent(t);
	return TERCET_OK;
}

enum tercet_result tercet_session_get(struct tercet *t, const char *session, uint64_t owner, void *user,
				      uint64_t *query_id, struct tercet_error *error)
{
	return ask(t, SESSION_GET, session, owner, user, query_id, error);
}

enum tercet_result tercet_session_end(struct tercet *t, const char *session, uint64_t owner, void *user,
				      uint64_t *query_id, struct tercet_error *error)
{
	return ask(t, SESSION_DELETE, session, owner, user, query_id, error);
}

void tercet_session_discard(struct tercet *t, uint64_t query_id)
{
	struct session_query *q = query_id ? find(&t->queries, query_id) : NULL;

	if (!q)
		return;
	q->discarded = true;
	q->user = NULL;
}
