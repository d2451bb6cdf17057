"""Time limits."""

from fractions import Fraction

import pytest

from fastutils.processes.arguments import Deadline, checked_timeout


@pytest.mark.parametrize(("given", "seconds"), [(0, 0.0), (1.5, 1.5), (Fraction(1, 2), 0.5), (10**9, 1e9)])
def test_numbers_of_seconds(given, seconds):
    assert checked_timeout(given) == seconds


@pytest.mark.parametrize("given", [None, "1", True, 1j, [1]])
def test_what_is_no_number(given):
    with pytest.raises(TypeError, match="grace must be a number of seconds"):
        checked_timeout(given, "grace")


@pytest.mark.parametrize("given", [-1, -1e-9, float("nan"), float("inf"), float("-inf")])
def test_impossible_numbers(given):
    with pytest.raises(ValueError, match=r"grace=.* is not a finite, non-negative number of seconds"):
        checked_timeout(given, "grace")


def test_a_single_wait_never_overflows_the_system_call():
    deadline = Deadline(1e12)
    assert not deadline.passed
    assert deadline.remaining() == 24 * 3600


def test_a_passed_deadline():
    deadline = Deadline(0)
    assert deadline.passed
    assert deadline.remaining() == 0
