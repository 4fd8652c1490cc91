/* Turns the message table of schema.h into data: one descriptor per field, from which codec, printer, documentation
 * and tests work. Pure; runs in every process. It must not know any message by name. */
#include "ipc/ipc_priv.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays travel little-endian, as they lie in memory");

/* `self` is a local typedef that names the struct whose members the field macros point into. */
#define FIELD_SCALAR(type_, name_)                                                                           \
	{.name = #name_,                                                                                     \
	 .type_name = #type_,                                                                                \
	 .type = IPC_FIELD_##type_,                                                                          \
	 .bytes = sizeof(type_),                                                                             \
	 .offset = offsetof(self, name_)},
#define FIELD_ARRAY(type_, name_, max_)                                                                      \
	{.name = #name_,                                                                                     \
	 .type_name = #type_,                                                                                \
	 .type = IPC_FIELD_##type_,                                                                          \
	 .bytes = sizeof(type_),                                                                             \
	 .array = true,                                                                                      \
	 .max = (max_),                                                                                      \
	 .offset = offsetof(self, name_),                                                                    \
	 .count_offset = offsetof(self, name_##_count)},
#define INFO_OF(number_, NAME_, name_)                                                                       \
	_Static_assert((number_) > 0 && (number_) <= IPC_NUMBER_MAX, "a message number is one byte");        \
	static const struct ipc_message_info *info_##name_(void)                                             \
	{                                                                                                    \
		typedef struct ipc_##name_ self;                                                             \
		static const struct ipc_field fields[] = {IPC_##NAME_(FIELD_SCALAR, FIELD_ARRAY)};           \
		static const struct ipc_message_info info = {number_, #NAME_, fields, COUNT_OF(fields)};     \
		return &info;                                                                                \
	}
IPC_MESSAGES(INFO_OF)

typedef const struct ipc_message_info *(*info_fn)(void);

const struct ipc_message_info *ipc_message_info(u32 number)
{
	static const info_fn infos[IPC_NUMBER_MAX + 1] = {
#define INFO_ENTRY(number_, NAME_, name_) [number_] = info_##name_,
		IPC_MESSAGES(INFO_ENTRY)
#undef INFO_ENTRY
	};
	return number <= IPC_NUMBER_MAX && infos[number] ? infos[number]() : NULL;
}

const char *ipc_type_name(u32 type)
{
	const struct ipc_message_info *info = ipc_message_info(type);
	return info ? info->name : "unknown";
}

/* XXH3-64 over one line of text per message and per field, so that any change of the table changes it. */
u64 ipc_schema_hash(void)
{
	XXH3_state_t state;
	XXH3_64bits_reset(&state);
	for (u32 number = 0; number <= IPC_NUMBER_MAX; number++) {
		const struct ipc_message_info *info = ipc_message_info(number);
		if (!info)
			continue;
		char line[160];
		int n = snprintf(line, sizeof(line), "%u %s\n", info->number, info->name);
		XXH3_64bits_update(&state, line, (size_t)n);
		for (u32 i = 0; i < info->field_count; i++) {
			const struct ipc_field *f = &info->fields[i];
			n = snprintf(line, sizeof(line), "%s %s %u\n", f->name, f->type_name, f->max);
			XXH3_64bits_update(&state, line, (size_t)n);
		}
	}
	return XXH3_64bits_digest(&state);
}
