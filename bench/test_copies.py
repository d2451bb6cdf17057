"""copy_slice, for pytest-benchmark."""

from bench import faces

test_copies = faces.of("copy_slice")
