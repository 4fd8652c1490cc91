/* Streams one completion from a running engine:  stream RUN_DIR MODEL_DIR "Once upon a time"
 * Build:  cc stream.c -o stream $(pkg-config --cflags --libs tercet) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tercet.h>

static struct tercet_error error;

static void check(enum tercet_result result)
{
	if (result == TERCET_OK)
		return;
	fprintf(stderr, "stream: %s\n", error.text);
	exit(1);
}

int main(int argc, char **argv)
{
	struct tercet *engine;
	struct tercet_tokenizer *tokenizer;
	struct tercet_request request;
	struct tercet_event event;
	if (argc != 4) {
		fprintf(stderr, "usage: stream RUN_DIR MODEL_DIR PROMPT\n");
		return 2;
	}
	check(tercet_tokenizer_open(&tokenizer, argv[2], &error));
	check(tercet_open(&engine, &(struct tercet_config){.run_dir = argv[1], .name = "stream"}, &error));
	check(tercet_wait_ready(engine, 60000, &error));

	tercet_request_init(&request);
	check(tercet_tokenize(tokenizer, argv[3], strlen(argv[3]), true, &request.tokens, &request.token_count,
			      &error));
	request.params.temperature = 0;
	request.params.max_tokens = 100;
	check(tercet_submit(engine, &request, NULL, &error));
	do {
		if (tercet_wait(engine, -1, &event) != TERCET_OK)
			return 1;
		fwrite(event.text, 1, event.text_bytes, stdout);
		fflush(stdout);
		if (event.type == TERCET_EVENT_REFUSED || event.finish == TERCET_FINISH_ERROR)
			fprintf(stderr, "stream: %s\n", event.error_text);
	} while (!tercet_event_is_last(&event));
	printf("\n[%s after %u tokens]\n", tercet_finish_name(event.finish), event.first_token + event.token_count);

	tercet_close(&engine);
	tercet_tokenizer_close(&tokenizer);
	return event.type == TERCET_EVENT_REFUSED || event.finish == TERCET_FINISH_ERROR;
}
