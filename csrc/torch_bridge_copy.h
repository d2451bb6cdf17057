// Copies between plain tensors, issued directly: memcpy on the host, cudaMemcpyAsync with a device.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <cstring>

#include "torch_bridge_view.h"

struct _object;
typedef struct _object PyObject;
extern PyObject* THPVariable_Wrap(at::TensorBase&& tensor);  // exported by libtorch_python

namespace fastutils {

// Above this size torch's own copy, which runs on several threads without the GIL, is as fast or faster.
constexpr size_t kLargestHostCopy = size_t{256} << 10;

// The values of cudaMemcpyKind and hipMemcpyKind, fixed by their ABIs.
enum class Kind : int { HostToHost = 0, HostToDevice = 1, DeviceToHost = 2, DeviceToDevice = 3 };

struct Move {
  TensorImpl* to;
  const TensorImpl* from;
  void* destination;
  const void* source;
  size_t bytes;  // 0: nothing to copy
  Kind kind;
};

// Decides whether `n` rows (FU_ALL_ROWS: everything) may be moved as plain bytes, and which. Changes nothing.
inline bool plan(const TensorImpl* from, TensorImpl* to, int64_t n, Thread thread, Move& move) {
  if (!within(from->key_set(), kPlainTensor) || !within(to->key_set(), kPlainTensor)) return false;
  if (from->dtype() != to->dtype() || !has_plain_type(to)) return false;
  if (has_gradients(from) || has_gradients(to)) return false;
  if (to->is_inference() && !thread.inference) return false;  // torch raises
  const auto from_sizes = from->sizes(), to_sizes = to->sizes();
  int64_t elements;
  if (n == FU_ALL_ROWS) {
    if (from_sizes != to_sizes) return false;
    elements = to->numel();
  } else {
    if (from_sizes.empty() || from_sizes.size() != to_sizes.size() || n < 0 || n > from_sizes[0] || n > to_sizes[0]) {
      return false;
    }
    elements = n;
    for (size_t i = 1; i < to_sizes.size(); ++i) {
      if (from_sizes[i] != to_sizes[i]) return false;
      elements *= to_sizes[i];
    }
  }
  if (!from->is_contiguous() || !to->is_contiguous()) return false;
  const c10::Storage &from_storage = from->unsafe_storage(), &to_storage = to->unsafe_storage();
  if (!from_storage || !to_storage) return false;

  move = Move{to, from, nullptr, nullptr, 0, Kind::HostToHost};
  if (from == to) {  // what there is to copy is already there
    // Torch complains of a view over memory that is not there, though not of the tensor itself.
    return n == FU_ALL_ROWS || elements == 0 || lies_within_storage(to, elements);
  }
  if (from_storage.is_alias_of(to_storage)) return false;  // torch has rules for overlap
  const c10::Device from_device = from->device(), to_device = to->device();
  if (!from_device.is_cpu() || !to_device.is_cpu()) {
    if (!host.memcpy_async) return false;
    if (from_device.is_cpu() && to_device.is_cuda()) {
      move.kind = Kind::HostToDevice;
    } else if (from_device.is_cuda() && to_device.is_cpu()) {
      move.kind = Kind::DeviceToHost;
    } else if (from_device == to_device && to_device.is_cuda()) {
      move.kind = Kind::DeviceToDevice;
    } else {
      return false;  // between two devices torch makes each one's stream wait for the other's
    }
  }
  if (elements == 0) return true;
  if (!lies_within_storage(from, elements) || !lies_within_storage(to, elements)) return false;
  move.bytes = static_cast<size_t>(elements) * to->itemsize();
  if (move.kind == Kind::HostToHost && move.bytes > kLargestHostCopy) return false;
  move.destination = to->mutable_data();
  move.source = from->data();
  if (!move.destination || !move.source) return false;
  if (move.kind != Kind::HostToHost) return true;
  // Two storages may lie over the same memory, and torch has its own order for that.
  const auto to_begin = reinterpret_cast<uintptr_t>(move.destination);
  const auto from_begin = reinterpret_cast<uintptr_t>(move.source);
  return to_begin + move.bytes <= from_begin || from_begin + move.bytes <= to_begin;
}

// Handles that are no streams but names of them (0 is another name of the first), fixed by the runtimes' ABIs.
constexpr uintptr_t kLegacyDefaultStream = 1, kThreadDefaultStream = 2;

// The current stream of a device, as the copies of one call use it.
class Lane {
 public:
  // False if this move cannot go down this lane, and torch has to find the way.
  bool open(const Move& move) {
    const c10::Device device = move.kind == Kind::DeviceToHost ? move.from->device() : move.to->device();
    if (stream_) return device == stream_->device();
    const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
    const c10::Stream stream = guard->getStream(device);
    raw_ = stream.native_handle();
    const auto handle = reinterpret_cast<uintptr_t>(raw_);
    // A name means a stream of the *current* device, which need not be this tensor's.
    if (handle <= kThreadDefaultStream && guard->getDevice() != device) return false;
    // Under capture torch checks what may be captured. The legacy default stream cannot be capturing, and asking it
    // while another stream is breaks that capture.
    int capturing = 0;
    if (handle > kLegacyDefaultStream && (host.stream_is_capturing(raw_, &capturing) || capturing)) return false;
    stream_ = stream;
    return true;
  }

  // Needs no GIL: both calls may wait, for a full queue whose host callback wants the GIL or for the allocator's lock.
  bool issue(const Move& move) const {
    if (host.memcpy_async(move.destination, move.source, move.bytes, static_cast<int>(move.kind), raw_)) {
      host.get_last_error();  // torch's own call will meet the error again and report it
      return false;
    }
    if (move.kind == Kind::DeviceToDevice) return true;
    // Keeps a pinned block, freed while the copy is pending, from being handed out again before it is done.
    const bool upload = move.kind == Kind::HostToDevice;
    const TensorImpl* on_host = upload ? move.from : move.to;
    void* address = upload ? const_cast<void*>(move.source) : move.destination;
    at::getHostAllocator(at::kCUDA)->record_event(address, on_host->unsafe_storage().data_ptr().get_context(),
                                                  *stream_);
    return true;
  }

 private:
  std::optional<c10::Stream> stream_;
  void* raw_ = nullptr;
};

class WithoutGil {
 public:
  WithoutGil() : state_(host.release_gil()) {}
  ~WithoutGil() { host.take_gil(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_;
};

inline void bump(TensorImpl* to) {
  if (!to->is_inference()) to->bump_version();
}

// Another thread may give either tensor another storage while the GIL is released, hence the references.
inline bool issue_with_device(const Move& move, bool view_holds_target) {
  Lane lane;
  if (!lane.open(move)) return false;
  const c10::Storage from_storage = move.from->unsafe_storage();
  const c10::Storage to_storage = view_holds_target ? c10::Storage() : move.to->unsafe_storage();
  WithoutGil released;
  return lane.issue(move);
}

inline void copy_on_host(const Move& move) {
  if (move.bytes == 0) return;
  if (holds_bools(move.to)) {
    copy_bools(move.destination, move.source, move.bytes);
  } else {
    std::memcpy(move.destination, move.source, move.bytes);
  }
}

inline bool carry_out(const Move& move, bool view_holds_target) {
  if (move.kind != Kind::HostToHost && move.bytes != 0) return issue_with_device(move, view_holds_target);
  copy_on_host(move);
  return true;
}

// Flattened: the calls between these short functions cost a twelfth of the whole.
[[gnu::flatten]] inline int copy_rows(void* from_object, void* to_object, int64_t n, void* reusable, void** out) {
  const at::Tensor &from = tensor_in(from_object), &to = tensor_in(to_object);
  const Thread thread = present_thread();
  Move move;
  if (!from.defined() || !to.defined() || !thread.plain ||
      !plan(from.unsafeGetTensorImpl(), to.unsafeGetTensorImpl(), n, thread, move)) {
    return FU_FALLBACK;
  }
  if (reusable && renew_rows(tensor_in(reusable), to, n, thread)) {
    if (!carry_out(move, /*view_holds_target=*/true)) return FU_FALLBACK;
    bump(move.to);
    *out = reusable;
    return FU_REUSED;
  }
  at::Tensor view = first_rows(to, n, thread);
  if (!carry_out(move, /*view_holds_target=*/true)) return FU_FALLBACK;
  bump(move.to);
  *out = THPVariable_Wrap(std::move(view));
  return *out ? FU_DONE : FU_ERROR;
}

[[gnu::flatten]] inline int copy_whole(void* from_object, void* to_object) {
  const at::Tensor &from = tensor_in(from_object), &to = tensor_in(to_object);
  const Thread thread = present_thread();
  Move move;
  if (!from.defined() || !to.defined() || !thread.plain ||
      !plan(from.unsafeGetTensorImpl(), to.unsafeGetTensorImpl(), FU_ALL_ROWS, thread, move) ||
      !carry_out(move, /*view_holds_target=*/false)) {
    return FU_FALLBACK;
  }
  bump(move.to);
  return FU_DONE;
}

// One round of copy_many: bounded, so that the plan lies on the stack.
constexpr size_t kRound = 64;

inline size_t copy_round(size_t count, void* const* from, void* const* to, const int64_t* rows,
                         Thread thread) noexcept {
  std::array<Move, kRound> moves;
  Lane lane;
  size_t planned = 0, done = 0;
  bool with_device = false;
  try {
    for (; planned < count && from[planned]; ++planned) {
      const at::Tensor &source = tensor_in(from[planned]), &target = tensor_in(to[planned]);
      Move& move = moves[planned];
      if (!source.defined() || !target.defined() ||
          !plan(source.unsafeGetTensorImpl(), target.unsafeGetTensorImpl(), rows[planned], thread, move)) {
        break;
      }
      if (move.kind == Kind::HostToHost || move.bytes == 0) continue;
      if (!lane.open(move)) break;
      with_device = true;
    }
  } catch (...) {  // torch will meet it again with this entry, and report it
  }
  if (with_device) {
    std::array<c10::Storage, 2 * kRound> kept;  // for the time without the GIL
    for (size_t i = 0; i < planned; ++i) {
      kept[2 * i] = moves[i].from->unsafe_storage();
      kept[2 * i + 1] = moves[i].to->unsafe_storage();
    }
    const WithoutGil released;
    try {
      for (; done < planned; ++done) {
        const Move& move = moves[done];
        if (move.kind == Kind::HostToHost) {
          copy_on_host(move);
        } else if (move.bytes != 0 && !lane.issue(move)) {
          break;
        }
      }
    } catch (...) {
    }
  } else {
    for (; done < planned; ++done) copy_on_host(moves[done]);
  }
  for (size_t i = 0; i < done; ++i) bump(moves[i].to);
  return done;
}

inline size_t copy_many(size_t count, void* const* from, void* const* to, const int64_t* rows) {
  const Thread thread = present_thread();
  if (!thread.plain) return 0;
  size_t done = 0;
  while (done < count) {
    const size_t round = std::min(kRound, count - done);
    const size_t now = copy_round(round, from + done, to + done, rows + done, thread);
    done += now;
    if (now < round) break;
  }
  return done;
}

}  // namespace fastutils
