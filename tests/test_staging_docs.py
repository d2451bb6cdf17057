"""What the documents say about staging: the drawing is its script's, and the examples do what is said."""

import os
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

import fastutils

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "staging.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documents are not beside these tests")


def block(path, language, containing):
    found = re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    (text,) = [text for text in found if containing in text]
    return text


def run(*arguments):
    package = os.path.dirname(os.path.dirname(fastutils.__file__))
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_drawing_is_what_its_script_draws():
    draw = runpy.run_path(str(ROOT / "scripts" / "draw-staging.py"))["draw"]
    assert (ROOT / "docs" / "staging.svg").read_bytes() == draw().encode()


def test_the_readmes_example_prints_what_it_says():
    text = block(ROOT / "README.md", "python", "StagingGroup(")
    (said,) = re.findall(r"print\(.*\)  # (.*)", text)
    printed = run("-W", "error", "-c", text).strip()
    assert re.sub(r", device='cuda:0'", "", printed) == said


class Event:
    """Of a stream that never lags."""

    def record(self):
        self.recorded = True

    def synchronize(self):
        pass


@pytest.mark.parametrize("side", ["-", "+"])
def test_the_runner_works_before_and_after_it_adopts_staging(side, monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    lines = block(PAGE, "diff", "class Runner:").splitlines()
    source = "\n".join(line[1:] for line in lines if line[:1] in ("", " ", side))
    namespace = {}
    exec(compile(source, f"the runner, {side}", "exec"), namespace)

    class Runner(namespace["Runner"]):
        def fill(self, batch):
            self.input_ids.np[: batch.tokens] = range(batch.tokens)
            self.block_table.np[: batch.requests] = 7
            self.query_start_loc.np[:] = 1

    runner = Runner(16, 4, 2, torch.device("cpu"))
    runner.prepare(types.SimpleNamespace(tokens=5, requests=3))
    assert runner.input_ids.gpu.tolist() == [0, 1, 2, 3, 4, *[0] * 11]
    assert runner.block_table.gpu.tolist() == [[7, 7]] * 3 + [[0, 0]]
    assert runner.query_start_loc.gpu.tolist() == [1] * 5
    if side == "+":
        assert runner.inputs.stats().flushes == 1
    else:
        assert runner.copied.recorded


def test_the_padding_that_is_worth_a_call_is_that_of_the_costs():
    from fastutils.tensors.staging.costs import DEFAULT, DEFAULTS, rules_of

    text = PAGE.read_text(encoding="utf-8")
    for link, costs in DEFAULTS.items():
        assumed = " (what `auto` assumes)" if costs is DEFAULT else ""
        worth = rules_of("auto", costs).gap / 1000
        assert f"| {link}{assumed} | {costs.call_ns} ns | {costs.kb_ns} ns | {worth:.0f} KB |" in text


@pytest.mark.parametrize("arguments", [[], ["--steps", "3", "--requests", "1", "--ahead", "0"]])
def test_the_example_computes_with_the_inputs_of_each_step(arguments):
    lines = run(ROOT / "examples" / "staging.py", "--device", "cpu", *arguments).splitlines()
    steps = arguments[1] if arguments else "200"
    assert lines[0] == f"{steps} steps on cpu, 0 of them wrong"
    assert lines[1].startswith(f"{steps} flushes in ")
    assert len(lines) == 2


def test_every_page_that_is_linked_is_there():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
