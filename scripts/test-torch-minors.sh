#!/usr/bin/env bash
# Builds bridges for several torch versions into one checkout and runs the tensor tests against each of them:
#   test-torch-minors.sh PYTHON VERSION...     (for example 2.11.0 2.13.0 2.14.1)
# Each version is installed into a folder of its own below build/torch, without what its wheel depends on: those
# libraries come from PYTHON's environment, which must hold what a CUDA build needs if the wheels are CUDA builds.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

folders=()
for version in "$@"; do
  folder=build/torch/$version
  if [ ! -e "$folder/.complete" ]; then
    "$python" -m pip install -q --no-deps --target "$folder" "torch==$version"
    touch "$folder/.complete"
  fi
  folders+=("$PWD/$folder/torch")
done

FASTUTILS_TORCH_DIRS=$(IFS=:; echo "${folders[*]}") FASTUTILS_REQUIRE_EXTENSIONS=1 \
  "$python" setup.py -q build_ext --inplace

for version in "$@"; do
  echo "== torch $version"
  PYTHONPATH=$PWD/build/torch/$version FASTUTILS_REQUIRE_EXTENSIONS=1 \
    "$python" -c 'import sys, torch; print(torch.__version__); sys.exit(not torch.__version__.startswith(sys.argv[1]))' "$version"
  PYTHONPATH=$PWD/build/torch/$version FASTUTILS_REQUIRE_EXTENSIONS=1 "$python" -m pytest -q tests/tensors
done
