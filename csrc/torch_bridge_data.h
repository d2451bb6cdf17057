// The bytes of a tensor, and the storage that keeps them.
#pragma once

#include <ATen/core/Tensor.h>

#include "torch_bridge_copy.h"

namespace fastutils {

// Above this size torch's own copy, which works in blocks and on several threads, is as fast or faster.
constexpr size_t kLargestGather = size_t{64} << 10;

// Writes the elements in row-major order; `out` ends behind the last one.
template <size_t item>
void gather(char*& out, const char* in, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const int64_t step = strides[0] * static_cast<int64_t>(item);
  if (sizes.size() == 1) {
    for (int64_t i = 0; i < sizes[0]; ++i, in += step, out += item) std::memcpy(out, in, item);
  } else {
    for (int64_t i = 0; i < sizes[0]; ++i, in += step) gather<item>(out, in, sizes.slice(1), strides.slice(1));
  }
}

// A storage with the elements in row-major order, or nothing where torch's copy is to be preferred.
inline c10::Storage gathered(const TensorImpl* tensor, size_t bytes) {
  // Sizes may overflow, the count of elements need not be theirs, and gather recurses by dimension (test_bounds).
  int64_t count = 1, step, span = 1;  // span: elements from the first to the last one of memory
  for (int64_t i = 0; i < tensor->dim(); ++i) {
    const int64_t size = tensor->size(i), stride = tensor->stride(i);
    if (i == 32 || size < 0 || __builtin_mul_overflow(count, size, &count) || count > int64_t{kLargestGather} ||
        __builtin_mul_overflow(size - 1, stride, &step) || __builtin_add_overflow(span, step, &span))
      return {};
  }
  if (count != tensor->numel() || bytes > kLargestGather || !lies_within_storage(tensor, span)) return {};
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::GetAllocator(c10::kCPU), /*resizable=*/false);
  char* out = static_cast<char*>(storage.mutable_data());
  const char* in = static_cast<const char*>(tensor->data());
  if (!out || !in) return {};
  const size_t item = tensor->itemsize();
  const auto run = item == 1   ? gather<1>
                   : item == 2 ? gather<2>
                   : item == 4 ? gather<4>
                   : item == 8 ? gather<8>
                               : (item == 16 ? gather<16> : nullptr);
  if (!run) return {};
  run(out, in, tensor->sizes(), tensor->strides());
  if (holds_bools(tensor)) copy_bools(storage.mutable_data(), storage.data(), bytes);
  return storage;
}

// No Python object is made or let go of here, so no code can run.
inline int tensor_bytes(void* object, fu_bytes* out) {
  const at::Tensor& tensor = tensor_in(object);
  if (!tensor.defined() || !present_thread().plain) return FU_FALLBACK;
  TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!within(impl->key_set(), kPlainTensor) || !impl->device().is_cpu() || !has_plain_type(impl)) return FU_FALLBACK;
  if (impl->is_inference() == impl->version_counter().enabled()) return FU_FALLBACK;  // (test_their_bytes)
  // Bytes have no gradient, so requires_grad does not matter; a dual tensor has more than its bytes.
  if (!impl->unsafe_storage() || has_forward_gradient(impl)) return FU_FALLBACK;
  const size_t size = static_cast<size_t>(impl->numel()) * impl->itemsize();
  if (impl->is_contiguous()) {
    const int64_t elements = elements_in_a_row(impl, impl, FU_ALL_ROWS);
    if (elements != impl->numel() || !lies_within_storage(impl, elements)) return FU_FALLBACK;
    c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    out->data = impl->mutable_data();
    if (storage->resizable()) storage->set_resizable(false);  // as Tensor.numpy() does: the bytes must stay in place
    out->storage = c10::Storage(impl->unsafe_storage()).unsafeReleaseStorageImpl();
  } else {
    c10::Storage storage = gathered(impl, size);
    if (!storage) return FU_FALLBACK;
    out->data = storage.mutable_data();
    out->storage = storage.unsafeReleaseStorageImpl();
  }
  out->size = size;
  return FU_DONE;
}

inline int wrap_bytes(const fu_bytes* bytes, void** out) {
  auto* impl = static_cast<c10::StorageImpl*>(bytes->storage);
  c10::Storage storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
  const int64_t size = static_cast<int64_t>(bytes->size);
  const auto data = reinterpret_cast<uintptr_t>(bytes->data), begin = reinterpret_cast<uintptr_t>(storage.data());
  // Tensor.share_memory_(), for one, exchanges the memory within the storage.
  if (size && (data < begin || data + bytes->size > begin + storage.nbytes())) return FU_FALLBACK;
  const int64_t offset = size ? static_cast<int64_t>(data - begin) : 0;
  auto made = at::detail::make_tensor<TensorImpl>(std::move(storage), DispatchKeySet(DispatchKey::CPU),
                                                  caffe2::TypeMeta::Make<uint8_t>());
  made.unsafeGetTensorImpl()->set_storage_offset(offset);
  made.unsafeGetTensorImpl()->set_sizes_contiguous(c10::IntArrayRef(&size, 1));
  return wrap(std::move(made), out);
}

inline void release_storage(void* storage) {
  c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(storage));
}

}  // namespace fastutils
