"""Whatever happens in the middle of a call, and wherever it gets in, ends as it does in the Python form.

The combinations, some thousands for each block, are in `intruders`. A block runs in a process of its own: what crashes
or hangs is a failure with the name of the combination that it happened in.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import implementations
import pytest
from intruders.blocks import BLOCKS

#: After a crash the block goes on behind it, so that one fault does not hide the others: so often.
MOST_CRASHES = 10

#: Since Python 3.11 an instruction that specialises itself leaves the exception of a key's comparison behind
#: (`matrix.LEFT_BEHIND`). A debug build ends the process where it finds that, in the next instruction to specialise.
INTERPRETERS_OWN = re.compile(r"_Py_Specialize_\w+: Assertion `!PyErr_Occurred\(\)' failed")


def names_of(block):
    module, _ = BLOCKS[block]
    return {
        "views": "ConstantList",
        "scopes": "record_function_or_nullcontext",
        "data": "tensor_data",
        "staging": "StagingGroup",
    }.get(module, "compute_iteration_details" if module == "steps" else "copy_slice")


def carry_out(block):
    """(combinations, what went wrong) of a block."""
    wrong, combinations, after = [], 0, ""
    path = [str(Path(__file__).parent), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    while len(wrong) < MOST_CRASHES:
        done = subprocess.run(
            [sys.executable, "-m", "intruders", block, after], env=environment, capture_output=True, text=True
        )
        cases = re.findall("^case: (.*)$", done.stdout, re.MULTILINE)
        wrong += re.findall(r"^(FAILED: .*(?:\n    .*)*)", done.stdout, re.MULTILINE)
        counted = re.search(r"^combinations: (\d+).*$", done.stdout, re.MULTILINE)
        if counted:
            print(counted[0])
            combinations += int(counted[1])
            break
        last = cases[-1] if cases else "none"
        if cases and INTERPRETERS_OWN.search(done.stderr):
            combinations, after = combinations + len(cases), last
            continue
        ended = signal.Signals(-done.returncode).name if done.returncode < 0 else f"code {done.returncode}"
        wrong.append(f"{ended} in the case: {last}\n{done.stderr[-3000:]}")
        combinations += len(cases)
        after = last
        if not cases:
            break
    return combinations, wrong


@pytest.mark.parametrize("block", BLOCKS)
def test_block(block):
    implementations.load(names_of(block), "compiled")
    combinations, wrong = carry_out(block)
    assert not wrong, f"{len(wrong)} combinations went wrong:\n" + "\n".join(wrong)
    assert combinations >= BLOCKS[block][1]


# ---- the test of the test -----------------------------------------------------------------------------------------

FAULTY = """
import ctypes
from intruders.matrix import Block
from intruders.world import World

class Faulty(World):
    def __init__(self, form):
        self.form, self.items = form, [1, 2, 3]

    def state(self):
        return self.get("items")

def first(world):
    class Key:
        def __index__(self):
            world.index_door()
            return 0
    if world.form == "python" or len(world.items) != 3:
        return world.items[Key()]
    item = world.items[0]  # read before code runs: what is wrong with a naive fast path
    Key().__index__()
    return item

def crash(world):
    first(world)
    if world.form == "compiled" and not world.items:
        ctypes.string_at(0)

import contextlib

@contextlib.contextmanager
def index(world, door):
    world.index_door = door
    yield

ACTS = {"replaces": lambda world: world.items.__setitem__(0, 9), "clears": lambda world: world.items.clear()}
BLOCKS = [
    Block(name="stale", make=Faulty, entries={"first": first}, acts=ACTS, strict={"__index__": index}, anywhere={}),
    Block(name="crashing", make=Faulty, entries={"crash": crash}, acts=ACTS, strict={"__index__": index}, anywhere={}),
]
"""


@pytest.mark.parametrize(
    ("block", "words"),
    [("stale", "stale | first | __index__ | replaces"), ("crashing", "crashing | crash | __index__ | clears")],
)
def test_a_faulty_helper_is_found_and_named(block, words, tmp_path, monkeypatch):
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; import faulty; sys.modules['intruders.faulty'] = faulty\n"
        f"from intruders import blocks; blocks.BLOCKS[{block!r}] = ('faulty', 1)\n"
    )
    monkeypatch.setitem(BLOCKS, block, ("faulty", 1))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    _, wrong = carry_out(block)
    assert any(words in each for each in wrong), wrong
    assert any(f"{block} | " in each for each in wrong)
