/* `ninja docs`: writes docs/MESSAGES.md, and between their marks the generated parts of docs/PROTOCOL.md and
 * examples/attach.py. Part of the build, not installed. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/ipc_priv.h"

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	char *text = f ? calloc(1, 1 << 20) : NULL;
	if (text && fread(text, 1, (1 << 20) - 1, f) == 0)
		text[0] = '\0';
	if (f)
		fclose(f);
	return text;
}

/* Replaces what stands between the lines `begin` and `end` of a file. */
static int replace_part(const char *path, const char *begin, const char *end, const char *part)
{
	char *text = read_file(path);
	char *from = text ? strstr(text, begin) : NULL;
	char *to = from ? strstr(from, end) : NULL;
	FILE *f = to ? fopen(path, "wb") : NULL;
	if (!f) {
		fprintf(stderr, "%s: cannot be read or written, or has no lines '%s' and '%s'\n", path, begin, end);
		free(text);
		return 1;
	}
	fwrite(text, 1, (size_t)(from - text) + strlen(begin), f);
	fprintf(f, "\n%s%s", part, to);
	free(text);
	return fclose(f) ? 1 : 0;
}

int main(int argc, char **argv)
{
	char *part = NULL;
	size_t bytes = 0;
	char hash[64];
	if (argc != 4) {
		fprintf(stderr, "usage: print_docs MESSAGES.md PROTOCOL.md attach.py\n");
		return 2;
	}
	FILE *f = fopen(argv[1], "wb");
	if (!f)
		return 1;
	ipc_print_docs(f);
	fclose(f);
	f = open_memstream(&part, &bytes);
	if (!f)
		return 1;
	ipc_print_client_docs(f);
	fclose(f);
	int failed = replace_part(argv[2], "<!-- messages: begin -->", "<!-- messages: end -->", part);
	snprintf(hash, sizeof(hash), "VERSION, SCHEMA_HASH = %d, 0x%016" PRIx64 "\n", IPC_PROTOCOL_VERSION,
		 ipc_schema_hash());
	failed |= replace_part(argv[3], "# version: begin", "# version: end", hash);
	free(part);
	return failed;
}
