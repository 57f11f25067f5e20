#!/usr/bin/python3 -IS
"""Stands in for nvcc in a builder: compiles for the GPU architectures asked for, whatever a package asks itself.

Most packages write their list into setup.py and read no TORCH_CUDA_ARCH_LIST. What serves none of the asked ones is
taken out; where nothing is left, they are put in. Then ccache calls the real nvcc. Standard library alone.

Environment: TRUETAG_ARCHS ("80 90"), TRUETAG_PTX ("90" or empty), TRUETAG_NVCC (the real one), TRUETAG_NVCC_LOG (gets a
JSON line a compilation).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

_PAIR = re.compile(r"arch=compute_(?P<arch>\d+)[af]?,code=(?P<codes>.+)")
_CODE = re.compile(r"(?P<kind>sm|compute|lto)_(?P<arch>\d+)(?P<variant>[af]?)")
_PAIR_OPTIONS = ("-gencode", "--generate-code")
_ARCH_OPTIONS = ("-arch", "--gpu-architecture")
_CODE_OPTIONS = ("-code", "--gpu-code")
_DEPENDENCIES = {"--generate-dependencies-with-compile": "-MD", "--dependency-output": "-MF"}
"""nvcc's two names of one thing, of which ccache knows the second."""
_QUESTIONS = ("-V", "--version", "-h", "--help", "--list-gpu-arch", "--list-gpu-code", "-arch-ls", "-code-ls")
_CALLING_CCACHE = ("/ccache", "/build/host")
_SOURCE = re.compile(r".+\.(?:cu|c|cc|cpp|cxx)")


@dataclass(frozen=True)
class Code:
    """One thing that nvcc would make: machine code (`sm`) or PTX (`compute`) of an architecture."""

    virtual: str
    """What it is compiled through: `90a` of compute_90a."""
    kind: str
    arch: int
    variant: str = ""
    """`a`: for this architecture alone; `f`: for its family."""

    def __str__(self) -> str:
        return f"arch=compute_{self.virtual},code={self.kind}_{self.arch}{self.variant}"

    def serves(self, arch: int) -> bool:
        """Whether a GPU of `arch` runs this machine code (CUDA C++ Programming Guide, "Binary Compatibility")."""
        if self.kind == "compute":
            return False
        return self.arch == arch or (self.variant != "a" and self.arch // 10 == arch // 10 and self.arch < arch)


@dataclass(frozen=True)
class Change:
    """What was done to one command."""

    given: list[str]
    kept: list[str]
    added: list[str]


def rewrite(arguments: Sequence[str], archs: Sequence[int], ptx: Sequence[int]) -> tuple[list[str], Change]:
    """The arguments with the asked architectures alone, and what was done to get there."""
    rest: list[str] = []
    given: list[Code] = []
    words = iter(arguments)
    for word in words:
        option, joined, value = word.partition("=")
        if option in (*_PAIR_OPTIONS, *_ARCH_OPTIONS, *_CODE_OPTIONS):
            value = value if joined else next(words, "")
            given += _codes(option, value)
        else:
            rest.append(_DEPENDENCIES.get(word, word))
    kept = [code for code in dict.fromkeys(given) if _wanted(code, given, archs, ptx)]
    added = [] if any(code.kind != "compute" for code in kept) else [Code(str(arch), "sm", arch) for arch in archs]
    added += [Code(str(arch), "compute", arch) for arch in ptx if Code(str(arch), "compute", arch) not in kept]
    pairs = [word for code in (*kept, *added) for word in ("-gencode", str(code))]
    shown = [[str(code) for code in codes] for codes in (dict.fromkeys(given), kept, added)]
    return [*rest, *pairs], Change(*shown)


def _codes(option: str, value: str) -> list[Code]:
    """What one option would make; `-arch=native` and the like name nothing that could be kept."""
    if option in _PAIR_OPTIONS:
        match = _PAIR.fullmatch(value.replace("'", "").replace('"', ""))
        virtual = re.search(r"compute_(\d+[af]?)", value)
        return [_code(virtual[1], found) for found in _CODE.finditer(match["codes"])] if match and virtual else []
    if option in _CODE_OPTIONS:
        return []
    found = _CODE.fullmatch(value)
    if not found:
        return []
    own = found["arch"] + found["variant"]
    return [_code(own, found), Code(own, "compute", int(found["arch"]), found["variant"])]


def _code(virtual: str, found: re.Match[str]) -> Code:
    return Code(virtual, found["kind"], int(found["arch"]), found["variant"])


def _wanted(code: Code, given: Sequence[Code], archs: Sequence[int], ptx: Collection[int]) -> bool:
    """Whether it is asked for: PTX by name, machine code if nothing given serves some asked architecture better."""
    if code.kind == "compute":
        return code.arch in ptx
    for arch in archs:
        serving = [other.arch for other in given if other.serves(arch)]
        if serving and code.serves(arch) and code.arch == max(serving):
            return True
    return False


def main() -> None:
    archs = [int(text) for text in os.environ["TRUETAG_ARCHS"].split()]
    ptx = [int(text) for text in os.environ.get("TRUETAG_PTX", "").split()]
    real = os.environ["TRUETAG_NVCC"]
    arguments = sys.argv[1:]
    sources = [word for word in arguments if _SOURCE.fullmatch(word)]
    if not arguments or any(word in _QUESTIONS for word in arguments):
        os.execv(real, [real, *arguments])
    arguments, change = rewrite(arguments, archs, ptx)
    entry = json.dumps({"sources": [path.rpartition("/")[2] for path in sources], **asdict(change)})
    log = os.open(os.environ["TRUETAG_NVCC_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(log, f"{entry}\n".encode())
    os.close(log)
    # nvcc calls gcc many times on temporary files: through ccache that would be counted and never found again.
    folders = os.environ["PATH"].split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(folder for folder in folders if not folder.endswith(_CALLING_CCACHE))
    os.execvp("ccache", ["ccache", real, *arguments])


if __name__ == "__main__":
    main()
