"""The bridge's table, as Cython sees it."""

from libc.stdint cimport int64_t


cdef extern from "bridge_abi.h":
    enum:
        FU_ERROR
        FU_FALLBACK
        FU_DONE
        FU_ROUND
    const int64_t FU_ALL_ROWS

    ctypedef struct fu_bytes:
        void* storage
        void* data
        size_t size

    ctypedef struct fu_bridge:
        int (*copy_rows)(void* from_tensor, void* to_tensor, int64_t n, void** out) except? -1
        int (*copy_whole)(void* from_tensor, void* to_tensor) noexcept
        size_t (*copy_many)(
            size_t count, void* const* from_tensors, void* const* to_tensors, const int64_t* rows
        ) noexcept
        int (*tensor_bytes)(void* tensor, fu_bytes* out) noexcept
        int (*wrap_bytes)(const fu_bytes* bytes, void** out) except? -1
        void (*release_storage)(void* storage) noexcept
