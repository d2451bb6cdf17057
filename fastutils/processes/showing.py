"""How error messages show a value that somebody passed."""

from __future__ import annotations

from collections.abc import Mapping

_LONGEST_TEXT = 200


def shown(value: object) -> str:
    """Text and numbers as they are (200 characters of them), of a mapping the keys, of anything else only the type.

    What was passed by mistake is likely to be something whole: the arguments, or a configuration. Its values belong
    neither into a message nor into the log that the message ends up in.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return f"{value!r:.{_LONGEST_TEXT}}"
    kind = f"of type {type(value).__name__}"
    if isinstance(value, Mapping):
        return f"something {kind} with the keys {[key for key in value if isinstance(key, str)]!r:.{_LONGEST_TEXT}}"
    return f"something {kind}"
