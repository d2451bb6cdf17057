/* A stand-in for libcuda.so.1: what torch asks the driver before it uses the runtime. */
#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500 };

EXPORT int cuInit(unsigned flags) {
  (void)flags;
  return SUCCESS;
}
EXPORT int cuDriverGetVersion(int* version) {
  *version = 13000;
  return SUCCESS;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  (void)device;
  if (flags) *flags = 0;
  *active = 1;
  return SUCCESS;
}
EXPORT int cuCtxGetCurrent(void** context) {
  *context = (void*)1;
  return SUCCESS;
}
EXPORT int cuPointerGetAttribute(void* data, int attribute, unsigned long pointer) {
  (void)data, (void)attribute, (void)pointer;
  return INVALID_VALUE;
}
EXPORT int cuGetErrorString(int error, const char** text) {
  (void)error;
  *text = "made-up driver error";
  return SUCCESS;
}
EXPORT int cuGetErrorName(int error, const char** text) {
  (void)error;
  *text = "CUDA_ERROR_MADE_UP";
  return SUCCESS;
}
EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags,
                               void* status) {
  (void)symbol, (void)version, (void)flags, (void)status;
  *function = 0;
  return NOT_FOUND;
}
