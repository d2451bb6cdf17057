"""The table of versions, in itself and in the README."""

from pathlib import Path

import pytest

import fastutils
from fastutils.plugin import variants, versions


def test_it_names_upstreams_helpers_in_upstreams_order():
    assert list(versions.FORMS) == fastutils.__all__[: len(versions.FORMS)]


@pytest.mark.parametrize("name", versions.FORMS)
def test_each_row_is_sound(name):
    forms = versions.FORMS[name]
    assert forms[0].since == versions.CHECKED[0]
    positions = [versions.CHECKED.index(form.since) for form in forms]
    assert positions == sorted(set(positions))
    assert len({form.fingerprint for form in forms}) == len(forms)
    for form in forms:
        assert form.variant is None or form.variant in variants.VARIANTS
        assert bool(form.why_not) == (form.variant is None)


def test_what_changed_when():
    assert versions.form_in("CpuGpuBuffer", "0.29.0").variant == "buffer"
    assert versions.form_in("CpuGpuBuffer", "0.30.0").variant == "buffer that stages"
    assert versions.form_in("IterationDetails", "0.25.1").variant == "as it is"
    assert versions.form_in("compute_iteration_details", "0.33.0").variant == "encoder counts"


@pytest.mark.parametrize(
    ("version", "checked"),
    [("0.25.1", True), ("0.32.0+cpu", True), ("0.34.0", False), ("0.26.1.dev3+gabc", False), ("", False)],
)
def test_which_versions_are_checked(version, checked):
    assert versions.is_checked(version) is checked


def test_the_table_of_the_readme_is_the_codes():
    readme = Path(fastutils.__file__).parent.parent / "README.md"
    if not readme.exists():
        pytest.skip("an installed package has no README beside it")
    table = "\n".join(versions.table())
    assert table in readme.read_text(encoding="utf-8"), f"the README needs this table:\n{table}"
