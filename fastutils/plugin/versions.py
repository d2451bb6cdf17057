"""Which helpers are served in which vLLM: the one table that says so.

What decides is the fingerprint of the helper in the vLLM that runs (see `source_facts`), not its version number: it is
as right for a development build, a patched installation or a version that is not out yet. The version numbers are for
people.

To add a version: ``python -m fastutils vllm --fingerprints`` under it, then a row for each fingerprint that is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: The versions whose source was compared with ours.
CHECKED = ("0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


@dataclass(frozen=True)
class Form:
    """One form that a helper has had upstream, from version `since` on."""

    since: str
    fingerprint: str
    variant: str | None = "as it is"  #: a key of `variants.VARIANTS`; None: upstream's own object stays
    why_not: str = ""  #: for people, if it is left alone


_LOG_SETUP = "from 0.31 on it sets up the logging that the command line asks for, which ours does not"

FORMS: dict[str, tuple[Form, ...]] = {
    "ConstantList": (Form("0.25.0", "b529f001114b"),),
    "CpuGpuBuffer": (
        Form("0.25.0", "d399240c1da9", "buffer"),
        Form("0.30.0", "326e6d527f8e", "buffer that stages"),
    ),
    "get_engine_client_zmq_addr": (Form("0.25.0", "27ac2ff54505"),),
    "APIServerProcessManager": (
        Form("0.25.0", "dac680ef1952", "called as there"),
        Form("0.30.0", "6bf741788cfc", "called as there"),  # shares admission counters
        Form("0.32.0", "f0b5166cfb86", "called as there"),  # takes bound sockets
    ),
    "run_api_server_worker_proc": (
        Form("0.25.0", "256417207f14"),
        Form("0.29.0", "0819674dfbc0"),
        Form("0.31.0", "d1d7bb70206f", None, _LOG_SETUP),
    ),
    "RustFrontendProcessManager": (
        Form("0.25.0", "044e838bdad4", "called as there"),
        Form("0.28.0", "d0c8520bd780", "called as there"),  # takes data_parallel_size
        Form("0.29.0", "72347769e876", "called as there"),
        Form("0.32.0", "b49a2315a92b", "called as there"),  # takes bound sockets
        Form("0.33.0", "65a0a84dd36f", "called as there"),
    ),
    "wait_for_completion_or_failure": (Form("0.25.0", "8a8d39084fbc"),),
    "shutdown": (Form("0.25.0", "a204eb6e41ba"), Form("0.27.0", "b550a4bfd16e")),
    "copy_slice": (Form("0.25.0", "6b517fa733c7"),),
    "report_usage_stats": (Form("0.25.0", "c3a42541b9c0"),),
    "record_function_or_nullcontext": (Form("0.25.0", "eb6f4deb579b"),),
    "tensor_data": (Form("0.25.0", "44871d1f2e45"),),
    "IterationDetails": (Form("0.25.0", "3d774feb8cf9"), Form("0.26.0", "fc34a65cc052", "encoder counts")),
    "compute_iteration_details": (
        Form("0.25.0", "c072fb287ed6"),
        Form("0.26.0", "a4ff6feabcf3", "encoder counts"),
    ),
}

#: Served together or not at all: the one returns instances of the other.
PAIRS = (("IterationDetails", "compute_iteration_details"),)


def public_part(version: str) -> str:
    """`version` without its local part: ``0.32.0+cpu`` is vLLM 0.32.0."""
    return version.partition("+")[0]


def is_checked(version: str) -> bool:
    return public_part(version) in CHECKED


def form_of(name: str, fingerprint: str) -> Form | None:
    """The known form of the helper `name` with this fingerprint."""
    return next((form for form in FORMS[name] if form.fingerprint == fingerprint), None)


def form_in(name: str, version: str) -> Form:
    """The form that the helper `name` has in the checked `version`."""
    position = CHECKED.index(version)
    return next(form for form in reversed(FORMS[name]) if CHECKED.index(form.since) <= position)


def table() -> Iterator[str]:
    """The table of supported versions as lines of Markdown, one column per minor version."""
    minors: dict[str, str] = {}
    for version in CHECKED:
        minors[version.rpartition(".")[0]] = version
    yield f"| helper | {' | '.join(minors)} |"
    yield f"|---|{'---|' * len(minors)}"
    notes: dict[str, str] = {}
    for name in FORMS:
        cells = []
        for version in minors.values():
            form = form_in(name, version)
            cells.append("ours" if form.variant else "vLLM's")
            if not form.variant:
                notes.setdefault(f"`{name}`: {form.why_not}", "")
        yield f"| `{name}` | {' | '.join(cells)} |"
    yield ""
    for note in notes:
        yield f"- {note}"
