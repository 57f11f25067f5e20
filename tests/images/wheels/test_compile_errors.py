"""What a failed compilation says."""

from pathlib import Path

import pytest

from images.engine.failures import BuildFailed
from images.wheels.compile_errors import explained
from tests.support.recipes import recipe_of


@pytest.mark.parametrize(
    ("lines", "cause", "then"),
    [
        (
            ["[1/9] nvcc", '/build/src/csrc/a.cu(12): error: identifier "foo" is undefined', "1 error detected"],
            'did not compile: a.cu:12: identifier "foo" is undefined',
            "read /logs/x.log",
        ),
        (
            ["/build/src/csrc/b.cpp:7:10: fatal error: nope.h: No such file or directory", "ninja: build stopped"],
            "did not compile: b.cpp:7: nope.h: No such file or directory",
            "read /logs/x.log",
        ),
        (["nvcc fatal   : Unsupported gpu architecture 'compute_53'"], "Unsupported gpu architecture", "read"),
        (["  RuntimeError: the sources need CUDA 12"], "RuntimeError: the sources need CUDA 12", "read"),
        (["nvcc error   : 'cicc' died due to signal 9 (Kill signal)"], "was killed, which is often for", "--jobs N"),
        (["c++: fatal error: Killed signal terminated program cc1plus"], "was killed, which", "--jobs N"),
        (["c++: fatal error: Killed signal", "cc1plus: out of memory"], "ran out of memory", "--jobs N"),
    ],
)
def test_a_failed_compilation_names_package_file_error_and_log(lines: list[str], cause: str, then: str) -> None:
    failed = BuildFailed(step="RUN sh /run/recipe/compile.sh", error="exit code: 1", log=lines)
    problem = explained(recipe_of(), lines, failed, Path("/logs/x.log"))
    assert problem.where == "causal-conv1d 1.7.0"
    assert cause in problem.cause
    assert then in problem.then
