"""``python -m fastutils vllm``: what the plugin does in this environment, without starting an engine."""

from __future__ import annotations

from collections.abc import Iterator

import fastutils.plugin as plugin
from fastutils.plugin import source_facts, versions


def report() -> Iterator[str]:
    """The report of an installation in this process, line by line. It imports vLLM, which takes some seconds."""
    yield from plugin.install().lines()


def fingerprints() -> Iterator[str]:
    """The fingerprint of each helper of the installed vLLM, and what is known about it."""
    import importlib

    source = source_facts.source_of(importlib.import_module(plugin.UPSTREAM))
    if source is None:
        raise SystemExit(f"the source of {plugin.UPSTREAM} is not there")
    for name, found in source_facts.fingerprints(source, versions.FORMS).items():
        form = versions.form_of(name, found)
        yield f"{name:<32} {found}  {f'as in {form.since}' if form else 'NOT KNOWN'}"
