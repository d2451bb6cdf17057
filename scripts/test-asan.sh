#!/usr/bin/env bash
# The core's and the tensors' tests over a core and bridge built with AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of the
# checkout (build/asan), so that the ordinary build stays as it is: test-asan.sh PYTHON [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift

copy=build/asan
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard -- setup.py pyproject.toml README.md csrc fastutils tests |
  tar -c --null --ignore-failed-read -T - | tar -x -C "$copy"
cd "$copy"

export CC=${CC:-gcc} CXX=${CXX:-g++}
sanitize="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
# The bridge is a shared library beside torch's, which are built without the type information that vptr checks need.
CFLAGS="$sanitize -O1 -g" CXXFLAGS="$sanitize -fno-sanitize=vptr -O1 -g" LDFLAGS="$sanitize" \
  FASTUTILS_REQUIRE_EXTENSIONS=1 "$python" setup.py -q build_ext --inplace

# Python itself is not instrumented, hence the preload; it keeps objects until the end, hence no leak check (the tests
# marked `leak` count references); PYTHONMALLOC=malloc lets the sanitizer see objects that Python frees.
export LD_PRELOAD="$("$CC" -print-file-name=libasan.so) $("$CC" -print-file-name=libubsan.so) $("$CC" -print-file-name=libstdc++.so.6)"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1
export PYTHONMALLOC=malloc FASTUTILS_REQUIRE_EXTENSIONS=1
exec "$python" -m pytest -m "not leak" -p no:cacheprovider tests/tensors tests/test_intruders.py tests/test_views.py \
  tests/test_fuzz_views.py tests/test_iteration.py tests/test_fuzz_functions.py tests/test_scopes.py "$@"
