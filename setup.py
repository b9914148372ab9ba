"""Builds the native kernel where there is a C compiler; without one the package works all the same, in torch.

Everything else is in pyproject.toml.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

FOLDER = "src/liebayes/native"
# Not -ffast-math: loading a library linked with it flushes denormal numbers for the whole process.
FLAGS = ["-O3", "-g0", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi"]


class BuildKernel(build_ext):
    """Adds OpenMP where the compiler has it."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"  # read by ctypes: the same file for every version of Python

    def build_extension(self, ext: Extension) -> None:
        if sys.platform == "win32":
            raise PlatformError("the kernel needs the vector extensions of GCC or Clang")
        if self._compiles("-fopenmp"):
            ext.extra_compile_args.append("-fopenmp")
            ext.extra_link_args.append("-fopenmp")
        super().build_extension(ext)

    def _compiles(self, flag: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "try.c"
            source.write_text("#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n")
            command = [*self.compiler.compiler_so, flag, str(source), "-c", "-o", str(Path(folder) / "try.o")]
            try:
                return subprocess.run(command, capture_output=True).returncode == 0
            except OSError:
                return False


class OneWheel(bdist_wheel):
    """The kernel uses nothing of Python, so that one wheel per platform serves all versions."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


kernel = Extension(
    "liebayes.native._kernel",
    sources=[f"{FOLDER}/{name}.c" for name in ("kernel", "portable", "avx2", "avx512")],
    depends=[f"{FOLDER}/{name}.h" for name in ("job", "noise", "rule", "vector")],
    extra_compile_args=FLAGS,
    extra_link_args=["-lm"],
    optional=True,  # a failure is a warning
)
setup(
    ext_modules=[] if platform.python_implementation() != "CPython" else [kernel],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": OneWheel},
)
