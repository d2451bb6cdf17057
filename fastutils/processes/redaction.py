"""Keeps credentials out of log lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

REDACTED = "***"

# Hidden whatever the value is, and hidden where the value is text (max_num_batched_tokens=8192 is no secret).
_SECRET_WORDS = frozenset({"password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials"})
_SECRET_TEXT_WORDS = frozenset({"key", "keys", "apikey", "apikeys", "token", "tokens", "authorization", "watermark"})

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_URL_LOGIN = re.compile(r"(\w[\w+.-]*://)[^/@\s]+@")
_URL_PARAMETER = re.compile(
    r"((?:[?&;]|--?)[^=&;\s]*(?:key|token|secret|password|passwd|signature|sig|credential)[^=&;\s]*=)[^&;#\s]*", re.I
)
_AUTHORIZATION = re.compile(r"\b(bearer|basic)(\s+)\S+", re.I)


def redact(value: Any, name: str = "") -> Any:
    """A copy of the JSON-like `value` whose secrets are replaced by ``***``: those that a name gives away (api_key,
    hf_token, password, ...), in nested mappings too, and credentials within URLs and authorization headers.
    """
    words = {word.lower() for word in _WORD.findall(name)}
    if words & _SECRET_WORDS and value is not None:
        return REDACTED
    if words & _SECRET_TEXT_WORDS and _has_text(value):
        return REDACTED
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        # Within a command line the name stands before the value.
        names = ["", *(item if isinstance(item, str) and item.startswith("-") else "" for item in value)]
        return [redact(item, option) for item, option in zip(value, names, strict=False)]
    return _redact_text(value) if isinstance(value, str) else value


def _has_text(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_text, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_text, value))
    return isinstance(value, (str, bytes)) and len(value) > 0


def _redact_text(text: str) -> str:
    if text[:1] in ("{", "["):  # an argument that is JSON itself
        try:
            return json.dumps(redact(json.loads(text)))
        except ValueError:
            pass
    text = _URL_LOGIN.sub(rf"\1{REDACTED}@", text)
    text = _URL_PARAMETER.sub(rf"\1{REDACTED}", text)
    return _AUTHORIZATION.sub(rf"\1\2{REDACTED}", text)
