/* The table through which the Cython core, built once per Python, calls the torch bridge, built once per torch minor.
 *
 * The core knows Python and no torch; the bridge knows torch's C++ ABI and no Python (objects pass through as void *).
 * Every call is made with the GIL held. Raise FU_BRIDGE_ABI with every change: a bridge of another number is refused.
 */
#ifndef FASTUTILS_BRIDGE_ABI_H
#define FASTUTILS_BRIDGE_ABI_H

#include <stddef.h>
#include <stdint.h>

#define FU_BRIDGE_ABI 3

/* Instead of a row count: the whole tensor, whose sizes must then agree in every dimension. */
#define FU_ALL_ROWS INT64_MIN

/* The most entries of one copy_many. */
#define FU_ROUND 64

#ifdef __cplusplus
extern "C" {
#endif

enum {
  FU_ERROR = -1,   /* a Python exception is set */
  FU_FALLBACK = 0, /* nothing was done; torch's own operators must do it */
  FU_DONE = 1,
  FU_NEEDS_SLOT = 2 /* nothing was done; give the staging another slot, then ask again */
};

/* What the bridge needs from the process it is loaded into; filled in by the core. */
typedef struct fu_host {
  size_t tensor_offset; /* where a torch.Tensor object keeps its TensorImpl pointer */
  /* cudaMemcpyAsync, cudaMemcpy2DAsync, cudaGetLastError and cudaStreamIsCapturing, or HIP's; all NULL without a device
   * runtime. */
  int (*memcpy_async)(void* to, const void* from, size_t bytes, int kind, void* stream);
  int (*memcpy_2d_async)(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         int kind, void* stream);
  int (*get_last_error)(void);
  int (*stream_is_capturing)(void* stream, int* status);
  /* PyEval_SaveThread and PyEval_RestoreThread. */
  void* (*release_gil)(void);
  void (*take_gil)(void* state);
} fu_host;

/* The memory of a tensor's elements, and the storage that keeps it alive (one reference, owned by the receiver). */
typedef struct fu_bytes {
  void* storage;
  void* data;
  size_t size;
} fu_bytes;

/* Where a staged buffer lies, in bytes, in the slab on the host as in that on the device. */
typedef struct fu_place {
  size_t offset;
  size_t capacity;
  size_t pitch; /* the capacity and its padding: where the next one may begin */
} fu_place;

typedef struct fu_staging_stats {
  uint64_t flushes, runtime_calls, live_bytes, bytes_moved, waits, ns_waited, slots, peak_slots;
} fu_staging_stats;

typedef struct fu_bridge {
  int abi;                   /* FU_BRIDGE_ABI */
  const char* torch_version; /* "major.minor" of the headers it was compiled against */

  /* Returns 0 if this process's torch is not one the bridge understands. */
  int (*init)(const fu_host* host);
  /* Whether the bridge reads the tensor object as Python does: 1 yes, 0 no. */
  int (*reads_tensor)(void* tensor, int64_t numel, int64_t data_ptr);

  /* to[:n].copy_(from[:n], non_blocking=True); *out is a new reference to to[:n]. */
  int (*copy_rows)(void* from, void* to, int64_t n, void** out);
  /* to.copy_(from, non_blocking=True). */
  int (*copy_whole)(void* from, void* to);
  /* Many of either kind, in order; the caller keeps the tensors alive. Returns how many were done before the first
   * one that torch must do. */
  size_t (*copy_many)(size_t count, void* const* from, void* const* to, const int64_t* rows);

  /* The elements of a CPU tensor in row-major order: its own memory if contiguous, else a copy. */
  int (*tensor_bytes)(void* tensor, fu_bytes* out);
  /* A one-dimensional uint8 torch.Tensor over `bytes`, as a new reference. */
  int (*wrap_bytes)(const fu_bytes* bytes, void** out);
  void (*release_storage)(void* storage);

  /* Uploads of many buffers that lie in one slab, through event-guarded slots; NULL where that cannot be. `host` and
   * `device` are one-dimensional uint8 tensors, the slabs; `cpus` and `gpus` the buffers' own, which the caller keeps
   * for as long. */
  void* (*staging_new)(void* host, void* device, size_t count, void* const* cpus, void* const* gpus,
                       const fu_place* places, size_t max_slots);
  void (*staging_free)(void* staging);
  /* A slot: a uint8 tensor as large as the slab, in pinned memory. 0 if there are enough, or it is closed. */
  int (*staging_add_slot)(void* staging, void* memory);
  /* Whether copies of one width at one pitch become one call, and over how many bytes of padding full neighbours are
   * joined (-1: they are not). */
  void (*staging_configure)(void* staging, int pack, int64_t gap);
  /* Snapshots rows[i] rows of each buffer (-1: none) and uploads them on the current stream. May wait for a slot,
   * without the GIL. FU_FALLBACK: what is not -1 by then is torch's to do. */
  int (*staging_flush)(void* staging, int64_t* rows);
  /* What staging_flush would upload of buffer `i`, which is plain and where it was laid out: *out is a new reference to
   * its gpu[:n]. Copies nothing. */
  int (*staging_view)(void* staging, size_t i, int64_t n, void** out);
  void (*staging_stats)(void* staging, int reset, fu_staging_stats* out);
  void (*staging_close)(void* staging);
} fu_bridge;

/* The one symbol a bridge exports. */
typedef const fu_bridge* (*fu_bridge_entry)(void);

#ifdef __cplusplus
}
#endif
#endif
