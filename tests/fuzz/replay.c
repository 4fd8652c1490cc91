/* Runs a fuzz target once over every file of its corpus directory: `replay DIR`. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"

static int replay_file(const char *path)
{
	static uint8_t data[1 << 20];
	FILE *f = fopen(path, "rb");
	if (!f)
		return -1;
	size_t bytes = fread(data, 1, sizeof(data), f);
	fclose(f);
	uint8_t *exact = malloc(bytes ? bytes : 1); /* ends where its allocation ends, for the sanitizers */
	for (size_t i = 0; i < bytes; i++)
		exact[i] = data[i];
	LLVMFuzzerTestOneInput(exact, bytes);
	free(exact);
	return 0;
}

int main(int argc, char **argv)
{
	DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
	if (!dir) {
		fprintf(stderr, "usage: replay CORPUS_DIRECTORY\n");
		return 2;
	}
	unsigned count = 0;
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		char path[4096];
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
		if (replay_file(path)) {
			fprintf(stderr, "cannot read %s\n", path);
			return 1;
		}
		count++;
	}
	closedir(dir);
	printf("%u inputs\n", count);
	return count ? 0 : 1;
}
