"""Judges of the cpu tier: C1 to C12, one module a subject."""

from __future__ import annotations

from collections.abc import Mapping

from validate.judging import Judging, by_subject
from validate.judging.cpu import (
    additions,
    arbitrary_uid,
    bridges,
    bytecode,
    compiler,
    home,
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
    "C8": by_subject({"arbitrary UID": arbitrary_uid.judge, "": home.judge}),
    "C9": instructions.judge,
    "C10": quantized_llama.judge,
    "C11": additions.judge,
    "C12": bytecode.judge,
}
