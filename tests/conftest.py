"""Fixtures that every test module may use."""

import os

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("default")


@pytest.fixture(params=["compiled", "python"])
def form(request):
    """Runs the test once for the compiled and once for the Python form."""
    return request.param
