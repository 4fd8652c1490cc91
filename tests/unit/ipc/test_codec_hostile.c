/* Frames from outside that are cut, of wrong types, too long, or lie about their lengths. */
#include <criterion/criterion.h>
#include <msgpack.h>

#include "random_msg.h"

/* A copy that ends where the allocation ends, so that a sanitizer sees one byte too much. */
static enum err decode_exact(const char *frame, size_t bytes, struct ipc_scratch *s, struct ipc_msg *out,
			     struct err_msg *em)
{
	char *copy = malloc(bytes ? bytes : 1);
	memcpy(copy, frame, bytes);
	enum err e = ipc_decode(copy, bytes, s, out, em);
	free(copy);
	return e;
}

Test(codec_hostile, every_message_cut_at_every_byte_is_refused)
{
	u64 state = 7;
	struct buf frame = {0};
	struct ipc_scratch scratch = {0};
	struct ipc_msg read;
	for (u32 number = 0; number <= IPC_NUMBER_MAX; number++) {
		if (!ipc_message_info(number))
			continue;
		struct arena a = {0};
		struct ipc_msg msg;
		random_msg(&state, number, 5, &a, &msg);
		buf_clear(&frame);
		ipc_encode(&msg, &frame);
		for (size_t bytes = 0; bytes < frame.bytes; bytes++) {
			struct err_msg em = {.text = ""};
			enum err e = decode_exact(frame.data, bytes, &scratch, &read, &em);
			cr_assert_eq(e, ERR_FORMAT, "%s cut at %zu", ipc_type_name(number), bytes);
			cr_assert_neq(em.text[0], '\0');
		}
		arena_fini(&a);
	}
	buf_fini(&frame);
	ipc_scratch_fini(&scratch);
}

Test(codec_hostile, random_damage_never_crashes)
{
	u64 state = 99;
	struct buf frame = {0};
	struct ipc_scratch scratch = {0};
	struct ipc_msg read;
	u32 accepted = 0;
	u32 refused = 0;
	for (u32 round = 0; round < 20000; round++) {
		struct arena a = {0};
		struct ipc_msg msg;
		u32 number = 1 + (u32)(random_u64(&state) % 21);
		random_msg(&state, number, 6, &a, &msg);
		buf_clear(&frame);
		ipc_encode(&msg, &frame);
		for (u32 k = 0; k < 1 + round % 3; k++)
			frame.data[random_u64(&state) % frame.bytes] = (char)random_u64(&state);
		if (decode_exact(frame.data, frame.bytes, &scratch, &read, NULL) == ERR_OK)
			accepted++;
		else
			refused++;
		arena_fini(&a);
	}
	cr_assert_gt(accepted, 0); /* a changed value is a message too */
	cr_assert_gt(refused, 0);
	buf_fini(&frame);
	ipc_scratch_fini(&scratch);
}

/* Builds frames by hand. */
struct hand {
	msgpack_sbuffer sb;
	msgpack_packer p;
};

static void hand_begin(struct hand *h, u32 fields, u32 number)
{
	msgpack_sbuffer_init(&h->sb);
	msgpack_packer_init(&h->p, &h->sb, msgpack_sbuffer_write);
	msgpack_pack_array(&h->p, fields);
	msgpack_pack_uint32(&h->p, number);
	msgpack_pack_uint64(&h->p, 1);
	msgpack_pack_uint64(&h->p, 1);
}

static enum err hand_end(struct hand *h, struct err_msg *em)
{
	struct ipc_scratch scratch = {0};
	struct ipc_msg read;
	enum err e = decode_exact(h->sb.data, h->sb.size, &scratch, &read, em);
	cr_assert_leq(scratch.capacity, 65536, "a small frame reserved %zu bytes", scratch.capacity);
	ipc_scratch_fini(&scratch);
	msgpack_sbuffer_destroy(&h->sb);
	return e;
}

static void hand_raw(struct hand *h, const char *bytes, size_t count)
{
	msgpack_sbuffer_write(&h->sb, bytes, count);
}

Test(codec_hostile, unknown_numbers_and_counts_are_named)
{
	struct hand h;
	struct err_msg em;
	hand_begin(&h, 4, 77);
	msgpack_pack_nil(&h.p);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "message number 77 is unknown");
	hand_begin(&h, 5, IPC_TYPE_BYE);
	msgpack_pack_uint64(&h.p, 1);
	msgpack_pack_uint64(&h.p, 1);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "BYE: an array of 5, 4 are expected");
	hand_begin(&h, 4, IPC_TYPE_BYE);
	msgpack_pack_uint64(&h.p, 1);
	msgpack_pack_nil(&h.p);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "BYE: 1 bytes behind its last field");
	hand_begin(&h, 4, 300);
	msgpack_pack_uint64(&h.p, 1);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
}

Test(codec_hostile, wrong_types_are_named_with_what_would_be_right)
{
	struct hand h;
	struct err_msg em;
	hand_begin(&h, 4, IPC_TYPE_BYE);
	msgpack_pack_str(&h.p, 1);
	msgpack_pack_str_body(&h.p, "7", 1);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "BYE: field client_id: an integer is expected, a string was sent");
	hand_begin(&h, 4, IPC_TYPE_BYE);
	msgpack_pack_int(&h.p, -5);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "BYE: field client_id: -5 does not fit u64");
	hand_begin(&h, 7, IPC_TYPE_CLOSE);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_uint64(&h.p, 1ull << 32);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_nil(&h.p);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "CLOSE: field reason: 4294967296 does not fit u32");
	hand_begin(&h, 6, IPC_TYPE_INIT);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	hand_begin(&h, 7, IPC_TYPE_CLOSE);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_array(&h.p, 0);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text,
			 "CLOSE: field text: bin (little-endian elements) or nil is expected, an array was sent");
}

Test(codec_hostile, huge_lengths_reserve_nothing)
{
	static const char array32[] = "\xdd\xff\xff\xff\xff";
	static const char bin32[] = "\xc6\xff\xff\xff\xf0";
	static const char array16[] = "\xdc\xff\xff";
	struct ipc_scratch scratch = {0};
	struct ipc_msg read;
	cr_assert_eq(decode_exact(array32, 5, &scratch, &read, NULL), ERR_FORMAT);
	cr_assert_eq(decode_exact(array16, 3, &scratch, &read, NULL), ERR_FORMAT);
	cr_assert_eq(scratch.capacity, 0);
	struct hand h;
	struct err_msg em;
	hand_begin(&h, 7, IPC_TYPE_CLOSE);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_int(&h.p, 1);
	hand_raw(&h, bin32, 5);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "CLOSE: field text: bin of 4294967280 bytes, but 0 are left in the frame");
}

Test(codec_hostile, bins_that_are_too_long_or_broken_elements_are_refused)
{
	struct hand h;
	struct err_msg em;
	static const char zeros[4096];
	hand_begin(&h, 7, IPC_TYPE_CLOSE);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_bin(&h.p, IPC_ERROR_TEXT_MAX + 1);
	msgpack_pack_bin_body(&h.p, zeros, IPC_ERROR_TEXT_MAX + 1);
	cr_assert_eq(hand_end(&h, &em), ERR_TOO_LONG);
	cr_assert_str_eq(em.text, "CLOSE: field text: 1025 elements, at most 1024 are allowed");
	hand_begin(&h, 8, IPC_TYPE_ATTACH);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_int(&h.p, 1);
	msgpack_pack_bin(&h.p, 12);
	msgpack_pack_bin_body(&h.p, zeros, 12);
	msgpack_pack_nil(&h.p);
	msgpack_pack_nil(&h.p);
	cr_assert_eq(hand_end(&h, &em), ERR_FORMAT);
	cr_assert_str_eq(em.text, "ATTACH: field live_req_id: 12 bytes are no whole number of u64");
}

Test(codec_hostile, numbers_of_any_width_are_taken_where_they_fit)
{
	struct hand h;
	hand_begin(&h, 4, IPC_TYPE_BYE);
	hand_raw(&h, "\xd3\x00\x00\x00\x00\x00\x00\x00\x05", 9); /* int64 5 for a u64 */
	cr_assert_eq(hand_end(&h, NULL), ERR_OK);
	hand_begin(&h, 4, IPC_TYPE_BYE);
	hand_raw(&h, "\xd1\xff\xff", 3); /* int16 -1 */
	cr_assert_eq(hand_end(&h, NULL), ERR_FORMAT);
	hand_begin(&h, 4, IPC_TYPE_BYE);
	hand_raw(&h, "\xc1", 1);
	cr_assert_eq(hand_end(&h, NULL), ERR_FORMAT);
}

Test(codec_hostile, a_float_field_takes_doubles_and_whole_numbers)
{
	struct buf frame = {0};
	struct ipc_scratch scratch = {0};
	struct ipc_msg msg = {.type = IPC_TYPE_SUBMIT, .submit = {.temperature = 0.5f}};
	struct ipc_msg read;
	ipc_encode(&msg, &frame);
	char *at = memmem(frame.data, frame.bytes, "\xca\x3f\x00\x00\x00", 5);
	cr_assert_not_null(at);
	struct buf changed = {0};
	buf_append(&changed, frame.data, (size_t)(at - frame.data));
	buf_append(&changed, "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", 9); /* 1.5 */
	buf_append(&changed, at + 5, frame.bytes - (size_t)(at + 5 - frame.data));
	cr_assert_eq(ipc_decode(changed.data, changed.bytes, &scratch, &read, NULL), ERR_OK);
	cr_assert_float_eq(read.submit.temperature, 1.5f, 0);
	buf_clear(&changed);
	buf_append(&changed, frame.data, (size_t)(at - frame.data));
	buf_append(&changed, "\xff", 1); /* -1 */
	buf_append(&changed, at + 5, frame.bytes - (size_t)(at + 5 - frame.data));
	cr_assert_eq(ipc_decode(changed.data, changed.bytes, &scratch, &read, NULL), ERR_OK);
	cr_assert_float_eq(read.submit.temperature, -1.0f, 0);
	buf_fini(&frame);
	buf_fini(&changed);
	ipc_scratch_fini(&scratch);
}
