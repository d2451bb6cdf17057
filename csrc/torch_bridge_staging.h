// Uploads of many buffers at once: a snapshot of their live rows goes into a pinned slot, and from there to the device
// in as few calls as pay off. A slot is used again when the event behind its copies is complete, not before.
#pragma once

#include <c10/core/Event.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "torch_bridge_copy.h"

namespace fastutils {

struct Slot {
  explicit Slot(const at::Tensor& tensor, c10::DeviceType type)
      : memory(tensor.storage()), data(static_cast<char*>(memory.mutable_data())), copied(type) {}

  c10::Storage memory;
  char* data;
  c10::Event copied;                     // complete until it is first recorded
  std::optional<c10::Stream> unguarded;  // the stream of copies behind which the event could not be recorded

  void guard(const c10::Stream& stream) {
    unguarded = stream;
    copied.record(stream);
    unguarded.reset();
  }

  // As late as now, an event stands for everything that the stream was given before.
  c10::Event& guarded() {
    if (unguarded) guard(c10::Stream(*unguarded));
    return copied;
  }
};

// The slots that no call has in hand, the one used longest ago first. Needs no GIL and may wait.
class Slots {
 public:
  explicit Slots(size_t limit) : limit_(limit) {}

  bool add(std::unique_ptr<Slot> slot) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (closed_ || made_ == limit_) return false;
    most_ = std::max(most_, ++made_);
    idle_.push_front(std::move(slot));
    returned_.notify_one();
    return true;
  }

  // A slot whose copies are done; null if another may be made instead of waiting. Throws what the device reports.
  std::unique_ptr<Slot> take(fu_staging_stats& waiting) {
    std::unique_lock<std::mutex> guard(lock_);
    for (;;) {
      TORCH_CHECK(!closed_, "this staging is closed");
      for (auto slot = idle_.begin(); slot != idle_.end(); ++slot) {
        if (!(*slot)->guarded().query()) continue;
        auto taken = std::move(*slot);
        idle_.erase(slot);
        return taken;
      }
      if (made_ < limit_) return nullptr;
      if (!idle_.empty()) {
        auto oldest = std::move(idle_.front());
        idle_.pop_front();
        guard.unlock();
        const auto start = std::chrono::steady_clock::now();
        try {
          oldest->guarded().synchronize();
        } catch (...) {
          give_back(std::move(oldest));
          throw;
        }
        ++waiting.waits;
        waiting.ns_waited += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
        return oldest;
      }
      returned_.wait(guard);  // other threads have all of them in hand, and none keeps one for long
    }
  }

  void give_back(std::unique_ptr<Slot> slot) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (!closed_) idle_.push_back(std::move(slot));
    returned_.notify_one();
  }

  void close() {
    std::deque<std::unique_ptr<Slot>> dropped;
    const std::lock_guard<std::mutex> guard(lock_);
    closed_ = true;
    dropped.swap(idle_);
    returned_.notify_all();
  }

  size_t made() {
    const std::lock_guard<std::mutex> guard(lock_);
    return closed_ ? 0 : made_;
  }

  size_t most() {
    const std::lock_guard<std::mutex> guard(lock_);
    return most_;
  }

 private:
  std::mutex lock_;
  std::condition_variable returned_;
  std::deque<std::unique_ptr<Slot>> idle_;
  size_t made_ = 0, most_ = 0;
  const size_t limit_;
  bool closed_ = false;
};

// One call of the runtime: `height` rows of `width` bytes, at `pitch` on the device and one behind the other in the
// slot.
struct Piece {
  size_t slot_at;
  size_t offset;
  size_t width;
  size_t height;
  size_t pitch;
  size_t next;  // where the next buffer of this layout begins
  bool full;    // every buffer in it is live to its end
};

struct Live {
  size_t index;
  size_t bytes;
};

struct Staging {
  Staging(const at::Tensor& on_host, const at::Tensor& on_device, size_t count, void* const* cpu_objects,
          void* const* gpu_objects, const fu_place* given, size_t max_slots)
      : host_slab(on_host.storage()),
        device_slab(on_device.storage()),
        host_base(static_cast<char*>(host_slab.mutable_data())),
        device_base(static_cast<char*>(device_slab.mutable_data())),
        device_type(on_device.device().type()),
        places(given, given + count),
        cpus(cpu_objects, cpu_objects + count),
        gpus(gpu_objects, gpu_objects + count),
        slots(max_slots) {}

  const c10::Storage host_slab, device_slab;
  char *const host_base, *const device_base;
  const c10::DeviceType device_type;
  const std::vector<fu_place> places;   // in the order in which they lie
  const std::vector<void*> cpus, gpus;  // the caller's
  Slots slots;
  bool pack = true;
  int64_t gap = 0;
  fu_staging_stats counts{};  // touched with the GIL only

  void add(const fu_staging_stats& more) {
    counts.flushes += more.flushes;
    counts.runtime_calls += more.runtime_calls;
    counts.live_bytes += more.live_bytes;
    counts.bytes_moved += more.bytes_moved;
    counts.waits += more.waits;
    counts.ns_waited += more.ns_waited;
  }
};

// Cuts what is to be uploaded into runtime calls. Never a byte behind a buffer's live rows but its padding.
inline std::vector<Piece> cut(const Staging& staging, const std::vector<Live>& live, bool pack, int64_t gap) {
  std::vector<Piece> pieces;
  pieces.reserve(live.size());
  size_t slot_at = 0;
  for (const Live& one : live) {
    const fu_place& place = staging.places[one.index];
    const bool full = one.bytes == place.capacity;
    if (!pieces.empty()) {
      Piece& last = pieces.back();
      const size_t end = last.offset + (last.height - 1) * last.pitch + last.width;
      const bool neighbour = last.next == place.offset;
      if (neighbour && full && last.full && gap >= 0 && place.offset - end <= static_cast<size_t>(gap)) {
        last.width = place.offset + one.bytes - last.offset;
        last.height = 1;
        last.next = place.offset + place.pitch;
        slot_at = last.slot_at + last.width;
        continue;
      }
      if (neighbour && pack && host.memcpy_2d_async && last.width == one.bytes && last.pitch == place.pitch) {
        ++last.height;
        last.next = place.offset + place.pitch;
        last.full = last.full && full;
        slot_at = last.slot_at + last.width * last.height;
        continue;
      }
    }
    // A slot is as large as the slab: pieces packed to cache lines never take more than the buffers' own places do.
    slot_at = std::min((slot_at + 63) & ~size_t{63}, place.offset);
    pieces.push_back({slot_at, place.offset, one.bytes, 1, place.pitch, place.offset + place.pitch, full});
    slot_at += one.bytes;
  }
  return pieces;
}

inline void snapshot(const Staging& staging, const std::vector<Piece>& pieces, char* slot) {
  for (const Piece& piece : pieces) {
    for (size_t row = 0; row < piece.height; ++row) {
      std::memcpy(slot + piece.slot_at + row * piece.width, staging.host_base + piece.offset + row * piece.pitch,
                  piece.width);
    }
  }
}

inline bool issue(const Staging& staging, const std::vector<Piece>& pieces, const char* slot, void* stream) {
  for (const Piece& piece : pieces) {
    char* const to = staging.device_base + piece.offset;
    const char* const from = slot + piece.slot_at;
    constexpr int kind = static_cast<int>(Kind::HostToDevice);
    const int error = piece.height == 1 ? host.memcpy_async(to, from, piece.width, kind, stream)
                                        : host.memcpy_2d_async(to, piece.pitch, from, piece.width, piece.width,
                                                               piece.height, kind, stream);
    if (error) {
      host.get_last_error();  // torch's own copies will meet the error again and report it
      return false;
    }
  }
  return true;
}

inline Staging& staging_in(void* staging) { return *static_cast<Staging*>(staging); }

inline void* staging_new(void* host_slab, void* device_slab, size_t count, void* const* cpus, void* const* gpus,
                         const fu_place* places, size_t max_slots) {
  const c10::Device device = tensor_in(device_slab).device();
  if (!device.is_cpu() && !(device.is_cuda() && host.memcpy_async)) return nullptr;
  return new Staging(tensor_in(host_slab), tensor_in(device_slab), count, cpus, gpus, places, max_slots);
}

inline void staging_close(void* object) noexcept {
  const WithoutGil released;  // freeing pinned memory may ask the device for events
  staging_in(object).slots.close();
}

inline void staging_free(void* object) noexcept {
  staging_close(object);
  delete &staging_in(object);
}

inline int staging_add_slot(void* object, void* memory) noexcept {
  try {
    Staging& staging = staging_in(object);
    return staging.slots.add(std::make_unique<Slot>(tensor_in(memory), staging.device_type));
  } catch (...) {
    return 0;
  }
}

inline void staging_configure(void* staging, int pack, int64_t gap) noexcept {
  staging_in(staging).pack = pack;
  staging_in(staging).gap = gap;
}

// Runs without the GIL: everything in here may wait.
inline int upload(Staging& staging, const std::vector<Live>& live, bool pack, int64_t gap, const Lane& lane,
                  fu_staging_stats& counts) {
  std::unique_ptr<Slot> slot = staging.slots.take(counts);
  if (!slot) return FU_NEEDS_SLOT;
  const std::vector<Piece> pieces = cut(staging, live, pack, gap);
  snapshot(staging, pieces, slot->data);
  bool issued = false;
  try {
    issued = issue(staging, pieces, slot->data, lane.raw());
    // Should the slot's memory ever be freed while it is being read, the allocator keeps it until it is not.
    at::getHostAllocator(at::kCUDA)->record_event(slot->data, slot->memory.data_ptr().get_context(), lane.stream());
    slot->guard(lane.stream());
  } catch (...) {
    slot->unguarded = lane.stream();
    staging.slots.give_back(std::move(slot));
    throw;
  }
  staging.slots.give_back(std::move(slot));
  counts.runtime_calls = pieces.size();
  for (const Piece& piece : pieces) counts.bytes_moved += piece.width * piece.height;
  return issued ? FU_DONE : FU_FALLBACK;
}

inline bool as_large(const Staging& staging, size_t i) {
  const auto bytes = [](const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()) * tensor.itemsize(); };
  const size_t capacity = staging.places[i].capacity;
  return bytes(tensor_in(staging.cpus[i])) == capacity && bytes(tensor_in(staging.gpus[i])) == capacity;
}

// What is planned lies where it was laid out, and is as large as it was. `.data =`, set_() and resize_() take a tensor
// elsewhere and leave its object as it was.
inline bool in_place(const Staging& staging, size_t i, const Move& move) {
  const fu_place& place = staging.places[i];
  return move.source == staging.host_base + place.offset && move.destination == staging.device_base + place.offset &&
         move.bytes <= place.capacity && as_large(staging, i);
}

inline int flush_on_host(Staging& staging, int64_t* rows) {
  const Thread thread = present_thread();
  fu_staging_stats counts{};
  bool all = true;
  for (size_t i = 0; i < staging.places.size(); ++i) {
    if (rows[i] == -1) continue;
    Move move;
    if (!plan(tensor_in(staging.cpus[i]), tensor_in(staging.gpus[i]), rows[i], thread, move) ||
        (move.bytes != 0 && !in_place(staging, i, move))) {
      all = false;
      continue;
    }
    copy_on_host(move);
    bump(move.to);
    rows[i] = -1;
    counts.live_bytes += move.bytes;
  }
  counts.bytes_moved = counts.live_bytes;
  counts.flushes = all;  // what torch is to do for the rest of this one is counted there
  staging.add(counts);
  return all ? FU_DONE : FU_FALLBACK;
}

inline int flush_to_device(Staging& staging, const int64_t* rows) {
  const Thread thread = present_thread();
  const size_t count = staging.places.size();
  std::vector<Live> live;
  live.reserve(count);
  fu_staging_stats counts{};
  Lane lane;
  for (size_t i = 0; i < count; ++i) {
    if (rows[i] == -1) continue;
    Move move;
    if (!plan(tensor_in(staging.cpus[i]), tensor_in(staging.gpus[i]), rows[i], thread, move)) return FU_FALLBACK;
    if (move.bytes == 0) continue;
    if (!in_place(staging, i, move) || !lane.open(move)) return FU_FALLBACK;
    live.push_back({i, move.bytes});
    counts.live_bytes += move.bytes;
  }
  if (!live.empty()) {
    const bool pack = staging.pack;
    const int64_t gap = staging.gap;
    const WithoutGil released;
    if (const int outcome = upload(staging, live, pack, gap, lane, counts); outcome != FU_DONE) return outcome;
  }
  for (size_t i = 0; i < count; ++i) {
    if (rows[i] != -1) bump(tensor_in(staging.gpus[i]).unsafeGetTensorImpl());
  }
  counts.flushes = 1;
  staging.add(counts);
  return FU_DONE;
}

inline int staging_flush(void* object, int64_t* rows) {
  Staging& staging = staging_in(object);
  return staging.device_type == c10::DeviceType::CPU ? flush_on_host(staging, rows) : flush_to_device(staging, rows);
}

inline int staging_view(void* object, size_t i, int64_t n, void** out) {
  const Staging& staging = staging_in(object);
  const Thread thread = present_thread();
  Move move;
  if (!plan(tensor_in(staging.cpus[i]), tensor_in(staging.gpus[i]), n, thread, move)) return FU_FALLBACK;
  if (move.bytes == 0 ? !as_large(staging, i) : !in_place(staging, i, move)) return FU_FALLBACK;
  return wrap(first_rows(tensor_in(staging.gpus[i]), n, thread), out);
}

inline void staging_stats(void* object, int reset, fu_staging_stats* out) noexcept {
  Staging& staging = staging_in(object);
  *out = staging.counts;
  out->slots = staging.slots.made();
  out->peak_slots = staging.slots.most();
  if (reset) staging.counts = {};
}

}  // namespace fastutils
