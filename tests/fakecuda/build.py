"""Builds the stand-ins for libcudart and libcuda that this environment's torch will take for the real ones.

    python tests/fakecuda/build.py OUT_DIR

Needs a CUDA build of torch and CUDA's runtime headers: those that triton ships beside torch, or those of
``CUDA_HOME``. Prints the LD_PRELOAD value to use. Every runtime function that torch's libraries import and
runtime.cpp does not define gets one that fails with cudaErrorNotSupported.
"""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
SONAME = "libcudart.so.13"


def cuda_headers(packages: Path) -> Path:
    candidates = [*sorted(packages.glob("nvidia/*/include")), packages / "triton/backends/nvidia/include"]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(Path(home) / "include")
    for folder in candidates:
        if (folder / "cuda_runtime_api.h").exists() and (folder / "crt/host_defines.h").exists():
            return folder
    raise SystemExit("no complete cuda_runtime_api.h: pip install triton, or set CUDA_HOME")


def imported(packages: Path) -> set[str]:
    """The runtime's functions that torch and what it depends on import, by their version tag."""
    names = set()
    for library in [*packages.glob("torch/lib/*.so*"), *packages.glob("nvidia/**/*.so*")]:
        if library.name.startswith("libcudart") or library.is_symlink():
            continue
        listing = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=False
        ).stdout
        names |= set(re.findall(rf"(\w+)@{re.escape(SONAME)}", listing))
    return names


def main(out: Path) -> None:
    packages = Path(sysconfig.get_path("purelib"))
    out.mkdir(parents=True, exist_ok=True)
    defined = set(re.findall(r"^EXPORT .*?\b(_*cuda\w+)\(", (HERE / "runtime.cpp").read_text(), re.MULTILINE))
    missing = sorted(imported(packages) - defined)
    if not missing:
        raise SystemExit(f"nothing here imports from {SONAME}: install a CUDA 13 build of torch")
    stub = '__attribute__((visibility("default"))) int {}(void) {{ return 801; }}\n'  # cudaErrorNotSupported
    (out / "refused.c").write_text("".join(map(stub.format, missing)))
    (out / "versions.map").write_text(f"{SONAME} {{ global: *; }};\n")
    compiler, cxx = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")
    shared = ["-O1", "-g", "-fPIC", "-shared"]
    named = [f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={out / 'versions.map'}"]
    sources = [HERE / "runtime.cpp", out / "refused.o"]
    subprocess.run([compiler, "-O1", "-fPIC", "-c", out / "refused.c", "-o", out / "refused.o"], check=True)
    runtime, driver = out / SONAME, out / "libcuda.so.1"
    subprocess.run(
        [cxx, "-std=c++17", *shared, f"-I{cuda_headers(packages)}", *named, *sources, "-o", runtime], check=True
    )
    subprocess.run([compiler, *shared, "-Wl,-soname,libcuda.so.1", HERE / "driver.c", "-o", driver], check=True)
    print(f"{runtime.resolve()} {driver.resolve()}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
