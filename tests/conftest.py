"""Fixtures that every test module may use."""

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell starts a background process with SIGINT ignored, and then Python raises no KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["compiled", "python"])
def form(request):
    """Runs the test once for the compiled and once for the Python form."""
    return request.param
