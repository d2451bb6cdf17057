#!/usr/bin/env bash
# The core's and the tensors' tests on a debug build of Python (its assertions, its memory debugger), with the core
# compiled for it in a copy of the checkout (build/debug): test-debug.sh PYTHON [pytest arguments]
# Libraries come from PYTHON's environment: a debug build loads what was compiled for the release of the same version.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
debug=$(command -v "python${version}d" || command -v "python${version}-dbg" || true)
if [ -z "$debug" ]; then
  echo "test-debug: no debug build of Python $version here; Debian's package python3-dbg has one for its own version" >&2
  exit 1
fi
libraries=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

copy=build/debug
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard -- setup.py pyproject.toml README.md csrc fastutils tests |
  tar -c --null --ignore-failed-read -T - | tar -x -C "$copy"
cd "$copy"

# Ahead of the editable installation of the checkout, whose path file PYTHONPATH does not read.
export PYTHONPATH="$PWD:$libraries" PYTHONMALLOC=debug FASTUTILS_REQUIRE_EXTENSIONS=1 PYTHONDONTWRITEBYTECODE=1
"$debug" setup.py -q build_ext --inplace
"$debug" -c 'import sys, fastutils._views as core; sys.exit("d-" not in core.__file__.rpartition("cpython-")[2])' || {
  echo "test-debug: the core that was loaded is not compiled for $debug" >&2
  exit 1
}
exec "$debug" -W ignore -m pytest -m "not leak" -p no:cacheprovider tests/test_intruders.py tests/test_views.py \
  tests/test_fuzz_views.py tests/test_iteration.py tests/test_fuzz_functions.py tests/test_scopes.py \
  tests/tensors/test_buffer.py tests/tensors/test_copy_many.py tests/tensors/test_data.py \
  tests/tensors/test_fresh_views.py tests/tensors/test_fuzz.py "$@"
