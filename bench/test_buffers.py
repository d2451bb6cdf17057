"""CpuGpuBuffer and groups of them, for pytest-benchmark."""

from bench import faces

test_buffers = faces.of("CpuGpuBuffer", "copy_to_gpu_many", "StagingGroup")
