"""Builds the compiled halves of fastutils. Every one is optional: without it its Python twin serves.

Environment variables, all read at build time:

``FASTUTILS_NO_EXTENSIONS=1``       build a pure Python wheel
``FASTUTILS_REQUIRE_EXTENSIONS=1``  fail the build instead of leaving a compiled part out
``FASTUTILS_TORCH_DIRS=DIR:DIR…``   also build bridges for the torch packages unpacked there (one per torch minor)
``FASTUTILS_ABI3=1``                one wheel for every CPython >= 3.10; its loops are 2-4 times slower
"""

import glob
import json
import os
import platform
import re
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError
from setuptools.modified import newer_group

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def switched_on(name: str) -> bool:
    return os.environ.get(name, "").strip() not in ("", "0")


PURE = switched_on("FASTUTILS_NO_EXTENSIONS")
REQUIRED = switched_on("FASTUTILS_REQUIRE_EXTENSIONS")
LIMITED = switched_on("FASTUTILS_ABI3") and not FREE_THREADED

if PURE and REQUIRED:
    raise SystemExit("fastutils: FASTUTILS_NO_EXTENSIONS and FASTUTILS_REQUIRE_EXTENSIONS ask for opposite things")


def compiled_modules() -> list[Extension]:
    if PURE:
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        if REQUIRED:
            raise
        print("fastutils: Cython is missing, so nothing is compiled", file=sys.stderr)
        return []

    def module(name: str, *sources: str, **more) -> Extension:
        return Extension(
            name,
            list(sources),
            include_dirs=["csrc"],
            depends=glob.glob("csrc/*.h"),
            extra_compile_args=["-O3", "-g0", "-fno-plt"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")] if LIMITED else [],
            py_limited_api=LIMITED,
            **more,
        )

    modules = cythonize(
        [
            module("fastutils._iteration", "fastutils/_iteration.pyx"),
            module("fastutils.tensors._copy", "fastutils/tensors/_copy.pyx"),
            module("fastutils.tensors._staging", "fastutils/tensors/_staging.pyx"),
            # The limited API has no buffer protocol before Python 3.11.
            *([] if LIMITED else [module("fastutils.tensors._data", "fastutils/tensors/_data.pyx")]),
        ]
    )
    modules.append(module("fastutils._views", "csrc/views.c"))
    if not LIMITED:  # which has no objects within objects: all that scopes gain
        modules.append(module("fastutils._scopes", "csrc/scopes.c"))
    for extension in modules:
        extension.optional = not REQUIRED  # cythonize() drops what was said before it
    return modules


def torch_packages() -> dict[str, str]:
    """Torch minor -> folder of an installed or unpacked torch with headers.

    Never imports torch: build isolation hides the environment that the package is going to from sys.path, but
    sysconfig still names its site-packages.
    """
    folders = [folder for folder in os.environ.get("FASTUTILS_TORCH_DIRS", "").split(os.pathsep) if folder]
    for folder in folders:
        if not os.path.isdir(os.path.join(folder, "include", "c10")):
            raise SystemExit(
                f"fastutils: FASTUTILS_TORCH_DIRS names {folder!r}, which is no torch package with headers"
            )
    site_packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    site_packages += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    folders += [os.path.join(path, "torch") for path in site_packages]
    found = {}
    for folder in folders:
        try:
            with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
                version = re.search(r"^__version__ = ['\"](\d+)\.(\d+)", file.read(), re.MULTILINE)
        except OSError:
            continue
        if version and os.path.isdir(os.path.join(folder, "include", "c10")):
            found.setdefault(".".join(version.groups()), folder)
    return found


class BuildExtensions(build_ext):
    """Compiles what can be compiled and leaves a note of what could not, for ``python -m fastutils``."""

    def run(self):
        self.outcome = {}
        self.bridges = {}
        super().run()
        if self.extensions:
            self.build_bridges()
        self.write_build_info()

    def build_bridges(self):
        packages = torch_packages()
        if not packages:
            message = "no torch with headers beside this build, so no bridge; FASTUTILS_TORCH_DIRS can name others"
            if REQUIRED:
                raise SystemExit(f"fastutils: {message}")
            print(f"fastutils: {message}", file=sys.stderr)
        for minor, folder in packages.items():
            try:
                self.build_bridge(minor, folder)
            except CCompilerError as error:
                self.bridges[minor] = str(error).strip().splitlines()[0]
                if REQUIRED:
                    raise
                print(f"fastutils: the bridge for torch {minor} did not build: {error}", file=sys.stderr)
            else:
                self.bridges[minor] = "built"

    def build_bridge(self, minor, folder):
        name = f"libfastutils_torch{minor.replace('.', '_')}.so"
        target = os.path.join("" if self.inplace else self.build_lib, "fastutils", "_bridge", name)
        inputs = ["csrc/torch_bridge.cpp", *glob.glob("csrc/*.h"), os.path.join(folder, "version.py")]
        if not self.force and not newer_group(inputs, target):
            return
        include = os.path.join(folder, "include")
        objects = self.compiler.compile(
            inputs[:1],
            output_dir=os.path.join(self.build_temp, f"torch{minor}"),
            include_dirs=["csrc"],
            extra_postargs=[
                "-std=c++20",
                "-O3",
                "-g0",
                "-fno-plt",  # the calls into libtorch are a third of the work
                "-fvisibility=hidden",
                "-isystem",
                include,
                "-isystem",
                os.path.join(include, "torch", "csrc", "api", "include"),
            ],
        )
        self.compiler.link_shared_object(
            objects,
            target,
            libraries=["torch_python", "torch_cpu", "c10"],
            library_dirs=[os.path.join(folder, "lib")],
            target_lang="c++",
        )

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except Exception as error:
            self.outcome[ext.name] = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise
        self.outcome[ext.name] = "built"

    def write_build_info(self):
        package = "fastutils" if self.inplace else os.path.join(self.build_lib, "fastutils")
        os.makedirs(package, exist_ok=True)
        info = {
            "python": platform.python_version(),
            "compiler": getattr(self.compiler, "compiler_cxx", None) and " ".join(self.compiler.compiler_cxx),
            "limited_api": LIMITED,
            "modules": self.outcome,
            "bridges": self.bridges,
        }
        with open(os.path.join(package, "_build_info.json"), "w", encoding="utf-8") as file:
            json.dump(info, file, indent=1, sort_keys=True)
            file.write("\n")


setup(
    ext_modules=compiled_modules(),
    cmdclass={"build_ext": BuildExtensions},
    # A build folder of its own: what was compiled for one Python before must not come along.
    options={"bdist_wheel": {"py_limited_api": "cp310"}, "build": {"build_base": "build/abi3"}}
    if LIMITED and not PURE
    else {},
)
