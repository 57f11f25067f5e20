"""Judges of the cpu tier: C1 to C10, one module a subject."""

from __future__ import annotations

from collections.abc import Mapping

from validate.judging import Judging
from validate.judging.cpu import (
    arbitrary_uid,
    bridges,
    compiler,
    imports,
    instructions,
    native,
    quantized_llama,
    threads,
    triton,
)
from validate.judging.cpu import (
    compile as torch_compile,
)

JUDGES: Mapping[str, Judging] = {
    "C1": imports.judge,
    "C2": native.judge,
    "C3": compiler.judge,
    "C4": triton.judge,
    "C5": torch_compile.judge,
    "C6": bridges.judge,
    "C7": threads.judge,
    "C8": arbitrary_uid.judge,
    "C9": instructions.judge,
    "C10": quantized_llama.judge,
}
