"""The plugin's lines in vLLM's log.

From 0.31 on vLLM sets its logging up after it has loaded the plugins in some processes. What is said before is lost, so
the line waits there for the first record of one of vLLM's own loggers that can be seen.
"""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("vllm.fastutils")

# One of them speaks early in each process whose logging is set up late: in the server's parent, in LLM's process.
_AWAITED = ("vllm.v1.utils", "vllm.v1.engine.core", "vllm.v1.engine.llm_engine")

_waiting: list[str] = []


def say(text: str) -> None:
    """Log `text` at level INFO, at once or as soon as somebody listens."""
    if LOGGER.hasHandlers():
        LOGGER.info("%s", text)
        return
    if not _waiting:
        for name in _AWAITED:
            logging.getLogger(name).addFilter(_say_what_waits)
    _waiting.append(text)


def warn(text: str) -> None:
    """Log `text` at level WARNING: that reaches the standard error output even where nothing is set up."""
    LOGGER.warning("%s", text)


def _say_what_waits(record: logging.LogRecord) -> bool:
    if _waiting and LOGGER.hasHandlers():
        for name in _AWAITED:
            logging.getLogger(name).removeFilter(_say_what_waits)
        while _waiting:
            LOGGER.info("%s", _waiting.pop(0))
    return True
