"""compute_iteration_details, for pytest-benchmark."""

from bench import faces

test_iteration = faces.of("compute_iteration_details")
