"""Random processes and ends, and strangers that get the numbers: what is ours is ended, nobody else is signalled."""

import json

import process_numbers
import pytest

ROUNDS = 200


@pytest.mark.skipif(not process_numbers.can_be_chosen(), reason="process numbers can only be chosen by root on Linux")
def test_strangers_with_our_numbers(application, short_folder):
    seen = application("reuse_rounds", short_folder, 1, ROUNDS, within="namespace").answer(within=300)
    print(json.dumps(seen["counts"], sort_keys=True))
    assert seen["wrong"] == []
    strangers = sum(count for what, count in seen["counts"].items() if what.startswith("stranger: "))
    assert strangers > ROUNDS / 4, f"the numbers were hardly ever given again: {seen['counts']}"
