/* Writes docs/MESSAGES.md to the standard output: `ninja docs`. Part of the build, not installed. */
#include "ipc/ipc.h"

int main(void)
{
	ipc_print_docs(stdout);
	return fflush(stdout) ? 1 : 0;
}
