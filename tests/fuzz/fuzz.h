/* The entry point of a fuzz target. With clang and -Dfuzzers=true libFuzzer calls it; in every build replay.c runs it
 * over the committed corpus. */
#ifndef TERCET_TESTS_FUZZ_H
#define TERCET_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
