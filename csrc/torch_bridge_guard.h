// When a fast path may stand in for torch's own operators: nothing but plain memory may be involved.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>

#include "bridge_abi.h"

namespace fastutils {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::TensorImpl;

inline fu_host host{};

inline const at::Tensor& tensor_in(void* object) {
  return *reinterpret_cast<const at::Tensor*>(static_cast<char*>(object) + host.tensor_offset);
}

// Not DispatchKeySet's operator-, which never clears backend bits: its result would never be empty.
inline bool within(DispatchKeySet keys, DispatchKeySet allowed) { return (keys.raw_repr() & ~allowed.raw_repr()) == 0; }

// A strided tensor on CPU or CUDA: no lazy conjugate or negative, no sparse, quantized, nested, named, zero, fake,
// functional, batched tensor, no Python dispatch.
constexpr DispatchKeySet kPlainTensor = DispatchKeySet(DispatchKey::CPU) | DispatchKeySet(DispatchKey::CUDA) |
                                        DispatchKeySet(DispatchKey::AutogradCPU) |
                                        DispatchKeySet(DispatchKey::AutogradCUDA) |
                                        DispatchKeySet(DispatchKey::ADInplaceOrView) | c10::autocast_dispatch_keyset;

// What a thread may have switched on without changing what a copy means.
constexpr DispatchKeySet kPlainIncluded = DispatchKeySet(DispatchKey::BackendSelect) |
                                          DispatchKeySet(DispatchKey::ADInplaceOrView) | c10::autocast_dispatch_keyset;

// What the present thread makes of operators.
struct Thread {
  bool plain;      // no mode, tracer, transform or profiler wants to see them; views are recorded the ordinary way
  bool inference;  // inference mode
  bool grad;       // grad mode
};

inline Thread present_thread() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  const auto& state = c10::AutogradState::get_tls_state();
  const bool inference = state.get_inference_mode();
  const auto excludable =
      inference ? c10::autocast_dispatch_keyset | c10::autograd_dispatch_keyset : c10::autocast_dispatch_keyset;
  // A dispatch mode on the stack has its key among the included ones.
  const bool plain = within(keys.included_, kPlainIncluded) && within(keys.excluded_, excludable) &&
                     !state.get_view_replay_enabled() && at::impl::PythonTorchFunctionTLS::stack_len() == 0 &&
                     !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
  return {plain, inference, state.get_grad_mode()};
}

// The element types that torch copies as plain bytes everywhere. Others (sub-byte and bit types) it may refuse.
constexpr uint64_t bit(c10::ScalarType type) { return uint64_t{1} << static_cast<unsigned>(type); }
constexpr uint64_t kPlainTypes =
    bit(c10::ScalarType::Byte) | bit(c10::ScalarType::Char) | bit(c10::ScalarType::Short) | bit(c10::ScalarType::Int) |
    bit(c10::ScalarType::Long) | bit(c10::ScalarType::Half) | bit(c10::ScalarType::Float) |
    bit(c10::ScalarType::Double) | bit(c10::ScalarType::ComplexHalf) | bit(c10::ScalarType::ComplexFloat) |
    bit(c10::ScalarType::ComplexDouble) | bit(c10::ScalarType::Bool) | bit(c10::ScalarType::BFloat16) |
    bit(c10::ScalarType::Float8_e5m2) | bit(c10::ScalarType::Float8_e4m3fn) | bit(c10::ScalarType::Float8_e5m2fnuz) |
    bit(c10::ScalarType::Float8_e4m3fnuz) | bit(c10::ScalarType::UInt16) | bit(c10::ScalarType::UInt32) |
    bit(c10::ScalarType::UInt64) | bit(c10::ScalarType::Float8_e8m0fnu);
static_assert(static_cast<unsigned>(c10::ScalarType::NumOptions) <= 64, "an element type has no bit");

inline bool has_plain_type(const TensorImpl* tensor) {
  return tensor->dtype().isScalarType() && (kPlainTypes & bit(tensor->dtype().toScalarType()));
}

inline bool holds_bools(const TensorImpl* tensor) { return tensor->dtype() == caffe2::TypeMeta::Make<bool>(); }

// Torch's own host copies make each bool 0 or 1, whatever byte it was (test_bools_of_other_bytes).
inline void copy_bools(void* to, const void* from, size_t count) {
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  for (size_t i = 0; i < count; ++i) out[i] = in[i] != 0;
}

inline torch::autograd::AutogradMeta* meta_of(const TensorImpl* tensor) {
  return static_cast<torch::autograd::AutogradMeta*>(tensor->autograd_meta());
}

inline torch::autograd::DifferentiableViewMeta* view_meta_of(const TensorImpl* tensor) {
  auto* meta = meta_of(tensor);
  return meta && meta->is_view_ ? static_cast<torch::autograd::DifferentiableViewMeta*>(meta) : nullptr;
}

// A view answers for its base as well: torch looks a forward gradient up there when the view has none of its own.
inline bool has_forward_gradient(const TensorImpl* tensor) {
  const auto* meta = meta_of(tensor);
  if (!meta) return false;
  if (meta->fw_grad_) return true;
  const auto* view = view_meta_of(tensor);
  if (!view || !view->has_fw_view()) return false;
  const auto* base = meta_of(view->get_forward_view().base_.unsafeGetTensorImpl());
  return base && base->fw_grad_;
}

// Whether reverse or forward differentiation may want to hear of a copy from or to this tensor.
inline bool has_gradients(const TensorImpl* tensor) {
  const auto* meta = meta_of(tensor);
  return meta && (meta->requires_grad() || has_forward_gradient(tensor));
}

// How many elements the first `n` rows (FU_ALL_ROWS: all) of both have if they are of one shape and lie one behind the
// other, -1 if not. Torch's own flag and count are stale where it refused a set_() (test_sizes_that_torch_refused).
inline int64_t elements_in_a_row(const TensorImpl* one, const TensorImpl* other, int64_t n) {
  const auto sizes = one->sizes(), others = other->sizes(), strides = one->strides(), other_strides = other->strides();
  if (sizes.size() != others.size() || (sizes.empty() && n != FU_ALL_ROWS)) return -1;
  int64_t elements = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    const bool counted = i == 0 && n != FU_ALL_ROWS;
    const int64_t size = counted ? n : sizes[i];
    if (counted ? n < 0 || n > sizes[0] || n > others[0] : size != others[i]) return -1;
    const bool apart = (strides[i] != elements || other_strides[i] != elements) && size != 1 && elements != 0;
    if (apart || __builtin_mul_overflow(elements, size, &elements)) return -1;
  }
  return elements;
}

// Whether the elements lie within the storage: resized or freed storages are torch's to complain about.
inline bool lies_within_storage(const TensorImpl* tensor, int64_t elements) {
  size_t bytes;  // as_strided takes offsets that no storage has (test_offsets_beyond_every_storage)
  const size_t end = static_cast<size_t>(tensor->storage_offset()) + static_cast<size_t>(elements);
  return !__builtin_mul_overflow(end, tensor->itemsize(), &bytes) &&
         bytes <= tensor->unsafe_storage().unsafeGetStorageImpl()->nbytes();
}

}  // namespace fastutils
