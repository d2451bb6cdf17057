"""Event-guarded staging: many small host buffers uploaded together, each free to be rewritten at once."""

from fastutils.tensors.staging.buffer import Staged
from fastutils.tensors.staging.costs import Costs, calibrate
from fastutils.tensors.staging.fetching import Fetch, fetch
from fastutils.tensors.staging.group import StagingGroup
from fastutils.tensors.staging.stats import StagingStats

__all__ = ["Costs", "Fetch", "Staged", "StagingGroup", "StagingStats", "calibrate", "fetch"]
