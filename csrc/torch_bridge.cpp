// The torch bridge: the only code that knows libtorch's C++ ABI, which changes with every minor version of torch.
// It includes neither Python's nor CUDA's headers: one build serves every Python, and CPU, CUDA and ROCm builds of
// torch alike, because the device runtime's functions come in through fu_host.

#include <torch/headeronly/version.h>

#include "torch_bridge_copy.h"
#include "torch_bridge_data.h"
#include "torch_bridge_staging.h"

namespace fastutils {
namespace {

int init(const fu_host* given) {
  host = *given;
  return 1;
}

int reads_tensor(void* object, int64_t numel, int64_t data_ptr) {
  const at::Tensor& tensor = tensor_in(object);
  return tensor.defined() && tensor.numel() == numel &&
         reinterpret_cast<int64_t>(tensor.const_data_ptr()) == data_ptr && within(tensor.key_set(), kPlainTensor);
}

// Whatever torch throws while a copy is prepared, its own operators will throw again, properly reported.
template <auto function, auto failed, typename... Arguments>
auto guarded(Arguments... arguments) -> decltype(function(arguments...)) {
  try {
    return function(arguments...);
  } catch (...) {
    return failed;
  }
}

const fu_bridge bridge{
    FU_BRIDGE_ABI,
    C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(TORCH_VERSION_MINOR),
    init,
    guarded<reads_tensor, 0>,
    guarded<copy_rows, int{FU_FALLBACK}>,
    guarded<copy_whole, int{FU_FALLBACK}>,
    copy_many,
    guarded<tensor_bytes, int{FU_FALLBACK}>,
    guarded<wrap_bytes, int{FU_FALLBACK}>,
    release_storage,
    guarded<staging_new, nullptr>,
    staging_free,
    staging_add_slot,
    staging_configure,
    guarded<staging_flush, int{FU_FALLBACK}>,
    guarded<staging_view, int{FU_FALLBACK}>,
    staging_stats,
    staging_close,
};

}  // namespace
}  // namespace fastutils

extern "C" __attribute__((visibility("default"))) const fu_bridge* fastutils_bridge() { return &fastutils::bridge; }
