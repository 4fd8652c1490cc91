/* MessagePack encoding and strict decoding of every message, driven by the field descriptors of schema.c. Pure; runs
 * in every process. The reader is our own and takes exactly the one shape a message may have: lengths are held against
 * the bytes that are there before anything is reserved, so a hostile header costs nothing. It must never allocate once
 * the scratch has reached its steady size. */
#include "ipc/ipc_priv.h"

#include <msgpack.h>

#include <stdlib.h>
#include <string.h>

#include "common/assert.h"

/* Every decoded array begins on such a boundary. */
enum { ARRAY_ALIGN = 8 };

/* ---------------------------------------------------------------- encoding */

static int append_packed(void *data, const char *bytes, size_t count)
{
	buf_append(data, bytes, count);
	return 0;
}

static void encode_scalar(msgpack_packer *p, const struct ipc_field *f, const char *at)
{
	switch (f->type) {
	case IPC_FIELD_u8:
		msgpack_pack_uint8(p, *(const u8 *)at);
		break;
	case IPC_FIELD_u16:
		msgpack_pack_uint16(p, *(const u16 *)at);
		break;
	case IPC_FIELD_u32:
		msgpack_pack_uint32(p, *(const u32 *)at);
		break;
	case IPC_FIELD_u64:
		msgpack_pack_uint64(p, *(const u64 *)at);
		break;
	case IPC_FIELD_i32:
		msgpack_pack_int32(p, *(const i32 *)at);
		break;
	case IPC_FIELD_i64:
		msgpack_pack_int64(p, *(const i64 *)at);
		break;
	case IPC_FIELD_f32:
		msgpack_pack_float(p, *(const f32 *)at);
		break;
	case IPC_FIELD_f64:
		msgpack_pack_double(p, *(const f64 *)at);
		break;
	default:
		ASSERT(false);
	}
}

static void encode_array(msgpack_packer *p, const struct ipc_field *f, const char *data, u32 count)
{
	ASSERT(count <= f->max);
	if (!count) {
		msgpack_pack_nil(p);
		return;
	}
	ASSERT(data);
	msgpack_pack_bin(p, (size_t)count * f->bytes);
	msgpack_pack_bin_body(p, data, (size_t)count * f->bytes);
}

void ipc_encode(const struct ipc_msg *msg, struct buf *out)
{
	const struct ipc_message_info *info = ipc_message_info(msg->type);
	ASSERT(info);
	msgpack_packer p;
	msgpack_packer_init(&p, out, append_packed);
	msgpack_pack_array(&p, IPC_ENVELOPE_FIELDS + info->field_count);
	msgpack_pack_uint8(&p, (u8)msg->type);
	msgpack_pack_fix_uint64(&p, msg->sequence);
	msgpack_pack_fix_uint64(&p, msg->epoch);
	const char *body = ipc_msg_body_const(msg);
	for (u32 i = 0; i < info->field_count; i++) {
		const struct ipc_field *f = &info->fields[i];
		if (!f->array) {
			encode_scalar(&p, f, body + f->offset);
			continue;
		}
		const char *data;
		u32 count;
		memcpy(&data, body + f->offset, sizeof(data));
		memcpy(&count, body + f->count_offset, sizeof(count));
		encode_array(&p, f, data, count);
	}
}

/* Sequence and epoch are the fixed-width numbers 0 and 1 behind the array header (1 or 3 bytes) and the number (1). */
static void patch_u64(char *frame, size_t bytes, u32 index, u64 value)
{
	ASSERT(bytes >= 1);
	size_t at = (((u8)frame[0] & 0xf0) == 0x90 ? 2 : 4) + 9 * (size_t)index;
	ASSERT(bytes >= at + 9 && (u8)frame[at] == 0xcf);
	for (int i = 0; i < 8; i++)
		frame[at + 1 + i] = (char)(value >> (56 - 8 * i));
}

void ipc_patch_sequence(char *frame, size_t bytes, u64 sequence)
{
	patch_u64(frame, bytes, 0, sequence);
}

void ipc_patch_epoch(char *frame, size_t bytes, u64 epoch)
{
	patch_u64(frame, bytes, 1, epoch);
}

/* ---------------------------------------------------------------- reading MessagePack */

struct reader {
	const u8 *at;
	const u8 *end;
	const char *message; /* for error texts */
	const char *field;
	struct err_msg *em;
};

#define READER_FAIL(r, e, fmt, ...)                                                                          \
	err_set((r)->em, e, "%s: field %s: " fmt, (r)->message, (r)->field, __VA_ARGS__)

static const char *kind_name(u8 head)
{
	if (head <= 0x7f || head >= 0xe0 || (head >= 0xcc && head <= 0xd3))
		return "an integer";
	if (head <= 0x8f || head == 0xde || head == 0xdf)
		return "a map";
	if (head <= 0x9f || head == 0xdc || head == 0xdd)
		return "an array";
	if (head <= 0xbf || (head >= 0xd9 && head <= 0xdb))
		return "a string";
	if (head == 0xc0)
		return "nil";
	if (head == 0xc2 || head == 0xc3)
		return "a boolean";
	if (head >= 0xc4 && head <= 0xc6)
		return "bin";
	if (head == 0xca || head == 0xcb)
		return "a float";
	return head == 0xc1 ? "the unused byte 0xc1" : "an extension type";
}

static enum err fail_ended(struct reader *r)
{
	return READER_FAIL(r, ERR_FORMAT, "the frame ends inside it (%zu bytes left)", (size_t)(r->end - r->at));
}

/* A big-endian number of `count` bytes behind a head byte. */
static bool take_be(struct reader *r, u32 count, u64 *out)
{
	if ((size_t)(r->end - r->at) < 1 + (size_t)count)
		return false;
	u64 v = 0;
	for (u32 i = 0; i < count; i++)
		v = v << 8 | r->at[1 + i];
	r->at += 1 + count;
	*out = v;
	return true;
}

/* An integer in any width: `*out` is its value, in two's complement when `*negative`. */
static enum err take_integer(struct reader *r, u64 *out, bool *negative)
{
	if (r->at == r->end)
		return fail_ended(r);
	u8 head = *r->at;
	*negative = false;
	if (head <= 0x7f || head >= 0xe0) {
		*negative = head >= 0xe0;
		*out = (u64)(i64)(int8_t)head;
		r->at++;
		return ERR_OK;
	}
	if (head >= 0xcc && head <= 0xcf)
		return take_be(r, 1u << (head - 0xcc), out) ? ERR_OK : fail_ended(r);
	if (head < 0xd0 || head > 0xd3)
		return READER_FAIL(r, ERR_FORMAT, "an integer is expected, %s was sent", kind_name(head));
	u32 width = 1u << (head - 0xd0);
	if (!take_be(r, width, out))
		return fail_ended(r);
	u32 shift = 64 - 8 * width;
	*out = (u64)((i64)(*out << shift) >> shift);
	*negative = (i64)*out < 0;
	return ERR_OK;
}

static enum err take_float(struct reader *r, f64 *out)
{
	if (r->at == r->end)
		return fail_ended(r);
	u64 bits;
	if (*r->at == 0xca) {
		if (!take_be(r, 4, &bits))
			return fail_ended(r);
		u32 low = (u32)bits;
		f32 value;
		memcpy(&value, &low, sizeof(value));
		*out = value;
		return ERR_OK;
	}
	if (*r->at == 0xcb) {
		if (!take_be(r, 8, &bits))
			return fail_ended(r);
		memcpy(out, &bits, sizeof(*out));
		return ERR_OK;
	}
	/* Languages without a separate float literal send whole numbers as integers. */
	bool negative;
	enum err e = take_integer(r, &bits, &negative);
	if (e == ERR_OK)
		*out = negative ? (f64)(i64)bits : (f64)bits;
	return e;
}

/* A bin of any length class, or nil for none. */
static enum err take_bin(struct reader *r, const u8 **data, size_t *bytes)
{
	if (r->at == r->end)
		return fail_ended(r);
	u8 head = *r->at;
	*bytes = 0;
	*data = NULL;
	if (head == 0xc0) {
		r->at++;
		return ERR_OK;
	}
	if (head < 0xc4 || head > 0xc6)
		return READER_FAIL(r, ERR_FORMAT, "bin (little-endian elements) or nil is expected, %s was sent",
				   kind_name(head));
	u64 length;
	if (!take_be(r, 1u << (head - 0xc4), &length))
		return fail_ended(r);
	if (length > (size_t)(r->end - r->at))
		return READER_FAIL(r, ERR_FORMAT, "bin of %zu bytes, but %zu are left in the frame", (size_t)length,
				   (size_t)(r->end - r->at));
	*data = r->at;
	*bytes = (size_t)length;
	r->at += length;
	return ERR_OK;
}

static enum err take_array_header(struct reader *r, u32 *count)
{
	u64 n = 0;
	if (r->at == r->end)
		return err_set(r->em, ERR_FORMAT, "an empty frame is no message");
	if ((*r->at & 0xf0) == 0x90) {
		n = *r->at & 0x0f;
		r->at++;
	} else if (*r->at != 0xdc && *r->at != 0xdd) {
		return err_set(r->em, ERR_FORMAT, "a message is a MessagePack array, %s was sent", kind_name(*r->at));
	} else if (!take_be(r, *r->at == 0xdc ? 2 : 4, &n)) {
		return err_set(r->em, ERR_FORMAT, "the frame ends inside the array header");
	}
	*count = (u32)n;
	return ERR_OK;
}

/* ---------------------------------------------------------------- decoding */

static enum err decode_unsigned(struct reader *r, const struct ipc_field *f, char *to)
{
	u64 v;
	bool negative;
	enum err e = take_integer(r, &v, &negative);
	if (e != ERR_OK)
		return e;
	if (negative || (f->bytes < 8 && v >> (8 * f->bytes)))
		return READER_FAIL(r, ERR_FORMAT, "%s%llu does not fit %s", negative ? "-" : "",
				   (unsigned long long)(negative ? 0 - v : v), f->type_name);
	memcpy(to, &v, f->bytes); /* little-endian: the low bytes come first */
	return ERR_OK;
}

static enum err decode_signed(struct reader *r, const struct ipc_field *f, char *to)
{
	u64 v;
	bool negative;
	enum err e = take_integer(r, &v, &negative);
	if (e != ERR_OK)
		return e;
	i64 value = (i64)v;
	i64 max = f->bytes == 8 ? INT64_MAX : ((i64)1 << (8 * f->bytes - 1)) - 1;
	bool fits = negative ? value >= -max - 1 : v <= (u64)max;
	if (!fits)
		return READER_FAIL(r, ERR_FORMAT, "%s%llu does not fit %s", negative ? "-" : "",
				   (unsigned long long)(negative ? 0 - v : v), f->type_name);
	memcpy(to, &value, f->bytes);
	return ERR_OK;
}

static enum err decode_scalar(struct reader *r, const struct ipc_field *f, char *to)
{
	f64 value;
	enum err e;
	switch (f->type) {
	case IPC_FIELD_i32:
	case IPC_FIELD_i64:
		return decode_signed(r, f, to);
	case IPC_FIELD_f32:
		e = take_float(r, &value);
		*(f32 *)to = e == ERR_OK ? (f32)value : 0;
		return e;
	case IPC_FIELD_f64:
		e = take_float(r, &value);
		*(f64 *)to = e == ERR_OK ? value : 0;
		return e;
	default:
		return decode_unsigned(r, f, to);
	}
}

/* Copies the elements to `*store`, which has room for them (see reserve_scratch), and moves it on. */
static enum err decode_array(struct reader *r, const struct ipc_field *f, char *body, char **store)
{
	const u8 *data = NULL;
	size_t bytes = 0;
	enum err e = take_bin(r, &data, &bytes);
	if (e != ERR_OK)
		return e;
	if (bytes % f->bytes)
		return READER_FAIL(r, ERR_FORMAT, "%zu bytes are no whole number of %s", bytes, f->type_name);
	size_t count = bytes / f->bytes;
	if (count > f->max)
		return READER_FAIL(r, ERR_TOO_LONG, "%zu elements, at most %u are allowed", count, f->max);
	u32 count32 = (u32)count;
	memcpy(body + f->count_offset, &count32, sizeof(count32));
	char *elements = count ? *store : NULL;
	memcpy(body + f->offset, &elements, sizeof(elements));
	if (count) {
		memcpy(elements, data, bytes);
		*store += (bytes + ARRAY_ALIGN - 1) & ~(size_t)(ARRAY_ALIGN - 1);
	}
	return ERR_OK;
}

/* Arrays of a frame cannot hold more bytes than the frame, plus what alignment adds to each. */
static enum err reserve_scratch(struct ipc_scratch *s, size_t frame_bytes, u32 fields, struct err_msg *em)
{
	size_t need = frame_bytes + (size_t)fields * ARRAY_ALIGN;
	if (need <= s->capacity)
		return ERR_OK;
	size_t capacity = s->capacity ? s->capacity : 4096;
	while (capacity < need)
		capacity *= 2;
	char *data = aligned_alloc(64, capacity);
	if (!data)
		return err_set(em, ERR_NO_MEMORY, "no memory to decode a frame of %zu bytes", frame_bytes);
	free(s->data);
	s->data = data;
	s->capacity = capacity;
	return ERR_OK;
}

void ipc_scratch_fini(struct ipc_scratch *s)
{
	free(s->data);
	*s = (struct ipc_scratch){0};
}

static enum err decode_envelope(struct reader *r, u32 *field_count, u32 *type, u64 *sequence, u64 *epoch)
{
	enum err e = take_array_header(r, field_count);
	if (e != ERR_OK)
		return e;
	if (*field_count < IPC_ENVELOPE_FIELDS)
		return err_set(r->em, ERR_FORMAT, "a message of %u fields, at least %d are needed", *field_count,
			       IPC_ENVELOPE_FIELDS);
	u64 number;
	bool negative[3];
	r->message = "message";
	r->field = "number";
	e = take_integer(r, &number, &negative[0]);
	if (e != ERR_OK)
		return e;
	if (negative[0] || number > IPC_NUMBER_MAX)
		return READER_FAIL(r, ERR_FORMAT, "out of the range 1 .. %d", IPC_NUMBER_MAX);
	*type = (u32)number;
	r->message = ipc_type_name(*type);
	r->field = "sequence";
	e = take_integer(r, sequence, &negative[1]);
	if (e != ERR_OK)
		return e;
	r->field = "epoch";
	e = take_integer(r, epoch, &negative[2]);
	if (e == ERR_OK && (negative[1] || negative[2]))
		return err_set(r->em, ERR_FORMAT, "%s: sequence and epoch must not be negative", r->message);
	return e;
}

enum err ipc_decode(const char *frame, size_t bytes, struct ipc_scratch *s, struct ipc_msg *out, struct err_msg *em)
{
	struct reader r = {.at = (const u8 *)frame, .end = (const u8 *)frame + bytes, .em = em};
	u32 fields = 0;
	enum err e = decode_envelope(&r, &fields, &out->type, &out->sequence, &out->epoch);
	if (e != ERR_OK)
		return e;
	const struct ipc_message_info *info = ipc_message_info(out->type);
	if (!info)
		return err_set(em, ERR_FORMAT, "message number %u is unknown", out->type);
	if (fields != IPC_ENVELOPE_FIELDS + info->field_count)
		return err_set(em, ERR_FORMAT, "%s: an array of %u, %u are expected", info->name, fields,
			       IPC_ENVELOPE_FIELDS + info->field_count);
	e = reserve_scratch(s, bytes, info->field_count, em);
	if (e != ERR_OK)
		return e;
	char *store = s->data;
	char *body = ipc_msg_body(out);
	for (u32 i = 0; i < info->field_count && e == ERR_OK; i++) {
		const struct ipc_field *f = &info->fields[i];
		r.field = f->name;
		e = f->array ? decode_array(&r, f, body, &store) : decode_scalar(&r, f, body + f->offset);
	}
	if (e == ERR_OK && r.at != r.end)
		return err_set(em, ERR_FORMAT, "%s: %zu bytes behind its last field", info->name,
			       (size_t)(r.end - r.at));
	return e;
}

enum err ipc_peek(const char *frame, size_t bytes, struct ipc_envelope *out, struct err_msg *em)
{
	struct reader r = {.at = (const u8 *)frame, .end = (const u8 *)frame + bytes, .em = em};
	*out = (struct ipc_envelope){0};
	u32 fields = 0;
	enum err e = decode_envelope(&r, &fields, &out->type, &out->sequence, &out->epoch);
	if (e != ERR_OK || out->type != IPC_TYPE_HELLO)
		return e;
	u64 version;
	bool negative;
	r.field = "version";
	e = take_integer(&r, &version, &negative);
	if (e != ERR_OK)
		return e;
	out->version = version > UINT32_MAX ? UINT32_MAX : (u32)version;
	r.field = "schema_hash";
	return take_integer(&r, &out->schema_hash, &negative);
}
