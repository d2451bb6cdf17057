"""Fixtures that every test module may use."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The helpers beside the tests (implementations.py, ...) are imported by name from any subfolder.
sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("default")


@pytest.fixture(params=["compiled", "python"])
def form(request):
    """Runs the test once for the compiled and once for the Python form."""
    return request.param
