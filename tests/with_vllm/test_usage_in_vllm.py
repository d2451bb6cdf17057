"""Usage statistics: vLLM's reporter gets from ours what it gets from vLLM's own, and nothing if they are off."""

import json

import pytest

PROGRAM = """
import json, os, sys
for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"):
    os.environ[name] = sys.argv[2]
import vllm.v1.utils as utils
from vllm.engine.arg_utils import EngineArgs
from vllm.usage import usage_lib

calls = []
# In the place of what would send it.
usage_lib.usage_message.report_usage = lambda *given, **named: calls.append([repr(given), named])
originals = [utils.report_usage_stats]  # a global of its own would be replaced too
config = EngineArgs(model=sys.argv[1], enforce_eager=True, dtype="float32", max_model_len=512).create_engine_config()
from fastutils import plugin
assert "report_usage_stats" in plugin.install().served
assert utils.report_usage_stats is not originals[0]
for report in (*originals, utils.report_usage_stats):
    report(config)
    report(config, usage_lib.UsageContext.API_SERVER)
print("RESULT " + json.dumps(calls, default=repr))
"""


@pytest.fixture
def reported(python, model):
    def run(switched_off):
        (line,) = [line for line in python("-c", PROGRAM, model, switched_off).splitlines() if "RESULT " in line]
        return json.loads(line.partition("RESULT ")[2])

    return run


def test_the_reporter_gets_the_same_record(reported):
    calls = reported("0")
    assert len(calls) == 4
    assert calls[:2] == calls[2:]
    assert "LlamaForCausalLM" in calls[0][0]
    assert calls[0][1]["extra_kvs"]["max_num_seqs"] > 0


def test_nothing_is_reported_if_it_is_switched_off(reported):
    assert reported("1") == []
