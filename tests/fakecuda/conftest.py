"""Everything here runs on the stand-in runtime only; `make test-fakecuda` loads it."""

import fake
import pytest


@pytest.fixture
def runtime():
    found = fake.loaded()
    if found is None:
        pytest.skip("the stand-in CUDA runtime is not loaded (make test-fakecuda)")
    found.undo()
    found.reset()
    yield found
    found.undo()
