/* Messages with random content, made from the schema as data: shared by the tests of ipc/. */
#ifndef TERCET_TESTS_RANDOM_MSG_H
#define TERCET_TESTS_RANDOM_MSG_H

#include <stdlib.h>
#include <string.h>

#include "common/arena.h"
#include "common/step_digest.h"
#include "ipc/ipc_priv.h"

/* splitmix64 */
static inline u64 random_u64(u64 *state)
{
	return step_digest_mix(*state += 0x9e3779b97f4a7c15u);
}

/* Of all magnitudes, so that every integer width of MessagePack comes up; floats are finite. */
static inline void random_element(u64 *state, const struct ipc_field *f, char *to)
{
	u64 bits = random_u64(state) >> (random_u64(state) & 63);
	if (random_u64(state) & 1)
		bits = 0 - bits;
	f32 single = (f32)(i32)bits / 3.0f;
	f64 twice = (f64)(i64)bits / 3.0;
	if (f->type == IPC_FIELD_f32)
		memcpy(to, &single, sizeof(single));
	else if (f->type == IPC_FIELD_f64)
		memcpy(to, &twice, sizeof(twice));
	else
		memcpy(to, &bits, f->bytes);
}

/* Arrays of up to `array_max` elements, a third of them empty; they live in `a`. */
static inline void random_msg(u64 *state, u32 number, u32 array_max, struct arena *a, struct ipc_msg *msg)
{
	const struct ipc_message_info *info = ipc_message_info(number);
	memset(msg, 0, sizeof(*msg));
	msg->type = number;
	msg->sequence = random_u64(state);
	msg->epoch = random_u64(state);
	char *body = ipc_msg_body(msg);
	for (u32 i = 0; i < info->field_count; i++) {
		const struct ipc_field *f = &info->fields[i];
		if (!f->array) {
			random_element(state, f, body + f->offset);
			continue;
		}
		u32 limit = f->max < array_max ? f->max : array_max;
		u32 count = random_u64(state) % 3 ? (u32)(random_u64(state) % (limit + 1)) : 0;
		char *data = count ? arena_alloc(a, (size_t)count * f->bytes) : NULL;
		for (u32 k = 0; k < count; k++)
			random_element(state, f, data + (size_t)k * f->bytes);
		memcpy(body + f->offset, &data, sizeof(data));
		memcpy(body + f->count_offset, &count, sizeof(count));
	}
}

/* NULL when equal, else the name of the first field that differs. */
static inline const char *differing_field(const struct ipc_msg *a, const struct ipc_msg *b)
{
	if (a->type != b->type || a->sequence != b->sequence || a->epoch != b->epoch)
		return "envelope";
	const struct ipc_message_info *info = ipc_message_info(a->type);
	const char *left = ipc_msg_body_const(a);
	const char *right = ipc_msg_body_const(b);
	for (u32 i = 0; i < info->field_count; i++) {
		const struct ipc_field *f = &info->fields[i];
		if (!f->array) {
			if (memcmp(left + f->offset, right + f->offset, f->bytes))
				return f->name;
			continue;
		}
		u32 counts[2];
		const char *data[2];
		memcpy(&counts[0], left + f->count_offset, sizeof(u32));
		memcpy(&counts[1], right + f->count_offset, sizeof(u32));
		memcpy(&data[0], left + f->offset, sizeof(char *));
		memcpy(&data[1], right + f->offset, sizeof(char *));
		if (counts[0] != counts[1])
			return f->name;
		if (counts[0] && memcmp(data[0], data[1], (size_t)counts[0] * f->bytes))
			return f->name;
	}
	return NULL;
}

#endif
