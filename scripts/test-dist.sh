#!/bin/sh
# test-dist.sh PYTHON: makes the wheel, the source distribution, a wheel from that, a pure wheel and a wheel without a
# compiler; installs each into an environment of its own and runs the suite there, outside the checkout.
# The environments see the libraries of PYTHON's own environment (torch is large) but not its fastutils.
set -eu

python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
checkout=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
libraries=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# Only what a clone would hold, so that nothing built in the checkout reaches a distribution.
mkdir "$work/source"
(cd "$checkout" && git ls-files -z --cached --others --exclude-standard | xargs -0 tar cf - 2>/dev/null) | tar xf - -C "$work/source"
cp -r "$work/source/tests" "$work/tests"
cp -r "$work/source/bench" "$work/bench"
cp "$work/source/pyproject.toml" "$work/pyproject.toml"

say() { printf '\n== %s\n' "$*"; }

only() { # exactly one file, or say what is there
  [ $# -eq 1 ] && [ -f "$1" ] || { echo "expected one file, found: $*" >&2; exit 1; }
  printf '%s\n' "$1"
}

install_and_test() { # LABEL WHEEL [VARIABLE=VALUE ...] -- PYTEST ARGUMENTS
  label=$1 wheel=$2
  shift 2
  variables=
  while [ "$1" != -- ]; do variables="$variables $1"; shift; done
  shift
  say "$label: suite on $(basename "$wheel")"
  venv=$work/venv-$label
  "$python" -m venv --without-pip "$venv"
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -m pip --python "$venv/bin/python" install -q --no-deps --no-index "$wheel"
  # A path file comes after the environment's own site-packages, and the editable fastutils there is not followed.
  printf '%s\n' "$libraries" >"$site/libraries.pth"
  (cd "$work" && env $variables PATH="$venv/bin:$PATH" "$venv/bin/python" -m pytest -q -p no:cacheprovider "$@" tests)
}

say "wheel"
"$python" -m pip wheel -q --no-build-isolation --no-deps -w "$work/wheel" "$work/source"
wheel=$(only "$work"/wheel/*.whl)
# What intrudes upon the compiled forms is about code, not about packages: the checkout's own run has it.
install_and_test compiled "$wheel" FASTUTILS_REQUIRE_EXTENSIONS=1 -- --ignore tests/test_intruders.py

say "source distribution, and a wheel built from it"
"$python" -m build -q --sdist --no-isolation -o "$work/sdist" "$work/source"
sdist=$(only "$work"/sdist/*.tar.gz)
mkdir "$work/unpacked"
tar xf "$sdist" -C "$work/unpacked"
(cd "$work/unpacked"/* && "$python" -m build -q --sdist --no-isolation -o "$work/sdist-again")
"$python" -m pip wheel -q --no-build-isolation --no-deps -w "$work/wheel-from-sdist" "$sdist"
# The sdist's own tests: what it ships must be enough.
rm -rf "$work/tests" "$work/bench"
cp -r "$work/unpacked"/*/tests "$work/tests"
cp -r "$work/unpacked"/*/bench "$work/bench"
# The process helpers are Python in every distribution, and their tests the longest: the first wheel ran them.
install_and_test from-sdist "$(only "$work"/wheel-from-sdist/*.whl)" FASTUTILS_REQUIRE_EXTENSIONS=1 -- \
  --ignore tests/processes --ignore tests/test_intruders.py

say "pure wheel"
FASTUTILS_NO_EXTENSIONS=1 "$python" -m pip wheel -q --no-build-isolation --no-deps -w "$work/pure" "$work/source"
pure=$(only "$work"/pure/*-py3-none-any.whl)
install_and_test pure "$pure" -- --ignore tests/processes --ignore tests/test_intruders.py

say "no compiler: the build succeeds and the package says what is missing"
rm -rf "$work/source/build"  # what was compiled before must not serve
CC=no-such-compiler CXX=no-such-compiler "$python" -m pip wheel -q --no-build-isolation --no-deps -w "$work/bare" "$work/source"
bare=$(only "$work"/bare/*.whl)
venv=$work/venv-bare
"$python" -m venv --without-pip "$venv"
"$python" -m pip --python "$venv/bin/python" install -q --no-deps --no-index "$bare"
(cd "$work" && "$venv/bin/python" -m fastutils --no-check) | tee "$work/bare.txt"
grep -q "did not compile when this package was built: .*no-such-compiler" "$work/bare.txt"

say "compiled wheel with FASTUTILS_NO_EXTENSIONS=1 at run time: the Python forms serve"
(cd "$work" && FASTUTILS_NO_EXTENSIONS=1 "$work/venv-compiled/bin/python" -m fastutils --no-check) >"$work/off.txt"
grep -q "python (FASTUTILS_NO_EXTENSIONS is set)" "$work/off.txt"
! grep -q "compiled (" "$work/off.txt"
say "distributions are good"
