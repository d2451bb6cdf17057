#!/usr/bin/env bash
# The copies against a CUDA build of torch on a stand-in runtime (tests/fakecuda): test-fakecuda.sh PYTHON [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

scripts/on-fakecuda.sh "$python" -m pytest tests/fakecuda tests/tensors tests/test_bench_staging.py "$@"
