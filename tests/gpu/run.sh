#!/usr/bin/env bash
# Builds against this machine's torch, runs what only a GPU shows, and measures: run.sh OUT_DIR [PYTHON]
set -euo pipefail
out=${1:?usage: run.sh OUT_DIR [PYTHON]}
python=${2:-python3}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/../.."

"$python" -c '
import torch
print("torch", torch.__version__, "on", torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU")'
FASTUTILS_REQUIRE_EXTENSIONS=1 timeout 150 "$python" setup.py -q build_ext --inplace

status=0
PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 timeout 120 "$python" -m pytest -c tests/gpu/pytest.ini --rootdir tests/gpu \
  -p no:cacheprovider tests/gpu 2>&1 | tee "$out/tests.txt" || status=$?
PYTHONPATH=$PWD timeout 80 "$python" tests/gpu/bench_copies.py "$out/copies.json" | tee "$out/copies.txt" || status=$?
PYTHONPATH=$PWD timeout 240 "$python" tests/gpu/bench_staging.py "$out/staging.json" | tee "$out/staging.txt" || status=$?
exit $status
