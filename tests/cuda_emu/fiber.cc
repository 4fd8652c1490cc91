/* Fibers: stacks that device threads run on, and the switch between them. A stack is used again by the next thread
 * as soon as one ends, so a kernel without barriers runs all its threads on one. AddressSanitizer is told of every
 * switch. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda_emu/emu_priv.h"

#ifdef EMU_ASAN
enum { STACK_BYTES = 256 << 10 }; /* frames with red zones */
#else
enum { STACK_BYTES = 64 << 10 };
#endif

enum { FIBERS_MAX = 2 * 1024 + 1 };

/* Stacks are pages apart: without this the frames of all lanes of a warp would share a few sets of the first cache. */
enum { COLOURS = 32, COLOUR_BYTES = 128 };

static struct {
	char *memory;
	size_t memory_bytes;
	struct emu_fiber fiber[FIBERS_MAX], host;
	struct emu_fiber *idle[FIBERS_MAX]; /* given back; the last one first, its stack is in the cache */
	u32 idle_count, made;
	emu_fiber_fn fn;
	struct emu_fiber *from; /* who switched, for AddressSanitizer */
} fibers;

#if defined(EMU_OWN_SWITCH) && defined(__x86_64__)
enum { SAVED_WORDS = 6, RETURN_WORD = 6 };
asm(".text\n"
    ".p2align 4\n"
    ".globl emu_switch\n"
    ".hidden emu_switch\n"
    ".type emu_switch, @function\n"
    "emu_switch:\n"
    "	push %rbp\n"
    "	push %rbx\n"
    "	push %r12\n"
    "	push %r13\n"
    "	push %r14\n"
    "	push %r15\n"
    "	mov %rsp, (%rdi)\n"
    "	mov %rsi, %rsp\n"
    "	pop %r15\n"
    "	pop %r14\n"
    "	pop %r13\n"
    "	pop %r12\n"
    "	pop %rbx\n"
    "	pop %rbp\n"
    "	ret\n"
    ".size emu_switch, .-emu_switch\n");
#elif defined(EMU_OWN_SWITCH)
enum { SAVED_WORDS = 20, RETURN_WORD = 11 };
asm(".text\n"
    ".p2align 4\n"
    ".globl emu_switch\n"
    ".hidden emu_switch\n"
    ".type emu_switch, %function\n"
    "emu_switch:\n"
    "	sub sp, sp, #160\n"
    "	stp x19, x20, [sp, #0]\n"
    "	stp x21, x22, [sp, #16]\n"
    "	stp x23, x24, [sp, #32]\n"
    "	stp x25, x26, [sp, #48]\n"
    "	stp x27, x28, [sp, #64]\n"
    "	stp x29, x30, [sp, #80]\n"
    "	stp d8, d9, [sp, #96]\n"
    "	stp d10, d11, [sp, #112]\n"
    "	stp d12, d13, [sp, #128]\n"
    "	stp d14, d15, [sp, #144]\n"
    "	mov x9, sp\n"
    "	str x9, [x0]\n"
    "	mov sp, x1\n"
    "	ldp x19, x20, [sp, #0]\n"
    "	ldp x21, x22, [sp, #16]\n"
    "	ldp x23, x24, [sp, #32]\n"
    "	ldp x25, x26, [sp, #48]\n"
    "	ldp x27, x28, [sp, #64]\n"
    "	ldp x29, x30, [sp, #80]\n"
    "	ldp d8, d9, [sp, #96]\n"
    "	ldp d10, d11, [sp, #112]\n"
    "	ldp d12, d13, [sp, #128]\n"
    "	ldp d14, d15, [sp, #144]\n"
    "	add sp, sp, #160\n"
    "	ret\n"
    ".size emu_switch, .-emu_switch\n");
#endif

/* The first thing that runs on a stack. */
static void enter(void)
{
#ifdef EMU_ASAN
	const void *bottom;
	size_t bytes;
	__sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
	if (fibers.from == &fibers.host && fibers.host.bottom == NULL) {
		fibers.host.bottom = bottom;
		fibers.host.stack_bytes = bytes;
	}
#endif
	fibers.fn();
	abort();
}

static void prepare(struct emu_fiber *f)
{
#ifdef EMU_OWN_SWITCH
	/* Above the saved words: where enter would return to (nowhere), on a stack aligned as after a call. */
	const size_t colour = (size_t)(f - fibers.fiber) % COLOURS * COLOUR_BYTES;
	void **top = reinterpret_cast<void **>(f->stack + f->stack_bytes - colour) - 8;
	memset(top, 0, 8 * sizeof(void *));
#ifdef __x86_64__
	top -= 1;
	*top = NULL;
#endif
	void **frame = top - (SAVED_WORDS > RETURN_WORD ? SAVED_WORDS : RETURN_WORD + 1);
	memset(frame, 0, (size_t)((char *)top - (char *)frame));
	frame[RETURN_WORD] = reinterpret_cast<void *>(enter);
	f->sp = frame;
#else
	getcontext(&f->context);
	f->context.uc_stack.ss_sp = f->stack;
	f->context.uc_stack.ss_size = f->stack_bytes;
	f->context.uc_link = NULL;
	makecontext(&f->context, enter, 0);
#endif
	f->fake_stack = NULL;
}

/* A stack and the page below it that nobody may touch. */
static size_t stack_step(void)
{
	return STACK_BYTES + (size_t)sysconf(_SC_PAGESIZE);
}

static void map_stacks(void)
{
	void *m = mmap(NULL, stack_step() * FIBERS_MAX, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED) {
		fprintf(stderr, "cuda_emu: no memory for the stacks of device threads: %s\n", strerror(errno));
		abort();
	}
	fibers.memory = static_cast<char *>(m);
	fibers.memory_bytes = stack_step() * FIBERS_MAX;
}

struct emu_fiber *emu_fiber_take(emu_fiber_fn fn)
{
	struct emu_fiber *f;
	fibers.fn = fn;
	if (fibers.idle_count > 0)
		return fibers.idle[--fibers.idle_count];
	if (fibers.memory == NULL)
		map_stacks();
	if (fibers.made == FIBERS_MAX) {
		fprintf(stderr, "cuda_emu: more than %d device threads at once\n", FIBERS_MAX);
		abort();
	}
	f = &fibers.fiber[fibers.made];
	if (f->stack == NULL) {
		f->stack = fibers.memory + (fibers.made + 1) * stack_step() - STACK_BYTES;
		f->stack_bytes = STACK_BYTES;
		if (mprotect(f->stack, STACK_BYTES, PROT_READ | PROT_WRITE) != 0) {
			fprintf(stderr, "cuda_emu: no memory for a stack: %s\n", strerror(errno));
			abort();
		}
	}
	fibers.made++;
	prepare(f);
	return f;
}

void emu_fiber_give(struct emu_fiber *f)
{
	fibers.idle[fibers.idle_count++] = f;
}

struct emu_fiber *emu_fiber_host(void)
{
	return &fibers.host;
}

bool emu_fiber_is_stack(const void *p)
{
	return (size_t)(static_cast<const char *>(p) - fibers.memory) < fibers.memory_bytes;
}

void emu_fiber_reset(void)
{
	for (u32 i = 0; i < fibers.made; i++) {
#ifdef EMU_ASAN
		__asan_unpoison_memory_region(fibers.fiber[i].stack, fibers.fiber[i].stack_bytes);
#endif
		fibers.fiber[i].fake_stack = NULL;
	}
	fibers.made = 0; /* each is prepared anew when it is taken */
	fibers.idle_count = 0;
}

#if defined(EMU_ASAN) || !defined(EMU_OWN_SWITCH)
void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to)
{
#ifdef EMU_ASAN
	if (from == &fibers.host)
		fibers.host.bottom = NULL;
	fibers.from = from;
	__sanitizer_start_switch_fiber(&from->fake_stack, to == &fibers.host ? to->bottom : to->stack, to->stack_bytes);
#endif
#ifdef EMU_OWN_SWITCH
	emu_switch(&from->sp, to->sp);
#else
	swapcontext(&from->context, &to->context);
#endif
#ifdef EMU_ASAN
	const void *bottom;
	size_t bytes;
	__sanitizer_finish_switch_fiber(from->fake_stack, &bottom, &bytes);
	/* A fiber that was left idle and is entered from the host again learns the host's stack. */
	if (fibers.from == &fibers.host && from != &fibers.host) {
		fibers.host.bottom = bottom;
		fibers.host.stack_bytes = bytes;
	}
#endif
}
#endif
