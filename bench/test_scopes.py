"""record_function_or_nullcontext, for pytest-benchmark."""

from bench import faces

test_scopes = faces.of("record_function_or_nullcontext")
