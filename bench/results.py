"""What a run of the cases found, as a document: what ``--json`` writes, and what every table and plot is made of.

``document["cases"]`` holds one entry for each case: its facts (id, group, helper, target, star, family), ``correct``,
and either an ``error`` or the numbers of its verdict. ``unsettled`` says why those of ``parallel`` cases mean nothing,
if they do not. ``first`` and ``memory`` hold the entries of those two tables.
"""

from __future__ import annotations

import json
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.cases.model import Case
from bench.memory import Bytes
from bench.paired import Verdict

FORMAT = 1


class Unreadable(ValueError):
    """A file is no result of this benchmark, or of another format."""


@dataclass(frozen=True)
class Measured:
    """A case with its verdict, or with the reason why there is none."""

    case: Case
    verdict: Verdict | None
    error: str = ""

    @property
    def met(self) -> str:
        if self.verdict is None or self.case.target is None:
            return ""
        return self.case.target.judge(self.verdict)

    @property
    def wrong(self) -> bool:
        """Whether the case has no number because it is incorrect, or cannot tell."""
        return self.error.startswith(("INCORRECT", "REFUSED"))

    def entry(self) -> dict[str, Any]:
        case = self.case
        return {
            "id": case.id,
            "group": case.group,
            "helper": case.helper,
            "target": None if case.target is None else str(case.target),
            "met": self.met or None,
            "note": case.note or None,
            "star": case.star or None,
            "same_path": case.same_path,
            "parallel": case.parallel,
            "peer": None if case.peer is None else case.peer.name,
            "family": None if case.family is None else asdict(case.family),
            "correct": True if self.verdict is not None else False if self.wrong else None,
            "error": self.error or None,
            **({} if self.verdict is None else asdict(self.verdict)),
        }


def first_entry(name: str, verdict: Verdict) -> dict[str, Any]:
    return {"id": name, **asdict(verdict)}


def memory_entry(name: str, upstream: Bytes, ours: Bytes) -> dict[str, Any]:
    return {"id": name, "upstream": asdict(upstream), "ours": asdict(ours)}


def write(document: dict[str, Any], path: str | Path) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": FORMAT, **document}, indent=1) + "\n", encoding="utf-8")


def read(path: str | Path) -> dict[str, Any]:
    """The document in the file `path`; Unreadable says what is wrong with it."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict) or "cases" not in document:
        raise Unreadable(f"{path} is no result of python -m bench.micro --json")
    if document.get("format") != FORMAT:
        raise Unreadable(f"{path} has format {document.get('format')!r}, this benchmark reads {FORMAT}")
    return document


def machine_name(environment: dict[str, Any]) -> str:
    """A name for files: processor and interpreter, no host name."""
    words = f"{environment['CPU']} {environment['interpreter'].split(',')[0]} {platform.machine()}".lower()
    return re.sub(r"[^a-z0-9.]+", "-", words).strip("-")
