"""Whether a helper of ``vllm.v1.utils`` is, to the letter that runs, one that was compared with ours before.

A helper is known by a fingerprint of its parsed source. Comments, docstrings, annotations and layout do not count, so
an edit of those keeps the fingerprint, and any edit that can change behaviour does not. Signatures alone would not do:
vLLM has changed what `CpuGpuBuffer.copy_to_gpu` does and kept how it is called.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import reprlib
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

Definition = ast.FunctionDef | ast.ClassDef

_WITHOUT_EFFECT = frozenset({"annotation", "returns", "ctx", "kind", "type_comment", "type_params"})
# The files of what the decorator of a dataclass adds to it.
_GENERATED = frozenset({"<string>", dataclasses.__file__, reprlib.__file__})


def definitions(source: str) -> dict[str, Definition]:
    """The functions and classes that `source` defines at its top level, by name; of several the last."""
    return {node.name: node for node in ast.parse(source).body if isinstance(node, Definition)}


def fingerprint(definition: Definition) -> str:
    """12 hexadecimal digits that stand for what `definition` does; the same under every supported Python."""
    return hashlib.sha256(_facts(definition).encode()).hexdigest()[:12]


def _facts(node: Any) -> str:
    if isinstance(node, list):
        return f"[{','.join(_facts(item) for item in node)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name in node._fields:
        if name not in _WITHOUT_EFFECT:
            value: Any = getattr(node, name, None)
            if name == "body" and isinstance(node, Definition) and ast.get_docstring(node, clean=False) is not None:
                value = value[1:]
            parts.append(f"{name}={_facts(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


def source_of(module: ModuleType) -> str | None:
    """The source text of `module`, None where only its bytecode is there."""
    loader = getattr(module.__spec__, "loader", None)
    get_source = getattr(loader, "get_source", None)
    if get_source is None:
        return None
    try:
        text: str | None = get_source(module.__name__)
    except (OSError, ImportError):
        return None
    return text


def why_changed(value: Any, definition: Definition, module: ModuleType) -> str | None:
    """None if `value` is what `definition` in the source of `module` made, else in which way it is not.

    Other plugins patch these helpers too, as a whole or single methods; such a patch must not be undone silently.
    """
    if isinstance(definition, ast.FunctionDef):
        return _why_other_function(value, definition, module)
    if not isinstance(value, type) or value.__module__ != module.__name__ or value.__qualname__ != definition.name:
        return f"something else stands in its place: {_described(value)}"
    methods = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
    members = vars(value)
    for name, node in methods.items():
        reason = _why_other_function(members.get(name), node, module)
        if reason is not None:
            return f"its method {name} was replaced: {reason}"
    for name, member in members.items():
        if name not in methods and isinstance(member, FunctionType) and member.__code__.co_filename not in _GENERATED:
            return f"a method was added to it: {_described(member)}"
    return None


def _why_other_function(value: Any, node: ast.FunctionDef, module: ModuleType) -> str | None:
    first_line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    if (
        isinstance(value, FunctionType)
        and value.__code__.co_filename == module.__file__
        and value.__code__.co_firstlineno == first_line
        and not hasattr(value, "__wrapped__")
    ):
        return None
    return f"something else stands in its place: {_described(value)}"


def _described(value: Any) -> str:
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{value.__qualname__} from {code.co_filename}, line {code.co_firstlineno}"
    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"


def fingerprints(source: str, names: Iterable[str]) -> dict[str, str]:
    """The fingerprint of each of `names` that `source` defines."""
    found = definitions(source)
    return {name: fingerprint(found[name]) for name in names if name in found}
