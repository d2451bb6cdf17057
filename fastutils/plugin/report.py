"""What the plugin did in this process, for the log and for ``python -m fastutils vllm``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One helper: `places` counts the modules' globals that hold ours, 0 if upstream's own stays for the `reason`."""

    name: str
    reason: str
    places: int = 0

    @property
    def served(self) -> bool:
        return self.places > 0


@dataclass(frozen=True)
class Report:
    """`note` says why nothing at all was done, `trouble` if that was not intended; `warnings` are for operators."""

    vllm_version: str = ""
    rows: tuple[Row, ...] = ()
    note: str = ""
    trouble: bool = False
    warnings: tuple[str, ...] = field(default=())
    staged: bool = False  #: vLLM's buffers are staged ones

    @property
    def served(self) -> tuple[str, ...]:
        """The names of the helpers that are ours now."""
        return tuple(row.name for row in self.rows if row.served)

    def summary(self) -> str:
        """All of it in one line."""
        if self.note:
            return f"nothing replaced: {self.note}"
        kept: dict[str, list[str]] = {}
        for row in self.rows:
            if not row.served:
                kept.setdefault(row.reason, []).append(row.name)
        left = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in kept.items())
        return (
            f"{len(self.served)} of {len(self.rows)} helpers of vLLM {self.vllm_version} replaced: "
            f"{', '.join(self.served) or 'none'}; left alone: {left or 'none'}{'; buffers are staged' * self.staged}"
        )

    def lines(self) -> Iterator[str]:
        """One line for each helper, after one for vLLM; or the reason why nothing was done."""
        if self.note:
            yield f"nothing replaced: {self.note}"
            return
        yield f"vLLM {self.vllm_version} (how many modules hold a helper grows with what vLLM has imported)"
        width = max(len(row.name) for row in self.rows)
        for row in self.rows:
            state = f"ours, held by {row.places}" if row.served else "vLLM's own"
            yield f"  {row.name:<{width}}  {state:<15}  {row.reason}"
        for warning in self.warnings:
            yield f"WARNING: {warning}"
