"""The plugin and the vLLM that is installed: all known forms, no binding left out, everything put back."""

import json

import pytest

from fastutils.plugin import versions

PROGRAM = """
import gc, importlib, json, sys
import vllm.v1.utils as utils
from fastutils import plugin
from fastutils.plugin import versions

for name in ("request", "core.sched.scheduler", "core.kv_cache_utils", "serial_utils", "engine.core", "engine.utils",
             "engine.coordinator", "engine.llm_engine", "worker.gpu_input_batch", "worker.block_table",
             "worker.gpu_model_runner", "worker.cpu_model_runner", "worker.gpu_worker"):
    importlib.import_module(f"vllm.v1.{name}")
importlib.import_module("vllm.entrypoints.cli.serve")

def bindings():
    names = [name for name in sys.modules if name.partition(".")[0] == "vllm"]
    return {name: dict(vars(sys.modules[name])) for name in names}

def is_annotations(holder):
    owners = [vars(owner) if isinstance(owner, type) else owner for owner in gc.get_referrers(holder)]
    return any(
        (owner if isinstance(owner, dict) else {"__annotations__": getattr(owner, "__annotations__", None)}).get(
            "__annotations__") is holder
        for owner in owners
    )

originals = {name: getattr(utils, name) for name in versions.FORMS}
before = bindings()
report = plugin.install()
left = []
for name in report.served:
    # Whatever still leads to upstream's object: a module's globals, a class's attributes, another function's closure.
    for holder in gc.get_referrers(originals[name]):
        if not isinstance(holder, dict) or holder is originals or any(holder is names for names in before.values()):
            continue
        if not is_annotations(holder):
            left.append([name, str(holder.get("__name__"))])
places = {row.name: row.places for row in report.rows}
plugin.uninstall()
after = bindings()
changed = [
    [module, name] for module, names in before.items() for name, value in names.items()
    if after[module].get(name) is not value
]
print("RESULT " + json.dumps({"served": report.served, "warnings": report.warnings, "version": report.vllm_version,
                              "reasons": {row.name: row.reason for row in report.rows}, "left": left,
                              "places": places, "changed": changed}))
"""


@pytest.fixture(scope="module")
def result(python):
    (line,) = [line for line in python("-c", PROGRAM).splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def test_every_form_is_known(result):
    version = versions.public_part(result["version"])
    assert version in versions.CHECKED
    assert result["warnings"] == []
    for name in versions.FORMS:
        form = versions.form_in(name, version)
        assert (name in result["served"]) == (form.variant is not None), result["reasons"][name]
        if form.variant is None:
            assert result["reasons"][name] == form.why_not


def test_no_binding_is_left_out(result):
    assert result["left"] == []
    for name in ("ConstantList", "copy_slice", "tensor_data", "report_usage_stats", "compute_iteration_details"):
        assert result["places"][name] >= 2, name
    for name in ("CpuGpuBuffer", "record_function_or_nullcontext", "shutdown", "get_engine_client_zmq_addr"):
        assert result["places"][name] >= 3, name


def test_uninstall_puts_everything_back(result):
    assert result["changed"] == []


@pytest.mark.parametrize(("allowed", "loaded"), [("another", False), ("another,fastutils", True)])
def test_vllms_own_list_of_plugins_is_respected(python, allowed, loaded):
    program = (
        "import vllm.v1.utils as utils\n"
        "originals = [utils.copy_slice]\n"
        "from vllm.plugins import load_general_plugins\n"
        "load_general_plugins()\n"
        "print('RESULT', utils.copy_slice is not originals[0])"
    )
    assert f"RESULT {loaded}\n" in python("-c", program, VLLM_PLUGINS=allowed)
