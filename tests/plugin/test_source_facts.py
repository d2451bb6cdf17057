"""Fingerprints: what changes behaviour changes them, and nothing else does."""

import pytest

from fastutils.plugin import source_facts

PLAIN = """
@decorated
class Thing(Base):
    field: int = 1

    def method(self, n=None):
        return self.data[:n]
"""


def of(source, name="Thing"):
    return source_facts.fingerprints(source, [name])[name]


def test_a_fingerprint_is_the_same_under_every_python():
    # Computed once and written down: the table in versions.py depends on it.
    assert of(PLAIN) == "8b4f435647f5"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Thing(Base):\n", 'class Thing(Base):\n    """A docstring."""\n'),
        ("        return", '        """A docstring."""\n        return'),
        ("field: int = 1", "field: float = 1  # a comment"),
        ("n=None)", "n: int | None = None) -> list[int]"),
        ("n=None", "n = None"),
        ("self.data[:n]", "(self.data[ : n])"),
        ("\n@decorated", "\n\n\n@decorated"),
    ],
)
def test_what_has_no_effect_does_not_count(old, new):
    assert PLAIN.count(old) == 1
    assert of(PLAIN.replace(old, new)) == of(PLAIN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@decorated\n", ""),
        ("(Base)", "(Other)"),
        ("= 1", "= 2"),
        ("= 1", "= 1.0"),
        ("n=None", "m=None"),
        ("n=None", "n=0"),
        ("n=None", "*, n=None"),
        ("[:n]", "[n:]"),
        ("        return", "        return self"),
        ("        return", '        "effect"; "no docstring"\n        return'),
        ("    field: int = 1\n", ""),
    ],
)
def test_what_has_an_effect_counts(old, new):
    assert PLAIN.count(old) == 1
    text = PLAIN.replace(old, new) if new != "        return self" else PLAIN.replace("self.data[:n]", "self")
    assert of(text) != of(PLAIN)


def test_of_several_definitions_the_last_counts():
    assert of("def Thing():\n    return 1\n" + PLAIN) == of(PLAIN)


def test_missing_names_are_left_out():
    assert source_facts.fingerprints(PLAIN, ["Absent"]) == {}
