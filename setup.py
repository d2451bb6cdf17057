"""Builds the compiled halves of fastutils. Every one is optional: without it its Python twin serves.

Environment variables, all read at build time:

``FASTUTILS_NO_EXTENSIONS=1``       build a pure Python wheel
``FASTUTILS_REQUIRE_EXTENSIONS=1``  fail the build instead of leaving a compiled part out
``FASTUTILS_ABI3=1``                one wheel for every CPython >= 3.10; its loops are 2-4 times slower
"""

import glob
import json
import os
import platform
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def switched_on(name: str) -> bool:
    return os.environ.get(name, "").strip() not in ("", "0")


PURE = switched_on("FASTUTILS_NO_EXTENSIONS")
REQUIRED = switched_on("FASTUTILS_REQUIRE_EXTENSIONS")
LIMITED = switched_on("FASTUTILS_ABI3") and not FREE_THREADED


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
            extra_compile_args=["-O3", "-g0"],
            define_macros=[("Py_LIMITED_API", "0x030A0000")] if LIMITED else [],
            py_limited_api=LIMITED,
            **more,
        )

    modules = cythonize(
        [
            module("fastutils._iteration", "fastutils/_iteration.pyx"),
        ]
    )
    modules += [module("fastutils._views", "csrc/views.c"), module("fastutils._scopes", "csrc/scopes.c")]
    for extension in modules:
        extension.optional = not REQUIRED  # cythonize() drops what was said before it
    return modules


class BuildExtensions(build_ext):
    """Compiles what can be compiled and leaves a note of what could not, for ``python -m fastutils``."""

    def run(self):
        self.outcome = {}
        super().run()
        self.write_build_info()

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
        }
        with open(os.path.join(package, "_build_info.json"), "w", encoding="utf-8") as file:
            json.dump(info, file, indent=1, sort_keys=True)
            file.write("\n")


setup(
    ext_modules=compiled_modules(),
    cmdclass={"build_ext": BuildExtensions},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if LIMITED and not PURE else {},
)
