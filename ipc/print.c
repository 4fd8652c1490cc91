/* Messages for people: one line per message, and docs/MESSAGES.md out of the schema. Runs in the tercet command, in
 * tests and wherever a log line needs a message. It must not know the fields of any message. */
#include "ipc/ipc_priv.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

enum { PRINT_ELEMENTS_MAX = 8, PRINT_TEXT_MAX = 48 };

static void print_element(FILE *out, u8 type, const char *at)
{
	switch (type) {
	case IPC_FIELD_u8:
		fprintf(out, "%u", *(const u8 *)at);
		break;
	case IPC_FIELD_u16:
		fprintf(out, "%u", *(const u16 *)at);
		break;
	case IPC_FIELD_u32:
		fprintf(out, "%" PRIu32, *(const u32 *)at);
		break;
	case IPC_FIELD_u64:
		fprintf(out, "%" PRIu64, *(const u64 *)at);
		break;
	case IPC_FIELD_i32:
		fprintf(out, "%" PRId32, *(const i32 *)at);
		break;
	case IPC_FIELD_i64:
		fprintf(out, "%" PRId64, *(const i64 *)at);
		break;
	case IPC_FIELD_f32:
		fprintf(out, "%.9g", (double)*(const f32 *)at);
		break;
	default:
		fprintf(out, "%.17g", *(const f64 *)at);
		break;
	}
}

/* Columns of small numbers are u8 too: they are shown as text only when every byte could be text. */
static bool looks_like_text(const u8 *data, u32 count)
{
	for (u32 i = 0; i < count; i++)
		if (data[i] < 0x20 && data[i] != '\n' && data[i] != '\t' && data[i] != '\r')
			return false;
	return true;
}

static void print_text(FILE *out, const u8 *data, u32 count)
{
	fputc('"', out);
	for (u32 i = 0; i < count; i++) {
		u8 c = data[i];
		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c == '\n')
			fputs("\\n", out);
		else if (c < 0x20 || c == 0x7f)
			fprintf(out, "\\x%02x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}

static void print_array(FILE *out, const struct ipc_field *f, const char *data, u32 count, bool whole)
{
	bool text = f->type == IPC_FIELD_u8 && looks_like_text((const u8 *)data, count);
	u32 limit = text ? PRINT_TEXT_MAX : PRINT_ELEMENTS_MAX;
	u32 shown = whole || count <= limit ? count : limit;
	if (text) {
		print_text(out, (const u8 *)data, shown);
	} else {
		fputc('[', out);
		for (u32 i = 0; i < shown; i++) {
			if (i)
				fputc(',', out);
			print_element(out, f->type, data + (size_t)i * f->bytes);
		}
		fputc(']', out);
	}
	if (shown < count)
		fprintf(out, "+%u", count - shown);
}

void ipc_print(FILE *out, const struct ipc_msg *msg, bool whole)
{
	const struct ipc_message_info *info = ipc_message_info(msg->type);
	fprintf(out, "%s n=%" PRIu64 " epoch=%" PRIu64, ipc_type_name(msg->type), msg->sequence, msg->epoch);
	const char *body = ipc_msg_body_const(msg);
	for (u32 i = 0; info && i < info->field_count; i++) {
		const struct ipc_field *f = &info->fields[i];
		if (!f->array) {
			fprintf(out, " %s=", f->name);
			print_element(out, f->type, body + f->offset);
			continue;
		}
		const char *data;
		u32 count;
		memcpy(&data, body + f->offset, sizeof(data));
		memcpy(&count, body + f->count_offset, sizeof(count));
		if (!count)
			continue; /* empty columns are most of a STEP and say nothing */
		fprintf(out, " %s=", f->name);
		print_array(out, f, data, count, whole);
	}
	fputc('\n', out);
}

/* ---------------------------------------------------------------- documentation */

/* What each message is for: its way, and one or two sentences. */
struct message_doc {
	u32 number;
	bool client; /* clients send or receive it */
	const char *way;
	const char *purpose;
};

static const struct message_doc message_docs[] = {
	{IPC_TYPE_HELLO, true, "both ways on every channel, first",
	 "Names the sender, the protocol version and the hash of this very table. A peer with another version or hash "
	 "is answered with ERROR and ignored. A second HELLO of the same peer begins a new life: sequence numbers "
	 "start again at 1 and whatever was under way has to be said again."},
	{IPC_TYPE_ERROR, true, "receiver -> sender",
	 "Something the peer sent cannot be taken; the text says what and what would be right."},
	{IPC_TYPE_ENGINE, true, "scheduler -> client, on submit, after its HELLO", "Properties of the engine."},
	{IPC_TYPE_SUBMIT, true, "client -> scheduler, on submit",
	 "A request. Answered by ACCEPTED or REFUSED. `tokens` is the prompt and behind it the `output_count` tokens "
	 "that an earlier life of the scheduler already generated. With a `session` the prompt is that conversation's "
	 "history and behind it these tokens. With `beam_width` it is a beam search, whose `answer_count` answers (0: one), "
	 "the best first, are the requests `req_id`, `req_id` + 1, ..."},
	{IPC_TYPE_ACCEPTED, true, "scheduler -> client, on submit",
	 "The request is queued. It ends in exactly one CHUNK entry with a finish that is not 0."},
	{IPC_TYPE_REFUSED, true, "scheduler -> client, on submit",
	 "The request was not taken. `retry_after_ms` 0 means that trying again is of no use."},
	{IPC_TYPE_ABORT, true, "client -> scheduler, on submit", "Ends a request; its last CHUNK entry still comes."},
	{IPC_TYPE_ALIVE, true, "client -> scheduler, on submit",
	 "Renews the lease; sent at least three times per `client_lease_s` of ENGINE."},
	{IPC_TYPE_WORKER_READY, false, "worker -> scheduler, on step", "Loading and profiling are done."},
	{IPC_TYPE_INIT, false, "scheduler -> worker, on step", "Begins an epoch with empty state."},
	{IPC_TYPE_STEP, false, "scheduler -> every worker, on step",
	 "What changed since the step before, and the digest of the state after it."},
	{IPC_TYPE_RESULT, false,
	 "worker rank 0 -> scheduler on step and, the same bytes, -> detokenizer on tokens; kept ones scheduler -> "
	 "detokenizer on streams",
	 "The tokens of a step; of a sequence several behind each other, when some were guessed ahead. `beam_entry` are "
	 "indices of rows that are beams: the detokenizer passes them over and is "
	 "told by the scheduler what became of them, in RESULTs of its own at the end of the search."},
	{IPC_TYPE_OPEN, false, "scheduler -> detokenizer, on streams",
	 "A sequence begins; everything needed to decode and end it. With `confirm` 1 its end is given out only behind a "
	 "CLOSE."},
	{IPC_TYPE_CLOSE, false, "scheduler -> detokenizer, on streams",
	 "A sequence ends for another reason than its tokens; or, with `reason` 0, it has ended by them, and the "
	 "scheduler keeps the session's turn that it is, with `output_count` outputs. If these are more than the detokenizer ends it "
	 "with, another one follows when STOPPED has been read."},
	{IPC_TYPE_STOPPED, false, "detokenizer -> scheduler, on streams",
	 "A stop string ended a sequence; or, where a turn with stop strings was given up (CLOSE with `abort`), so many outputs are all it has. Where sessions are kept, one that comes behind the sequence's end is answered by CLOSE."},
	{IPC_TYPE_ATTACH, true, "client -> detokenizer, on output",
	 "Asks for every chunk behind `last_chunk`. Answered by ATTACHED, the kept chunks, then new ones as they "
	 "come."},
	{IPC_TYPE_ATTACHED, true, "detokenizer -> client, on output", "The next chunk has this number."},
	{IPC_TYPE_ACK, true, "client -> detokenizer, on output", "Chunks up to this one need not be kept."},
	{IPC_TYPE_DETACHED, true, "detokenizer -> client, on output",
	 "The client's output was closed; the text says why."},
	{IPC_TYPE_CHUNK, true, "detokenizer -> client on output, and -> observers on tap",
	 "New tokens and their text."},
	{IPC_TYPE_BYE, true, "client -> scheduler on submit and -> detokenizer on output",
	 "The client leaves; what is unfinished is aborted, what is kept is dropped."},
	{IPC_TYPE_SESSION, true, "client -> scheduler, on submit",
	 "Asks for the state of a session (`action` 0) or ends it (1). Answered by SESSION_STATE."},
	{IPC_TYPE_SESSION_STATE, true, "scheduler -> client, on submit",
	 "The session as it is, or was when it ended; with a `code`, that there is none, and why."},
};

static const struct message_doc *find_doc(u32 number)
{
	for (u32 i = 0; i < COUNT_OF(message_docs); i++)
		if (message_docs[i].number == number)
			return &message_docs[i];
	return NULL;
}

static void print_message_docs(FILE *out, const struct ipc_message_info *info, const char *heading)
{
	const struct message_doc *doc = find_doc(info->number);
	fprintf(out, "\n%s %u %s\n\n", heading, info->number, info->name);
	if (doc)
		fprintf(out, "*%s.* %s\n\n", doc->way, doc->purpose);
	fprintf(out, "| index | field | type | at most |\n| ---: | --- | --- | ---: |\n");
	for (u32 i = 0; i < info->field_count; i++) {
		const struct ipc_field *f = &info->fields[i];
		fprintf(out, "| %u | `%s` | %s%s |", IPC_ENVELOPE_FIELDS + i, f->name, f->type_name,
			f->array ? "[]" : "");
		if (f->array)
			fprintf(out, " %u |\n", f->max);
		else
			fprintf(out, " |\n");
	}
}

void ipc_print_docs(FILE *out)
{
	fprintf(out,
		"# Messages\n\n"
		"Generated from `ipc/schema.h` by `ninja docs`; a test compares. How the messages are used is told in\n"
		"[PROTOCOL.md](PROTOCOL.md).\n\n"
		"Protocol version **%d**, schema hash **0x%016" PRIx64 "**.\n\n"
		"A message is one MessagePack array: its number, the sequence number of the sender towards this peer\n"
		"(1, 2, 3, ...; HELLO is 1), the sender's epoch, then the fields below in this order. Scalars are "
		"MessagePack\n"
		"integers and floats of any width that holds the value; an array is one MessagePack bin of "
		"little-endian\n"
		"elements of its type, or nil when it is empty. \"At most\" counts elements.\n",
		IPC_PROTOCOL_VERSION, ipc_schema_hash());
	for (u32 number = 0; number <= IPC_NUMBER_MAX; number++) {
		const struct ipc_message_info *info = ipc_message_info(number);
		if (info)
			print_message_docs(out, info, "##");
	}
}

void ipc_print_client_docs(FILE *out)
{
	fprintf(out, "Protocol version **%d**, schema hash **0x%016" PRIx64 "**.\n", IPC_PROTOCOL_VERSION,
		ipc_schema_hash());
	for (u32 number = 0; number <= IPC_NUMBER_MAX; number++) {
		const struct message_doc *doc = find_doc(number);
		if (doc && doc->client)
			print_message_docs(out, ipc_message_info(number), "###");
	}
}
