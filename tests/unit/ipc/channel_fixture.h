/* Channels over real ipc:// sockets in a folder of the test. */
#ifndef TERCET_TESTS_UNIT_IPC_CHANNEL_FIXTURE_H
#define TERCET_TESTS_UNIT_IPC_CHANNEL_FIXTURE_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "ipc/ipc_priv.h"

struct fixture {
	char dir[64];
	struct ipc_context *ctx;
};

/* A context, and a folder of its own for the sockets. */
static inline void fixture_begin(struct fixture *f)
{
	snprintf(f->dir, sizeof(f->dir), "/tmp/tercet_channel_XXXXXX");
	cr_assert_not_null(mkdtemp(f->dir));
	cr_assert_eq(ipc_context_create(&f->ctx, NULL), ERR_OK);
}

static inline void fixture_end(struct fixture *f)
{
	ipc_context_destroy(&f->ctx);
	DIR *d = opendir(f->dir);
	for (struct dirent *entry; d && (entry = readdir(d)) != NULL;) {
		char path[512];
		snprintf(path, sizeof(path), "%s/%s", f->dir, entry->d_name);
		unlink(path);
	}
	closedir(d);
	rmdir(f->dir);
}

/* The side that binds is a scheduler of epoch 5, the other one client 42 in epoch 9. All channels have the same endpoint. */
static inline struct ipc_channel *open_channel(struct fixture *f, enum ipc_pattern pattern, bool bind, u32 queue_max)
{
	static char endpoint[128];
	struct err_msg em = {.text = ""};
	struct ipc_channel *ch = NULL;
	cr_assert_eq(ipc_endpoint(endpoint, sizeof(endpoint), f->dir, "c", &em), ERR_OK);
	struct ipc_channel_config config = {.name = "c", .endpoint = endpoint, .pattern = pattern, .bind = bind,
					    .queue_max = queue_max, .epoch = bind ? 5 : 9,
					    .role = bind ? IPC_ROLE_SCHEDULER : IPC_ROLE_CLIENT, .client_id = 42};
	cr_assert_eq(ipc_channel_open(&ch, f->ctx, &config, &em), ERR_OK, "%s", em.text);
	return ch;
}

/* Polls up to twenty seconds for anything but ERR_AGAIN. */
static inline enum err recv_any(struct ipc_channel *ch, ipc_peer *from, struct ipc_msg *msg, struct err_msg *em)
{
	for (u32 i = 0; i < 20000; i++) {
		enum err e = ipc_recv(ch, from, msg, em);
		if (e != ERR_AGAIN)
			return e;
		usleep(1000);
	}
	return ERR_TIMEOUT;
}

/* The next message; fails the test where it is of another type. */
static inline void expect(struct ipc_channel *ch, u32 type, ipc_peer *from, struct ipc_msg *msg)
{
	struct err_msg em = {.text = ""};
	enum err e = recv_any(ch, from, msg, &em);
	cr_assert_eq(e, ERR_OK, "%s: %s", err_name(e), em.text);
	cr_assert_eq(msg->type, type, "%s", ipc_type_name(msg->type));
}

static inline enum err send_bye(struct ipc_channel *ch, ipc_peer to, u64 id)
{
	struct ipc_msg msg = {.type = IPC_TYPE_BYE, .bye = {id}};
	return ipc_send(ch, to, &msg);
}

#endif
