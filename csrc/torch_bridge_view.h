// The view to[:n], as torch's own slicing makes it in grad, no_grad and inference mode, at a fraction of its cost.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include "torch_bridge_guard.h"

namespace fastutils {

using torch::autograd::CreationMeta;

inline CreationMeta creation_meta(Thread thread) {
  if (thread.inference) return CreationMeta::INFERENCE_MODE;
  return thread.grad ? CreationMeta::DEFAULT : CreationMeta::NO_GRAD_MODE;
}

inline void set_rows(TensorImpl* view, const TensorImpl* of, int64_t n) {
  if (of->dim() == 1) {
    view->set_sizes_and_strides(c10::IntArrayRef(&n, 1), of->strides());
    return;
  }
  c10::SmallVector<int64_t, 6> sizes(of->sizes().begin(), of->sizes().end());
  sizes[0] = n;
  view->set_sizes_and_strides(sizes, of->strides());
}

// The view has to be made before the copy bumps the version, as slicing does: its attr_version records the version
// at its birth, and autograd compares the two should the base come to require gradients later.
inline at::Tensor first_rows(const at::Tensor& of, int64_t n, Thread thread) {
  TensorImpl* base = of.unsafeGetTensorImpl();
  auto made = at::detail::make_tensor<TensorImpl>(TensorImpl::VIEW, c10::Storage(base->unsafe_storage()),
                                                  base->key_set(), base->dtype());
  TensorImpl* view = made.unsafeGetTensorImpl();
  view->set_storage_offset(base->storage_offset());
  set_rows(view, base, n);
  if (base->is_inference()) return made;  // such tensors record neither views nor versions
  if (view_meta_of(base))
    return torch::autograd::as_view(of, made, true, true, nullptr, nullptr, creation_meta(thread));
  // What as_view() comes down to for a tensor that is no view itself; its constructor shares the version counter.
  view->set_autograd_meta(std::make_unique<torch::autograd::DifferentiableViewMeta>(
      view, torch::autograd::ViewInfo(of, nullptr, nullptr), std::nullopt, /*shared_view_info=*/true,
      creation_meta(thread)));
  return made;
}

// Turns `view`, an earlier result of first_rows(of, ...) that nobody else can see any more, into first_rows(of, n).
// False if anything about it is not as a fresh one would have it. (Its attr_version is older than a fresh one's, but
// the copy to come makes both stale.)
inline bool renew_rows(const at::Tensor& view_tensor, const at::Tensor& of, int64_t n, Thread thread) {
  TensorImpl *view = view_tensor.unsafeGetTensorImpl(), *base = of.unsafeGetTensorImpl();
  if (view_tensor.use_count() != 1 || view_tensor.weak_use_count() > 1) return false;
  if (view->key_set() != base->key_set() || view->dtype() != base->dtype() || view->dim() != base->dim() ||
      view->unsafe_storage().unsafeGetStorageImpl() != base->unsafe_storage().unsafeGetStorageImpl() ||
      view->storage_offset() != base->storage_offset() || view->strides() != base->strides() ||
      view->sizes().slice(1) != base->sizes().slice(1) || !view->allow_tensor_metadata_change()) {
    return false;
  }
  if (base->is_inference()) {
    if (view->autograd_meta()) return false;
  } else {
    auto* meta = view_meta_of(view);
    if (!meta || view_meta_of(base) || !meta->shared_view_info() ||
        meta->get_backward_view().base_.unsafeGetTensorImpl() != base ||
        meta->get_creation_meta() != creation_meta(thread) || meta->requires_grad() || meta->retains_grad_ ||
        meta->fw_grad_ || meta->grad_.defined() || !meta->hooks_.empty() || meta->cpp_hooks_list_ ||
        meta->post_acc_grad_hooks_ || meta->grad_dtype_ || meta->allow_grad_dtype_mismatch_) {
      return false;
    }
  }
  if (view->sizes()[0] != n) set_rows(view, base, n);
  return true;
}

}  // namespace fastutils
