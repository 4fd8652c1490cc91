/* AddressSanitizer, where it is built in. */
#ifndef CUDA_EMU_ASAN_H
#define CUDA_EMU_ASAN_H

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_POISON_MEMORY(p, bytes) __asan_poison_memory_region((p), (bytes))
#define EMU_UNPOISON(p, bytes)	    __asan_unpoison_memory_region((p), (bytes))
#else
#define EMU_POISON_MEMORY(p, bytes) ((void)(p), (void)(bytes))
#define EMU_UNPOISON(p, bytes)	    ((void)(p), (void)(bytes))
#endif

#endif
