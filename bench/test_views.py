"""ConstantList, for pytest-benchmark."""

from bench import faces

test_views = faces.of("ConstantList")
