#!/usr/bin/env bash
# The copies against a CUDA build of torch on a stand-in runtime (tests/fakecuda): test-fakecuda.sh PYTHON [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

preload=$("$python" tests/fakecuda/build.py build/fakecuda | tail -n 1)
FASTUTILS_REQUIRE_EXTENSIONS=1 "$python" setup.py -q build_ext --inplace
LD_PRELOAD=$preload FAKECUDA_DEVICES=2 FASTUTILS_REQUIRE_EXTENSIONS=1 \
  "$python" -m pytest tests/fakecuda tests/tensors tests/test_bench_staging.py "$@"
