"""``FASTUTILS_VLLM``: all helpers, none, or those that it names. ``FASTUTILS_VLLM_GUARD_ENGINES`` and
``FASTUTILS_VLLM_STAGED``: yes or no.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from fastutils.plugin import versions

VARIABLE = "FASTUTILS_VLLM"
GUARD_VARIABLE = "FASTUTILS_VLLM_GUARD_ENGINES"
STAGED_VARIABLE = "FASTUTILS_VLLM_STAGED"


def wanted(text: str | None = None) -> frozenset[str]:
    """The helpers that `text` (default: ``FASTUTILS_VLLM``) asks for.

    Empty, unset, ``1`` or ``all``: all of them; ``0`` or ``off``: none; else names with commas or spaces between.
    ValueError for a name that is no helper.
    """
    text = os.environ.get(VARIABLE, "") if text is None else text
    words = text.replace(",", " ").split()
    if not words or words in (["1"], ["all"]):
        return frozenset(versions.FORMS)
    if words in (["0"], ["off"]):
        return frozenset()
    return named(words, f"{VARIABLE}={text!r}")


def named(names: Iterable[str], origin: str = "names") -> frozenset[str]:
    """`names` and what goes with them. ValueError for a name that is no helper; `origin` says where it stood."""
    chosen = set(names)
    unknown = sorted(chosen - set(versions.FORMS))
    if unknown:
        raise ValueError(
            f"{origin}: {', '.join(unknown)} is no helper of vllm.v1.utils that fastutils has; "
            f"choose from {', '.join(versions.FORMS)}, or 0 for none"
        )
    for pair in versions.PAIRS:
        if chosen.intersection(pair):
            chosen.update(pair)
    return frozenset(chosen)


def guards_engines(text: str | None = None) -> bool:
    """Whether `text` (default: ``FASTUTILS_VLLM_GUARD_ENGINES``) asks for engines that end with their parent.

    ``1`` or ``on``: yes; empty, unset, ``0`` or ``off``: no. ValueError for anything else.
    """
    return _is_on(GUARD_VARIABLE, text)


def stages_buffers(text: str | None = None) -> bool:
    """Whether `text` (default: ``FASTUTILS_VLLM_STAGED``) asks for buffers that are staged.

    ``1`` or ``on``: yes; empty, unset, ``0`` or ``off``: no. ValueError for anything else.
    """
    return _is_on(STAGED_VARIABLE, text)


def _is_on(variable: str, text: str | None) -> bool:
    text = os.environ.get(variable, "") if text is None else text
    words = text.split()
    if words in (["1"], ["on"]):
        return True
    if not words or words in (["0"], ["off"]):
        return False
    raise ValueError(f"{variable}={text!r} is neither 1 (on) nor 0 (off)")
