/* Faults of device code become errors of the device: an access to a page that nobody has, a division by zero. A fault
 * of anybody else is none of ours. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_emu/emu_asan.h"
#include "tests/cuda_emu/emu_priv.h"

enum { STACK_BYTES = 64 << 10 };

static struct {
	bool installed;
	pthread_t runner; /* the thread that runs blocks */
	struct sigaction before[32];
} faults;

static void on_fault(int number, siginfo_t *info, void *context)
{
	(void)context;
	if (emu_now == NULL || !pthread_equal(pthread_self(), faults.runner)) {
		sigaction(number, &faults.before[number], NULL); /* again, and as it would have been */
		return;
	}
	if (number == SIGFPE)
		emu_trap(cudaErrorLaunchFailure, "?", 0, "a division of integers by zero");
	emu_trap(cudaErrorIllegalAddress, "?", 0,
		 info->si_addr == NULL ? "an access through NULL or one that is misaligned" : "an access to the address %p",
		 info->si_addr);
}

/* AddressSanitizer reports faults itself, with the line. */
void emu_faults_catch(void)
{
#ifndef EMU_ASAN
	static thread_local bool has_stack;
	static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE};
	faults.runner = pthread_self();
	if (!has_stack) {
		stack_t s = {};
		s.ss_sp = malloc(STACK_BYTES); /* for as long as the thread lives */
		s.ss_size = STACK_BYTES;
		has_stack = sigaltstack(&s, NULL) == 0;
	}
	if (faults.installed)
		return;
	faults.installed = true;
	for (int n : numbers) {
		struct sigaction a = {};
		a.sa_sigaction = on_fault;
		a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER; /* the handler is left by switching stacks */
		sigaction(n, &a, &faults.before[n]);
	}
#else
	(void)faults;
	(void)on_fault;
#endif
}
