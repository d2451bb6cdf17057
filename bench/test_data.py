"""tensor_data, for pytest-benchmark."""

from bench import faces

test_data = faces.of("tensor_data")
