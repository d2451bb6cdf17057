"""The bridge's table, as Cython sees it."""

from libc.stdint cimport int64_t, uint64_t


cdef extern from "bridge_abi.h":
    enum:
        FU_ERROR
        FU_FALLBACK
        FU_DONE
        FU_NEEDS_SLOT
        FU_ROUND
    const int64_t FU_ALL_ROWS

    ctypedef struct fu_bytes:
        void* storage
        void* data
        size_t size

    ctypedef struct fu_place:
        size_t offset
        size_t capacity
        size_t pitch

    ctypedef struct fu_staging_stats:
        uint64_t flushes
        uint64_t runtime_calls
        uint64_t live_bytes
        uint64_t bytes_moved
        uint64_t waits
        uint64_t ns_waited
        uint64_t slots
        uint64_t peak_slots

    ctypedef struct fu_bridge:
        int (*copy_rows)(void* from_tensor, void* to_tensor, int64_t n, void** out) except? -1
        int (*copy_whole)(void* from_tensor, void* to_tensor) noexcept
        size_t (*copy_many)(
            size_t count, void* const* from_tensors, void* const* to_tensors, const int64_t* rows
        ) noexcept
        int (*tensor_bytes)(void* tensor, fu_bytes* out) noexcept
        int (*wrap_bytes)(const fu_bytes* bytes, void** out) except? -1
        void (*release_storage)(void* storage) noexcept
        void* (*staging_new)(
            void* host, void* device, size_t count, void* const* cpus, void* const* gpus, const fu_place* places,
            size_t max_slots
        ) noexcept
        void (*staging_free)(void* staging) noexcept
        int (*staging_add_slot)(void* staging, void* memory) noexcept
        void (*staging_configure)(void* staging, int pack, int64_t gap) noexcept
        int (*staging_flush)(void* staging, int64_t* rows) noexcept
        int (*staging_view)(void* staging, size_t i, int64_t n, void** out) except? -1
        void (*staging_stats)(void* staging, int reset, fu_staging_stats* out) noexcept
        void (*staging_close)(void* staging) noexcept
