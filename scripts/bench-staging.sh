#!/usr/bin/env bash
# Host time of staged uploads on the stand-in runtime (tests/fakecuda): bench-staging.sh PYTHON [bench arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

preload=$("$python" tests/fakecuda/build.py build/fakecuda | tail -n 1)
FASTUTILS_REQUIRE_EXTENSIONS=1 "$python" setup.py -q build_ext --inplace
LD_PRELOAD=$preload FAKECUDA_DEVICES=2 "$python" -m bench.staging_host "$@"
