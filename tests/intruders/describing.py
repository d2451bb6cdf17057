"""Outcomes and objects, told so that those of both forms can be compared."""

import re
import sys

from intruders.door import Token

ADDRESS = re.compile(r"0x[0-9a-f]+")
PLAIN = (type(None), bool, int, float, str, bytes, type(...), type(NotImplemented))


def tell(thing, depth=4):
    """`thing` by its content; of what has none, the kind."""
    kind = type(thing)
    if kind in PLAIN:
        return thing
    if isinstance(thing, Token):
        return f"<{thing.name}>"
    if depth == 0:
        return "..."
    if kind in (list, tuple):
        return [kind.__name__, *(tell(item, depth - 1) for item in list(thing))]
    if kind is dict:
        return ["dict", *([tell(key, depth - 1), tell(value, depth - 1)] for key, value in list(thing.items()))]
    if kind in (set, frozenset):
        return [kind.__name__, *sorted(map(str, (tell(item, depth - 1) for item in list(thing))))]
    if isinstance(thing, BaseException):
        return tell_error(thing)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.Tensor):
        return tell_tensor(torch, thing)
    if kind is memoryview:
        return ["memoryview", thing.format, thing.shape, thing.readonly, bytes(thing)]
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, numpy.ndarray):
        return ["array", str(thing.dtype), thing.tolist()]
    if "ConstantList" in (base.__name__ for base in kind.__mro__):
        return ["view", kind.__name__, tell(read(thing, "_x"), depth - 1)]
    if kind.__name__ == "IterationDetails":
        return repr(thing)
    return f"a {kind.__name__}"


def tell_error(error):
    if isinstance(error, RecursionError):
        return ["RecursionError"]  # whoever notices it words it
    return [type(error).__name__, ADDRESS.sub("0x", str(error).split("\n")[0])]


def tell_tensor(torch, tensor):
    with torch.no_grad():
        try:
            values = torch.Tensor.detach(tensor).tolist()
        except Exception as error:  # some have no values to tell
            values = tell_error(error)
        return [type(tensor).__name__, str(tensor.dtype), list(tensor.shape), values, tensor._is_view()]


def read(thing, name):
    """The attribute, or the error that says why there is none."""
    try:
        return getattr(thing, name)
    except Exception as error:
        return error
