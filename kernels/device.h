/* A device as the worker sees it: memory, streams, events, graphs, and the ops that run there. All of it
 * lives in a shared object of its own that is opened at run time, so that one build runs with and without a
 * GPU: the worker looks up `kern_device_api` and nothing else. tests/ has a second such object, for an
 * emulated device.
 *
 * One device per process. All calls come from one thread, but where said otherwise. Errors: ERR_NO_MEMORY;
 * and ERR_DEVICE with the device's own words, after most of which only a new process helps. */
#ifndef TERCET_KERNELS_DEVICE_H
#define TERCET_KERNELS_DEVICE_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KERN_DEVICE_ABI = 6, KERN_DEVICE_NAME_MAX = 128, KERN_COMM_ID_BYTES = 128, KERN_COMM_BUFFERS = 8 };

struct kern_device_info {
	char name[KERN_DEVICE_NAME_MAX];
	u32 count;	  /* devices that this process may use */
	u32 processors;	  /* multiprocessors */
	u32 capability;	  /* compute capability, 90 for 9.0 */
	u32 driver;	  /* highest CUDA version of the driver, 13000 for 13.0; */
	u32 runtime;	  /* that of the runtime in this object */
	u64 memory_total; /* bytes */
	u64 memory_free;  /* when it was asked */
};

enum kern_copy { KERN_COPY_UP, KERN_COPY_DOWN, KERN_COPY_DEVICE };
struct kern_event;
struct kern_graph;
struct kern_comm;

struct kern_device_api {
	u32 abi;	 /* KERN_DEVICE_ABI */
	u32 table_bytes; /* of struct kern_ops, as this object was built */

	/* Binds the process to device `index`. ERR_DEVICE: there is no driver, no such device, or it is too
	 * old for the kernels. */
	enum err (*open)(u32 index, struct kern_device_info *info, struct err_msg *em);
	/* Fills memory_free and memory_total anew. */
	enum err (*memory)(struct kern_device_info *info, struct err_msg *em);
	/* The CUDA variants overwrite their slots of `ops`. */
	void (*ops_init)(struct kern_ops *ops, struct kern_device_ops *device);

	/* Device memory, 256-byte aligned. May wait for the device. */
	enum err (*alloc)(void **out, size_t bytes, struct err_msg *em);
	void (*release)(void *p); /* NULL: nothing */
	/* Host memory that copies and kernels read and write at full speed, at the same address on both
	 * sides. */
	enum err (*host_alloc)(void **out, size_t bytes, struct err_msg *em);
	void (*host_release)(void *p);

	/* What is queued in one stream happens in order; streams know of each other through events only. */
	enum err (*stream_create)(void **out, struct err_msg *em);
	void (*stream_destroy)(void *stream);
	enum err (*stream_wait)(void *stream, struct kern_event *e, struct err_msg *em); /* queued */
	/* Blocks until all that was queued is done; reports what went wrong in it. */
	enum err (*stream_sync)(void *stream, struct err_msg *em);
	/* Queued. Host memory is pinned (host_alloc) and left alone until the copy is done. */
	enum err (*copy)(void *stream, void *dst, const void *src, size_t bytes, enum kern_copy kind,
			 struct err_msg *em);
	enum err (*zero)(void *stream, void *dst, size_t bytes, struct err_msg *em);

	/* `awaited`: the host will wait for it (event_sync), and its thread sleeps meanwhile; else such a wait keeps a
	 * core busy, and the event, which only streams wait for, is spared the interrupt. */
	enum err (*event_create)(struct kern_event **out, bool awaited, struct err_msg *em);
	void (*event_destroy)(struct kern_event *e);
	enum err (*event_record)(struct kern_event *e, void *stream, struct err_msg *em); /* queued */
	/* ERR_AGAIN: what was queued before the event is not done. Any thread. */
	enum err (*event_query)(struct kern_event *e, struct err_msg *em);
	enum err (*event_sync)(struct kern_event *e, struct err_msg *em); /* blocks; any thread */

	/* What is queued in `stream` between begin and end is not run but recorded. Abandon ends a recording
	 * that failed. A launch runs it all, with the arguments of then; it is queued and costs microseconds.
	 */
	enum err (*graph_begin)(void *stream, struct err_msg *em);
	enum err (*graph_end)(void *stream, struct kern_graph **out, struct err_msg *em);
	void (*graph_abandon)(void *stream);
	enum err (*graph_launch)(struct kern_graph *g, void *stream, struct err_msg *em);
	void (*graph_destroy)(struct kern_graph *g);

	/* Collectives between processes, each with a device of its own: NCCL, whose library is opened by the
	 * first of these calls. ERR_DEVICE: there is no such library, it is too old, or an error of its own
	 * with its words. All ranks call sum, gather and alloc in the same order with the same sizes.
	 *
	 * comm_id: rank 0 makes a name of the group; the others get the same bytes by other means.
	 * comm_create blocks until all ranks have come; ERR_TIMEOUT: not all did within the time, and this
	 * process can only end now; ERR_INVALID: `rank` is none of `ranks`. comm_destroy: NULL: nothing; all
	 * that was queued is done, or the communicator has failed; graphs that recorded its collectives are
	 * not launched again. */
	enum err (*comm_id)(u8 id[KERN_COMM_ID_BYTES], struct err_msg *em);
	enum err (*comm_create)(struct kern_comm **out, const u8 *id, u32 rank, u32 ranks, u32 timeout_ms,
				struct err_msg *em);
	void (*comm_destroy)(struct kern_comm *c);
	/* Device memory that collectives are fastest with (memory that all ranks reach, where the library has
	 * that), 256-byte aligned; at most KERN_COMM_BUFFERS of a communicator, else ERR_INVALID. Released
	 * before the communicator is destroyed. */
	enum err (*comm_alloc)(struct kern_comm *c, void **out, size_t bytes, struct err_msg *em);
	void (*comm_release)(struct kern_comm *c, void *p); /* NULL: nothing */
	/* Queued; can be recorded in a graph. buffer[count] = the sum over all ranks, the same bits on all of
	 * them: float32, bfloat16 or float16, else ERR_UNSUPPORTED. */
	enum err (*comm_sum)(struct kern_comm *c, void *stream, void *buffer, size_t count,
			     enum kern_dtype dtype, struct err_msg *em);
	/* Queued; can be recorded. recv[ranks][bytes] = what each rank sends. */
	enum err (*comm_gather)(struct kern_comm *c, void *stream, const void *send, void *recv, size_t bytes,
				struct err_msg *em);
	/* Any thread. Has a collective failed? A rank that is dead or stuck need not show here: then
	 * collectives wait, until comm_abort. */
	enum err (*comm_check)(struct kern_comm *c, struct err_msg *em);
	/* Any thread. Collectives that wait end, with nothing of use in their buffers; the communicator is
	 * good for comm_destroy only. */
	void (*comm_abort)(struct kern_comm *c);
};

/* Scratch that sample and logprobs of so many rows want on a device, where several blocks then share a row. With less
 * they take fewer rows at a time, and with less than one row's a block a row, which is slower. */
enum { KERN_SAMPLE_ROW_BYTES = 34 << 10, KERN_SAMPLE_CHUNK = 256 };
static inline size_t kern_sample_scratch_bytes(u32 rows, u32 vocab)
{
	return (size_t)rows * (KERN_SAMPLE_ROW_BYTES + ((size_t)vocab / KERN_SAMPLE_CHUNK + 1) * 12);
}

/* The only symbol that is looked up. */
#define KERN_DEVICE_SYMBOL "kern_device_api"
extern __attribute__((visibility("default"))) const struct kern_device_api kern_device_api;

#ifdef __cplusplus
}
#endif
#endif
