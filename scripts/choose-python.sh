#!/bin/sh
# Prints the Python that a checkout should use: $PYTHON if set, else the first of those on the machine that is
# >= 3.10, can make virtual environments and has its C headers. An interpreter that a distribution or its
# configure line optimised goes first: an unoptimised one inflates every ratio of the benchmark.
set -eu

usable='
import sys, sysconfig, os
import ensurepip, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(0 if sys.version_info >= (3, 10) and os.path.exists(header) else 1)'
optimised='
import sys, sysconfig
configured = sysconfig.get_config_var("CONFIG_ARGS") or ""
sys.exit(0 if "--enable-optimizations" in configured or sys.base_prefix == "/usr" else 1)'

candidates="python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10 python3.14"
if [ -n "${PYTHON:-}" ]; then
  if "$PYTHON" -c "$usable" 2>/dev/null; then echo "$PYTHON"; exit 0; fi
  echo "PYTHON=$PYTHON cannot be used: it must be Python >= 3.10 with the venv module and Python.h" >&2
  exit 1
fi
for wanted in "$optimised" "pass"; do
  for candidate in $candidates; do
    path=$(command -v "$candidate" 2>/dev/null) || continue
    if "$path" -c "$usable" 2>/dev/null && "$path" -c "$wanted" 2>/dev/null; then echo "$path"; exit 0; fi
  done
done
echo "no usable Python: install Python >= 3.10 with its venv module and C headers, or set PYTHON=/path/to/python" >&2
exit 1
