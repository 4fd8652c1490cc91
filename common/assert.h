/* ASSERT finds bugs of ours, stays on in release builds, and logs before it aborts. Whatever a peer, user,
 * file or device can cause is an `enum err` instead. DASSERT is for hot loops and only in debug builds. */
#ifndef TERCET_COMMON_ASSERT_H
#define TERCET_COMMON_ASSERT_H

_Noreturn void assert_failed(const char *expr, const char *file, int line, const char *func);

#define ASSERT(expr) ((expr) ? (void)0 : assert_failed(#expr, __FILE__, __LINE__, __func__))

#ifdef NDEBUG
#define DASSERT(expr) ((void)0)
#else
#define DASSERT(expr) ASSERT(expr)
#endif

#endif
