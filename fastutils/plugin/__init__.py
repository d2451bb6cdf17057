"""fastutils inside a running vLLM: the plugin that puts our helpers in the place of those of ``vllm.v1.utils``.

vLLM finds it by its entry point and calls `load` in every process that it starts. ``FASTUTILS_VLLM`` (see `switch`) and
vLLM's own ``VLLM_PLUGINS`` switch it off or down; ``FASTUTILS_VLLM_STAGED`` has vLLM's buffers staged. Whatever goes
wrong, vLLM keeps its own helper and the log says why: no engine may fail to start over a speed-up.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastutils import _host, _select
from fastutils.plugin import announcing, engines, rebinding, switch, versions
from fastutils.plugin.offers import Offer, all_offers
from fastutils.plugin.report import Report, Row

__all__ = ["Report", "Row", "install", "load", "status", "uninstall"]

UPSTREAM = "vllm.v1.utils"
_DISTRIBUTION = "vllm-fastutils"

_lock = threading.RLock()
_report = Report(note="the plugin has not been loaded in this process")
_bindings: list[rebinding.Binding] = []
_told: tuple[int, str] | None = None


def load() -> None:
    """vLLM's entry point: `install`, and guard engines (see `engines`), as the environment asks for. Never raises; a
    second call does nothing.
    """
    try:
        install()
    except Exception:
        announcing.LOGGER.exception("fastutils could not be installed; vLLM's own helpers serve")
    engines.guard_as_asked()


def install(names: Iterable[str] | None = None) -> Report:
    """Put our helpers in the place of vLLM's, in ``vllm.v1.utils`` and in every module that has them from there.

    `names`: which ones; by default ``FASTUTILS_VLLM`` decides. One that this vLLM has in a form that we do not know,
    that somebody else has replaced, or of which instances exist already, is left alone. Imports ``vllm.v1.utils`` if
    need be. Logs one INFO line, and warnings for what an operator should know. While installed, further calls only
    return the report of the first.

    Install before an engine is made in this process: afterwards, classes that are in use stay vLLM's.

    Raises ValueError for unknown `names`. Every other trouble ends in a report whose `note` says what it was.
    """
    global _report, _bindings
    with _lock:
        if _bindings:
            return _report
        if names is not None:
            chosen = switch.named(names)
        else:
            try:
                chosen = switch.wanted()
            except ValueError as error:
                return _decline(str(error), trouble=True)
        if not chosen:
            return _decline(f"{switch.VARIABLE} switches it off" if names is None else "no names were given")
        try:
            _report, _bindings = _replace(chosen)
        except Exception as error:
            announcing.LOGGER.debug("fastutils could not be installed", exc_info=True)
            return _decline(f"{type(error).__name__}: {error}", trouble=True)
        _tell(_report)
        return _report


def uninstall() -> Report:
    """Put vLLM's own helpers back wherever `install` had replaced them. Does nothing if it had not.

    Modules of vLLM that were imported meanwhile get them too. What somebody else has changed since stays as it is and
    is logged. Objects that were made of our classes live on, and are no instances of vLLM's: uninstall when no engine
    runs. Engines are not guarded any more.
    """
    global _report, _bindings
    with _lock:
        engines.stop()
        if _bindings:
            for binding in rebinding.restore(_bindings):
                announcing.LOGGER.warning(
                    "%s.%s holds something else by now and stays so", binding.module, binding.name
                )
            rebinding.rebind([(binding.now, binding.before) for binding in _bindings], package="vllm")
            _bindings = []
            _host.stood_in_for = None
            _report = Report(note="the plugin was uninstalled in this process")
        return _report


def status() -> Report:
    """What was done in this process; does nothing."""
    return _report


def _decline(note: str, trouble: bool = False) -> Report:
    global _report
    _report = Report(note=note, trouble=trouble)
    _tell(_report)
    return _report


def _replace(chosen: frozenset[str]) -> tuple[Report, list[rebinding.Binding]]:
    upstream = importlib.import_module(UPSTREAM)
    version = str(getattr(importlib.import_module("vllm"), "__version__", "of unknown version"))
    staged, not_staged = _staged_as_asked()
    offers = all_offers(upstream, chosen, staged)
    are_staged = any(offer.staged for offer in offers)
    if staged and not are_staged:
        (not_staged,) = [f"CpuGpuBuffer is vLLM's own: {o.reason}" for o in offers if o.name == "CpuGpuBuffer"]
    warnings = tuple(_warnings(version, offers))
    if not_staged:
        warnings += (f"buffers are not staged: {not_staged}",)
    bindings = rebinding.rebind((offer.upstream, offer.ours) for offer in offers if offer.stands)
    if bindings:
        _host.stood_in_for = upstream
    places = [binding.before for binding in bindings]
    rows = tuple(
        Row(offer.name, offer.reason, sum(before is offer.upstream for before in places) if offer.stands else 0)
        for offer in offers
    )
    return Report(version, rows, warnings=warnings, staged=are_staged), bindings


def _staged_as_asked() -> tuple[bool, str]:
    """Whether buffers are to be staged; and if that is asked for and cannot be, why."""
    try:
        if not switch.stages_buffers():
            return False, ""
        # Now, not at the engine's first buffer.
        importlib.import_module(_select.choose("CpuGpuBuffer").value._staging_module)
    except Exception as error:
        return False, str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return True, ""


def _warnings(version: str, offers: list[Offer]) -> Iterator[str]:
    if not versions.is_checked(version):
        kept = [offer.name for offer in offers if not offer.stands]
        yield (
            f"vLLM {version} is none of the versions that this fastutils was checked with ({versions.CHECKED[0]} to "
            f"{versions.CHECKED[-1]}): it replaces the {len(offers) - len(kept)} helpers whose source has not changed "
            f"and leaves alone: {', '.join(kept) or 'none'}"
        )
    found = importlib.metadata.distributions(name=_DISTRIBUTION)
    installed = {(own.version, str(own.locate_file(""))) for own in found}
    if len({number for number, _ in installed}) > 1:
        yield (
            f"several versions of {_DISTRIBUTION} are installed: "
            f"{', '.join(f'{number} in {place}' for number, place in sorted(installed))}; the code that runs is in "
            f"{Path(_select.__file__).parent}; uninstall the others"
        )


def _tell(report: Report) -> None:
    global _told
    line = report.summary()
    if _told == (os.getpid(), line):
        return
    _told = (os.getpid(), line)
    (announcing.warn if report.trouble else announcing.say)(f"fastutils {_own_version()}: {line}")
    for warning in report.warnings:
        announcing.warn(f"fastutils: {warning}")


def _own_version() -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed as a distribution)"
