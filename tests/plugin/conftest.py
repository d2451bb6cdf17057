"""A fake vLLM for each test, and a plugin that has not been loaded yet."""

import importlib
import sys

import fake_vllm
import pytest

from fastutils import _host, plugin
from fastutils.plugin import source_facts, versions
from fastutils.plugin.report import Report


def forget_vllm():
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def fresh_plugin(monkeypatch):
    """The plugin as a new process finds it, and no vLLM before or after the test."""
    monkeypatch.delenv("FASTUTILS_VLLM", raising=False)
    monkeypatch.delenv("FASTUTILS_VLLM_STAGED", raising=False)
    forget_vllm()
    monkeypatch.setattr(plugin, "_report", Report(note="not loaded"))
    monkeypatch.setattr(plugin, "_told", None)
    assert plugin._bindings == []
    yield
    plugin.uninstall()
    assert _host.stood_in_for is None
    forget_vllm()


@pytest.fixture
def known_forms(monkeypatch):
    """Call it with a helper module's source, and its helpers are known in the forms of the given version."""

    def learn(utils, like="0.25.1"):
        found = source_facts.fingerprints(utils, versions.FORMS)
        forms = {}
        for name in versions.FORMS:
            form = versions.form_in(name, like)
            forms[name] = (versions.Form(form.since, found.get(name, "missing"), form.variant, form.why_not),)
        monkeypatch.setattr(versions, "FORMS", forms)

    return learn


@pytest.fixture
def vllm_tree(tmp_path, monkeypatch, fresh_plugin, known_forms):
    """Call it to put a fake vLLM on the path; returns a function that imports one of its modules."""

    def make(version="0.25.1", utils=fake_vllm.UTILS, known=True):
        if known:
            known_forms(utils, version if version in versions.CHECKED else "0.25.1")
        monkeypatch.syspath_prepend(fake_vllm.write(tmp_path / "site", version, utils))
        return lambda name: importlib.import_module(f"vllm.v1.{name}")

    return make
