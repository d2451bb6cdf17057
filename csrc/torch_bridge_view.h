// The view to[:n], as torch's own slicing makes it in grad, no_grad and inference mode, at a fraction of its cost.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include "torch_bridge_guard.h"

namespace fastutils {

using torch::autograd::CreationMeta;
using torch::autograd::ViewInfo;

inline CreationMeta creation_meta(Thread thread) {
  if (thread.inference) return CreationMeta::INFERENCE_MODE;
  return thread.grad ? CreationMeta::DEFAULT : CreationMeta::NO_GRAD_MODE;
}

// Protected members, reached as a derived class may. What the public ways to them would do besides is a third of a
// view.
struct Inside : TensorImpl {
  static DispatchKeySet& keys(TensorImpl* tensor) { return tensor->*&Inside::key_set_; }
  static c10::impl::SizesAndStrides& shape(TensorImpl* tensor) { return tensor->*&Inside::sizes_and_strides_; }
  static int64_t& numel(TensorImpl* tensor) { return tensor->*&Inside::numel_; }
};

inline void set_rows(TensorImpl* view, const TensorImpl* of, int64_t n) {
  if (of->storage_offset() != 0) view->set_storage_offset(of->storage_offset());
  if (of->dim() == 1 && of->strides()[0] == 1) {
    // A new tensor has shape (0,) and stride (1,): nothing but these two numbers is different with n rows.
    Inside::shape(view).size_at_unchecked(0) = n;
    Inside::numel(view) = n;
    return;
  }
  c10::SmallVector<int64_t, 6> sizes(of->sizes().begin(), of->sizes().end());
  sizes[0] = n;
  view->set_sizes_and_strides(sizes, of->strides());
}

// What an inference tensor lacks, and with it a version counter: the constructor would allocate one for this view
// that its base's is to replace a moment later.
constexpr DispatchKeySet kRecording = DispatchKeySet(DispatchKey::ADInplaceOrView) | c10::autograd_dispatch_keyset;

// The view has to be made before the copy bumps the version, as slicing does: its attr_version records the version
// at its birth, and autograd compares the two should the base come to require gradients later.
inline at::Tensor first_rows(const at::Tensor& of, int64_t n, Thread thread) {
  TensorImpl* base = of.unsafeGetTensorImpl();
  const DispatchKeySet keys = base->key_set();
  auto made = at::detail::make_tensor<TensorImpl>(
      TensorImpl::VIEW, c10::Storage(base->unsafe_storage()),
      DispatchKeySet(DispatchKeySet::RAW, keys.raw_repr() & ~kRecording.raw_repr()), base->dtype());
  TensorImpl* view = made.unsafeGetTensorImpl();
  Inside::keys(view) = keys;
  set_rows(view, base, n);
  if (base->is_inference()) return made;  // such tensors record neither views nor versions
  if (view_meta_of(base))
    return torch::autograd::as_view(of, made, true, true, nullptr, nullptr, creation_meta(thread));
  // What as_view() comes down to for a tensor that is no view itself; its constructor shares the version counter. Not
  // by std::make_unique, which would move the information once more.
  view->set_autograd_meta(std::unique_ptr<torch::autograd::DifferentiableViewMeta>(
      new torch::autograd::DifferentiableViewMeta(view, std::optional<ViewInfo>(std::in_place, of, nullptr, nullptr),
                                                  std::nullopt, /*shared_view_info=*/true, creation_meta(thread))));
  return made;
}

}  // namespace fastutils
