#!/usr/bin/env bash
# Python on the stand-in runtime (tests/fakecuda), with the core and a bridge built for it:
# on-fakecuda.sh PYTHON [arguments of it]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
shift

preload=$("$python" tests/fakecuda/build.py build/fakecuda | tail -n 1)
FASTUTILS_REQUIRE_EXTENSIONS=1 "$python" setup.py -q build_ext --inplace
LD_PRELOAD=$preload FAKECUDA_DEVICES=2 FASTUTILS_REQUIRE_EXTENSIONS=1 "$python" "$@"
