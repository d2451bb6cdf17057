"""What a group's uploads did so far."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class StagingStats:
    """Counts since the group was made, or since they were last reset.

    ``flushes``: uploads, single staged copies included. ``runtime_calls``: copies asked of the device's runtime (none
    on the CPU). ``live_bytes``: bytes of the rows that were uploaded; ``bytes_moved``: those and the padding that came
    along. ``waits``: how often an upload had to wait for a slot, and ``ns_waited`` how long altogether. ``slots``: how
    many there are, ``peak_slots``: the most there were. The last two are not reset.
    """

    flushes: int = 0
    runtime_calls: int = 0
    live_bytes: int = 0
    bytes_moved: int = 0
    waits: int = 0
    ns_waited: int = 0
    slots: int = 0
    peak_slots: int = 0

    def __add__(self, other: StagingStats) -> StagingStats:
        return StagingStats(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def __str__(self) -> str:
        return (
            f"{self.flushes} flushes in {self.runtime_calls} runtime calls, {self.live_bytes} live bytes "
            f"({self.bytes_moved} moved), {self.waits} waits ({self.ns_waited / 1e6:.3f} ms), "
            f"{self.slots} slots (at most {self.peak_slots})"
        )
