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

// May run any code, so it is the last that is done. What it throws is Python's error (test_memory_that_runs_out).
inline int wrap(at::Tensor&& tensor, void** out) {
  try {
    return (*out = THPVariable_Wrap(std::move(tensor))) ? FU_DONE : FU_ERROR;
  } catch (...) {
    return FU_ERROR;
  }
}

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
inline bool plan(const at::Tensor& from_tensor, const at::Tensor& to_tensor, int64_t n, Thread thread, Move& move) {
  if (!thread.plain || !from_tensor.defined() || !to_tensor.defined()) return false;
  const TensorImpl* const from = from_tensor.unsafeGetTensorImpl();
  TensorImpl* const to = to_tensor.unsafeGetTensorImpl();
  if (!within(from->key_set(), kPlainTensor) || !within(to->key_set(), kPlainTensor)) return false;
  if (from->dtype() != to->dtype() || !has_plain_type(to)) return false;
  if (has_gradients(from) || has_gradients(to)) return false;
  if (to->is_inference() && !thread.inference) return false;  // torch raises
  // `.data =` and detach() across inference mode make tensors of both kinds at once
  // (test_tensors_that_are_half_inference_tensors).
  if (to->is_inference() == to->version_counter().enabled()) return false;
  const int64_t elements = elements_in_a_row(from, to, n);
  const c10::Storage &from_storage = from->unsafe_storage(), &to_storage = to->unsafe_storage();
  if (elements < 0 || !from_storage || !to_storage) return false;

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
  auto* const to_memory = static_cast<char*>(to_storage.mutable_data());
  const auto* const from_memory = static_cast<const char*>(from_storage.data());
  if (!to_memory || !from_memory) return false;
  move.destination = to_memory + static_cast<size_t>(to->storage_offset()) * to->itemsize();
  move.source = from_memory + static_cast<size_t>(from->storage_offset()) * to->itemsize();
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

  const c10::Stream& stream() const { return *stream_; }
  void* raw() const { return raw_; }

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
  if (to->version_counter().enabled()) to->bump_version();  // asked last: another thread may have set `.data` meanwhile
}

// Another thread may exchange a tensor's memory, or a tensor object's tensor, while the GIL is released. Letting go may
// run Python code: nothing borrowed is looked at afterwards.
struct Held {
  at::Tensor tensor;
  c10::Storage storage;

  Held() = default;
  explicit Held(const TensorImpl* impl)
      : tensor(c10::intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(const_cast<TensorImpl*>(impl))),
        storage(impl->unsafe_storage()) {}
};

inline bool issue_with_device(const Move& move) {
  Lane lane;
  if (!lane.open(move)) return false;
  const Held from(move.from), to(move.to);
  {
    const WithoutGil released;
    if (!lane.issue(move)) return false;
  }
  bump(move.to);
  return true;
}

inline void copy_on_host(const Move& move) {
  if (move.bytes == 0) return;
  if (holds_bools(move.to)) {
    copy_bools(move.destination, move.source, move.bytes);
  } else {
    std::memcpy(move.destination, move.source, move.bytes);
  }
}

inline bool carry_out(const Move& move) {
  if (move.kind != Kind::HostToHost && move.bytes != 0) return issue_with_device(move);
  copy_on_host(move);
  bump(move.to);
  return true;
}

// Flattened: the calls between these short functions cost a twelfth of the whole.
[[gnu::flatten]] inline int copy_rows(void* from_object, void* to_object, int64_t n, void** out) {
  const Thread thread = present_thread();
  Move move;
  if (!plan(tensor_in(from_object), tensor_in(to_object), n, thread, move)) return FU_FALLBACK;
  at::Tensor view = first_rows(tensor_in(to_object), n, thread);
  if (!carry_out(move)) return FU_FALLBACK;
  return wrap(std::move(view), out);
}

// Runs no Python code but through issue_with_device, after which nothing borrowed is looked at.
[[gnu::flatten]] inline int copy_whole(void* from_object, void* to_object) {
  Move move;
  return plan(tensor_in(from_object), tensor_in(to_object), FU_ALL_ROWS, present_thread(), move) && carry_out(move)
             ? FU_DONE
             : FU_FALLBACK;
}

// How many of `count` moves, some of them with a device, were carried out.
inline size_t issue_round(const Move* moves, size_t count, const Lane& lane) noexcept {
  std::array<Held, 2 * FU_ROUND> held;
  for (size_t i = 0; i < count; ++i) {
    held[2 * i] = Held(moves[i].from);
    held[2 * i + 1] = Held(moves[i].to);
  }
  size_t done = 0;
  {
    const WithoutGil released;
    try {
      for (; done < count; ++done) {
        const Move& move = moves[done];
        if (move.kind == Kind::HostToHost) {
          copy_on_host(move);
        } else if (move.bytes != 0 && !lane.issue(move)) {
          break;
        }
      }
    } catch (...) {  // torch will meet it again with this entry, and report it
    }
  }
  for (size_t i = 0; i < done; ++i) bump(moves[i].to);
  return done;
}

// As copy_whole; the objects themselves are the caller's.
[[gnu::flatten]] inline size_t copy_many(size_t count, void* const* from, void* const* to,
                                         const int64_t* rows) noexcept {
  std::array<Move, FU_ROUND> moves;
  Lane lane;
  size_t planned = 0;
  bool with_device = false;
  try {
    const Thread thread = present_thread();
    for (; planned < count; ++planned) {
      Move& move = moves[planned];
      if (!plan(tensor_in(from[planned]), tensor_in(to[planned]), rows[planned], thread, move)) break;
      if (move.kind == Kind::HostToHost || move.bytes == 0) continue;
      if (!lane.open(move)) break;
      with_device = true;
    }
  } catch (...) {  // as above
  }
  if (with_device) return issue_round(moves.data(), planned, lane);
  for (size_t i = 0; i < planned; ++i) {
    copy_on_host(moves[i]);
    bump(moves[i].to);
  }
  return planned;
}

}  // namespace fastutils
