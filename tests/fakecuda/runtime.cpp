// A stand-in for libcudart: one queue per stream, host memory for device memory, a log of every asynchronous copy.
// Only what torch calls for memory, streams, events and copies is here; build.py answers for the rest with an error.

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#undef cudaGetDeviceProperties

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Stream;

// What an event stands for: a place in a stream's queue.
struct Mark {
  Stream* stream;
  bool reached = false;
};

struct Operation {
  std::function<void()> run;
  std::shared_ptr<Mark> reaches;  // an event record
  std::shared_ptr<Mark> awaits;   // a stream waiting for an event
  uint64_t number = 0;            // in the order of issue over all streams
};

struct Stream {
  int device;
  std::deque<Operation> queue;
};

struct Event {
  std::shared_ptr<Mark> mark;
};

struct Record {
  void* to;
  const void* from;
  size_t bytes;
  int kind;
  void* stream;
  int device;
  int gil;  // whether the calling thread held Python's lock
  size_t height;
  size_t to_pitch, from_pitch;  // 0 for cudaMemcpyAsync, which has none
};

// `height` rows of `width` bytes; those of cudaMemcpyAsync are one row.
struct Rows {
  char* to;
  size_t to_pitch;
  const char* from;
  size_t from_pitch;
  size_t width;
  size_t height;

  void copy() const {
    for (size_t row = 0; row < height; ++row) std::memmove(to + row * to_pitch, from + row * from_pitch, width);
  }
};

// The calls of one sort that are still to fail.
struct Failures {
  int left = 0;
  cudaError_t error = cudaSuccess;

  bool due() {
    if (left <= 0) return false;
    --left;
    return true;
  }
};

std::recursive_mutex lock;
using Guard = std::lock_guard<std::recursive_mutex>;

bool holding = false;
bool quiet = false;  // for timing: no log, no queue
bool capturing = false;
void (*on_copy)() = nullptr;  // called once, when the next copy is issued
Failures copy_failures, allocation_failures, record_failures, event_failures;
uint64_t operations_issued = 0;
std::atomic<int> copy_calls{0};
int events_recorded = 0;
int records_with_gil = 0;
int waits = 0;
int waits_with_gil = 0;
int queries_with_gil = 0;
std::vector<Record> log_of_copies;
std::map<char*, size_t> pinned, on_device;
std::set<Stream*> streams;
std::map<int, Stream*> default_streams;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int device_count() {
  static const int count = [] {
    const char* text = std::getenv("FAKECUDA_DEVICES");
    return text ? std::atoi(text) : 2;
  }();
  return count;
}

Stream* stream_of(cudaStream_t handle) {
  // 0 and the two special handles: the default stream of the current device.
  if (reinterpret_cast<uintptr_t>(handle) > 2) return reinterpret_cast<Stream*>(handle);
  Stream*& found = default_streams[current_device];
  if (!found) {
    found = new Stream{current_device, {}};
    streams.insert(found);
  }
  return found;
}

void run_until(Stream* stream, const Mark* mark);

void run_next(Stream* stream) {
  Operation next = std::move(stream->queue.front());
  stream->queue.pop_front();
  if (next.awaits && !next.awaits->reached) run_until(next.awaits->stream, next.awaits.get());
  if (next.run) next.run();
  if (next.reaches) next.reaches->reached = true;
}

void run_until(Stream* stream, const Mark* mark) {
  while (!stream->queue.empty() && !(mark && mark->reached)) run_next(stream);
}

void run_all(int device) {
  for (Stream* stream : streams) {
    if (device < 0 || stream->device == device) run_until(stream, nullptr);
  }
}

// Whether anything is left to run. A device does not stop at a wait for what has happened already.
bool busy(Stream* stream) {
  auto& queue = stream->queue;
  while (!queue.empty() && queue.front().awaits && queue.front().awaits->reached) queue.pop_front();
  return !queue.empty();
}

bool busy_device(int device) {
  for (Stream* stream : streams) {
    if (stream->device == device && busy(stream)) return true;
  }
  return false;
}

// An event is recorded before a stream is told to wait for it, so the oldest operation of all never has to wait.
Stream* oldest() {
  Stream* found = nullptr;
  for (Stream* stream : streams) {
    if (busy(stream) && (!found || stream->queue.front().number < found->queue.front().number)) found = stream;
  }
  return found;
}

void enqueue(Stream* stream, Operation operation) {
  operation.number = operations_issued++;
  stream->queue.push_back(std::move(operation));
  if (!holding) run_until(stream, nullptr);
}

bool lies_in(const std::map<char*, size_t>& blocks, const void* address) {
  auto after = blocks.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (after == blocks.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return static_cast<const char*>(address) < start + size;
}

int holds_gil() {
  static const auto check = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return check ? check() : 0;
}

cudaError_t allocate(std::map<char*, size_t>& blocks, void** out, size_t bytes) {
  Guard guard(lock);
  if (posix_memalign(out, 4096, bytes ? bytes : 1)) return result(cudaErrorMemoryAllocation);
  std::memset(*out, 0xA5, bytes);  // nobody may rely on fresh memory being zero
  blocks[static_cast<char*>(*out)] = bytes;
  return cudaSuccess;
}

cudaError_t deallocate(std::map<char*, size_t>& blocks, void* address) {
  Guard guard(lock);
  run_all(-1);  // freeing waits for the device
  if (address && !blocks.erase(static_cast<char*>(address))) return result(cudaErrorInvalidValue);
  std::free(address);
  return cudaSuccess;
}

void count_wait() {
  ++waits;
  waits_with_gil += holds_gil();
}

cudaMemcpyKind kind_of(cudaMemcpyKind kind, const Rows& rows) {
  if (kind != cudaMemcpyDefault) return kind;
  if (lies_in(on_device, rows.from)) {
    return lies_in(on_device, rows.to) ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost;
  }
  return lies_in(on_device, rows.to) ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost;
}

cudaError_t copy_later(const Rows& rows, cudaMemcpyKind given, cudaStream_t handle, cudaError_t refusal = cudaSuccess) {
  ++copy_calls;
  if (quiet) {
    if (refusal == cudaSuccess) rows.copy();
    return result(refusal);
  }
  if (on_copy) std::exchange(on_copy, nullptr)();
  Guard guard(lock);
  log_of_copies.push_back({rows.to, rows.from, rows.width * rows.height, given, handle, current_device, holds_gil(),
                           rows.height, rows.to_pitch, rows.from_pitch});
  if (refusal != cudaSuccess) return result(refusal);
  if (copy_failures.due()) return result(copy_failures.error);
  Stream* stream = stream_of(handle);
  const cudaMemcpyKind kind = kind_of(given, rows);
  if (kind == cudaMemcpyHostToDevice && !lies_in(pinned, rows.from)) {
    // Row by row: nobody promised that the padding behind the last row may be read.
    auto staged = std::make_shared<std::vector<char>>(rows.width * rows.height);
    Rows{staged->data(), rows.width, rows.from, rows.from_pitch, rows.width, rows.height}.copy();
    auto run = [=] { Rows{rows.to, rows.to_pitch, staged->data(), rows.width, rows.width, rows.height}.copy(); };
    enqueue(stream, {run, nullptr, nullptr});
    return cudaSuccess;
  }
  enqueue(stream, {[=] { rows.copy(); }, nullptr, nullptr});
  if (kind == cudaMemcpyDeviceToHost && !lies_in(pinned, rows.to)) run_until(stream, nullptr);  // CUDA waits here
  return cudaSuccess;
}

Rows one_row(void* to, const void* from, size_t bytes) {
  return {static_cast<char*>(to), 0, static_cast<const char*>(from), 0, bytes, 1};
}

}  // namespace

// ---- what the tests call -------------------------------------------------------------------------------------

EXPORT int fakecuda_log(int index, Record* out) {
  Guard guard(lock);
  if (out && index < static_cast<int>(log_of_copies.size())) *out = log_of_copies[index];
  return static_cast<int>(log_of_copies.size());
}
EXPORT void fakecuda_reset() {
  Guard guard(lock);
  log_of_copies.clear();
  copy_calls = 0;
  events_recorded = records_with_gil = waits = waits_with_gil = queries_with_gil = 0;
}
EXPORT void fakecuda_hold() {
  Guard guard(lock);
  holding = true;
}
EXPORT void fakecuda_release() {
  Guard guard(lock);
  holding = false;
  run_all(-1);
}
EXPORT void fakecuda_fail_next(int times, int error) {
  Guard guard(lock);
  copy_failures = {times, static_cast<cudaError_t>(error)};
}
EXPORT void fakecuda_fail_allocations(int times) {
  Guard guard(lock);
  allocation_failures = {times, cudaErrorMemoryAllocation};
}
EXPORT void fakecuda_fail_records(int times, int error) {
  Guard guard(lock);
  record_failures = {times, static_cast<cudaError_t>(error)};
}
EXPORT void fakecuda_fail_events(int times, int error) {
  Guard guard(lock);
  event_failures = {times, static_cast<cudaError_t>(error)};
}
// Waits for events are not counted, here or in what is pending: they are how a stream is ordered, not work.
EXPORT int fakecuda_run_pending(int times) {
  Guard guard(lock);
  int ran = 0;
  for (Stream* stream; ran < times && (stream = oldest()); ++ran) run_next(stream);
  return ran;
}
EXPORT int fakecuda_pending() {
  Guard guard(lock);
  int found = 0;
  for (const Stream* stream : streams) {
    for (const Operation& operation : stream->queue) found += !operation.awaits;
  }
  return found;
}
EXPORT void fakecuda_on_copy(void (*callback)()) { on_copy = callback; }
EXPORT void fakecuda_quiet(int on) { quiet = on; }
EXPORT void fakecuda_set_capturing(int on) { capturing = on; }
EXPORT int fakecuda_events_recorded() { return events_recorded; }
EXPORT int fakecuda_records_with_gil() { return records_with_gil; }
EXPORT int fakecuda_copy_calls() { return copy_calls; }
EXPORT int fakecuda_waits() { return waits; }
EXPORT int fakecuda_waits_with_gil() { return waits_with_gil; }
EXPORT int fakecuda_queries_with_gil() { return queries_with_gil; }
EXPORT int fakecuda_pinned_blocks(size_t* bytes) {
  Guard guard(lock);
  *bytes = 0;
  for (const auto& [start, size] : pinned) *bytes += size;
  return static_cast<int>(pinned.size());
}

// ---- devices -------------------------------------------------------------------------------------------------

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "no GPU at all");
  properties->major = 9;
  properties->totalGlobalMem = size_t{1} << 34;
  properties->multiProcessorCount = 132;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->regsPerMultiprocessor = 65536;
  properties->unifiedAddressing = 1;
  properties->memPitch = INT_MAX;
  properties->pciDeviceID = device;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxPitch ? INT_MAX : 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  Guard guard(lock);
  if (busy_device(current_device)) count_wait();
  run_all(current_device);
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, size, "0000:%02x:00.0", device);
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = size_t{1} << 33;
  *total = size_t{1} << 34;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }
EXPORT const char* cudaGetErrorString(cudaError_t error) {
  static thread_local char text[48];
  std::snprintf(text, sizeof text, error ? "made-up error %d" : "no error", static_cast<int>(error));
  return text;
}
EXPORT const char* cudaGetErrorName(cudaError_t error) { return error ? "cudaErrorMadeUp" : "cudaSuccess"; }
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* status) {
  *function = nullptr;
  if (status) *status = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// ---- memory --------------------------------------------------------------------------------------------------

EXPORT cudaError_t cudaMalloc(void** out, size_t bytes) { return allocate(on_device, out, bytes); }
EXPORT cudaError_t cudaFree(void* address) { return deallocate(on_device, address); }
EXPORT cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned) {
  Guard guard(lock);
  if (allocation_failures.due()) return result(allocation_failures.error);
  return allocate(pinned, out, bytes);
}
EXPORT cudaError_t cudaFreeHost(void* address) { return deallocate(pinned, address); }
EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  Guard guard(lock);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->type = lies_in(pinned, address)      ? cudaMemoryTypeHost
                     : lies_in(on_device, address) ? cudaMemoryTypeDevice
                                                   : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_later(one_row(to, from, bytes), kind, stream);
}
EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                     size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  // Documented without an exception for a single row, whose pitches nobody needs.
  const bool fits = width <= to_pitch && width <= from_pitch && to_pitch <= INT_MAX && from_pitch <= INT_MAX;
  const bool known = kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
  return copy_later({static_cast<char*>(to), to_pitch, static_cast<const char*>(from), from_pitch, width, height}, kind,
                    stream,
                    !known  ? cudaErrorInvalidMemcpyDirection
                    : !fits ? cudaErrorInvalidPitchValue
                            : cudaSuccess);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return copy_later(one_row(to, from, bytes), cudaMemcpyDeviceToDevice, stream);
}
EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  Guard guard(lock);
  run_all(current_device);
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  Guard guard(lock);
  enqueue(stream_of(stream), {[=] { std::memset(to, value, bytes); }, nullptr, nullptr});
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  Guard guard(lock);
  run_all(current_device);
  std::memset(to, value, bytes);
  return cudaSuccess;
}

// ---- streams and events --------------------------------------------------------------------------------------

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned, int) {
  Guard guard(lock);
  auto* stream = new Stream{current_device, {}};
  streams.insert(stream);
  *out = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithPriority(out, 0, 0); }
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Guard guard(lock);
  Stream* stream = stream_of(handle);
  run_until(stream, nullptr);
  streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Guard guard(lock);
  Stream* stream = stream_of(handle);
  if (busy(stream)) count_wait();
  run_until(stream, nullptr);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Guard guard(lock);
  return busy(stream_of(stream)) ? cudaErrorNotReady : cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Guard guard(lock);
  const auto& mark = reinterpret_cast<Event*>(event)->mark;
  if (mark && !mark->reached) enqueue(stream_of(stream), {nullptr, nullptr, mark});
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                            cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned) {
  Guard guard(lock);
  if (record_failures.due()) return result(record_failures.error);
  ++events_recorded;
  records_with_gil += holds_gil();
  Stream* stream = stream_of(handle);
  auto mark = std::make_shared<Mark>(Mark{stream});
  reinterpret_cast<Event*>(event)->mark = mark;
  enqueue(stream, {nullptr, mark, nullptr});
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  Guard guard(lock);
  queries_with_gil += holds_gil();
  if (event_failures.due()) return result(event_failures.error);
  const auto& mark = reinterpret_cast<Event*>(event)->mark;
  return result(!mark || mark->reached ? cudaSuccess : cudaErrorNotReady);
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Guard guard(lock);
  if (event_failures.due()) return result(event_failures.error);
  const auto mark = reinterpret_cast<Event*>(event)->mark;
  if (!mark || mark->reached) return cudaSuccess;
  count_wait();
  run_until(mark->stream, mark.get());
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0;
  return cudaSuccess;
}

// ---- kernels: registered, launched, and never run ------------------------------------------------------------

EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterFunction() {}
EXPORT void __cudaRegisterVar() {}
EXPORT unsigned __cudaPushCallConfiguration() { return 0; }
EXPORT cudaError_t __cudaPopCallConfiguration() { return cudaSuccess; }
EXPORT cudaError_t __cudaLaunchKernel() { return cudaSuccess; }
EXPORT cudaError_t __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->binaryVersion = attributes->ptxVersion = 90;
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
EXPORT cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
