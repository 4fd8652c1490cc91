/* Values of model files in the format of ggml, from outside, as files of a model folder: what is written must be JSON, and what is
 * refused says why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "text/gguf_priv.h"
#include "text/text.h"

static struct json_doc *parsed(const struct buf *text)
{
	struct json_doc *doc = NULL;
	struct err_msg em;
	if (json_parse(&doc, text->data, text->bytes, &em) != ERR_OK)
		abort();
	return doc;
}

static void load(const struct buf *json)
{
	struct tokenizer *t = NULL;
	struct err_msg em = {.text = ""};
	if (tokenizer_parse(&t, json->data, json->bytes, &em) != ERR_OK && em.text[0] == '\0')
		abort();
	tokenizer_free(&t);
}

static void import(const struct gguf *g)
{
	struct buf texts[4] = {{0}};
	struct err_msg em = {.text = ""};
	struct json_doc *config = NULL;
	enum err e = gguf_write_config(&texts[0], g, &em);
	if (e == ERR_OK) {
		struct json_doc *doc = parsed(&texts[0]);
		json_free(&doc);
	} else if (em.text[0] == '\0') {
		abort();
	}
	/* A wrong configuration is no reason not to look at the rest. */
	em.text[0] = '\0';
	e = gguf_write_generation(&texts[1], g, &em);
	if (e == ERR_OK)
		e = gguf_write_tokenizer_config(&texts[2], g, &em);
	if (e == ERR_OK)
		config = parsed(&texts[2]);
	if (e == ERR_OK)
		e = gguf_write_tokenizer(&texts[3], g, json_root(config), &em);
	if (e == ERR_OK)
		load(&texts[3]);
	else if (em.text[0] == '\0')
		abort();
	json_free(&config);
	for (size_t i = 0; i < COUNT_OF(texts); i++)
		buf_fini(&texts[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char path[64];
	struct gguf *g = NULL;
	struct err_msg em;
	int fd = memfd_create("model.gguf", MFD_CLOEXEC);
	if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (gguf_open(&g, path, &em) == ERR_OK)
		import(g);
	gguf_close(&g);
	close(fd);
	return 0;
}
