"""Modules beside the package that are called like the standard library's are nobody's business in a server."""

import shutil
import sysconfig
import venv
from pathlib import Path

import applications

NAMES = (
    *("typing", "contextlib", "selectors", "select", "threading", "signal", "socket", "struct", "pickle", "weakref"),
    *("subprocess", "tempfile", "enum", "logging", "queue", "random", "ctypes", "copyreg", "functools", "operator"),
)
SHADOW = """
import os, sys
with open({log!r}, "a") as file:
    file.write(f"{{__name__}} in {{sys.orig_argv}}\\n")
raise ImportError(f"{{__name__}} of site-packages was imported in place of the standard library's")
"""


def test_the_standard_librarys_modules_come_first(application, tmp_path):
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    shutil.copytree(Path(applications.PACKAGE) / "fastutils", packages / "fastutils")
    for name in NAMES:
        (packages / f"{name}.py").write_text(SHADOW.format(log=str(tmp_path / "log")))
    # What the package needs, after it: paths in such a file are not asked for files of this kind in turn.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    program = application("shadowed_application", python=environment / "bin/python", PYTHONPATH="")
    seen = program.answer()
    assert seen["package"] == str(packages / "fastutils")
    log = tmp_path / "log"
    assert not log.exists(), f"imported from site-packages: {log.read_text()}"
    assert seen["error"] is None
