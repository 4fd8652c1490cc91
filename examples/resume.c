/* A client that goes away in the middle and comes back: the text ends the same.
 *   resume RUN_DIR MODEL_DIR "Once upon a time" CHUNKS
 * After CHUNKS chunks the handle is left without a good-bye, as in a crash; a new one takes the request up behind the
 * last chunk. Build:  cc resume.c -o resume $(pkg-config --cflags --libs tercet) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tercet.h>

static struct tercet_error error;

static void check(enum tercet_result result)
{
	if (result == TERCET_OK)
		return;
	fprintf(stderr, "resume: %s\n", error.text);
	exit(1);
}

int main(int argc, char **argv)
{
	struct tercet *engine;
	struct tercet_tokenizer *tokenizer;
	struct tercet_request request;
	struct tercet_event event;
	uint64_t req_id;
	if (argc != 5) {
		fprintf(stderr, "usage: resume RUN_DIR MODEL_DIR PROMPT CHUNKS\n");
		return 2;
	}
	uint64_t leave_after = strtoull(argv[4], NULL, 10);
	struct tercet_config config = {.run_dir = argv[1], .name = "resume"};
	check(tercet_tokenizer_open(&tokenizer, argv[2], &error));
	check(tercet_open(&engine, &config, &error));
	check(tercet_wait_ready(engine, 60000, &error));

	tercet_request_init(&request);
	check(tercet_tokenize(tokenizer, argv[3], strlen(argv[3]), true, &request.tokens, &request.token_count,
			      &error));
	request.params.temperature = 0;
	request.params.max_tokens = 100;
	check(tercet_submit(engine, &request, &req_id, &error));

	uint32_t tokens = 0, text_bytes = 0; /* what a program that wants to survive a crash would write down */
	do {
		if (tercet_wait(engine, -1, &event) != TERCET_OK)
			return 1;
		fwrite(event.text, 1, event.text_bytes, stdout);
		fflush(stdout);
		tokens += event.token_count;
		text_bytes += event.text_bytes;
		if (event.type != TERCET_EVENT_OUTPUT || event.finish || event.chunk != leave_after)
			continue;
		config.client_id = tercet_client_id(engine);
		config.last_chunk = event.chunk;
		tercet_leave(&engine);
		fprintf(stderr, "[left after chunk %llu]", (unsigned long long)config.last_chunk);
		check(tercet_open(&engine, &config, &error));
		check(tercet_adopt(engine, req_id, tokens, text_bytes, NULL));
		leave_after = 0;
	} while (!tercet_event_is_last(&event));
	printf("\n[%s after %u tokens]\n", tercet_finish_name(event.finish), tokens);

	tercet_close(&engine);
	tercet_tokenizer_close(&tokenizer);
	return event.type == TERCET_EVENT_REFUSED || event.finish == TERCET_FINISH_ERROR;
}
