"""compile.py: bytecode for the Python files named on standard input (each ended by a zero byte), on all cores it has.

Files that do not compile (templates, code of other Python versions) go without, as with pip. Standard library.
"""

import os
import sys
from compileall import compile_file
from concurrent.futures import ProcessPoolExecutor

_CHUNK = 32
"""Files that a process is handed at once."""


def compiled(path: str) -> bool:
    """Whether the file has its bytecode now."""
    return bool(compile_file(path, quiet=2))


if __name__ == "__main__":
    paths = sorted(path for path in os.fsdecode(sys.stdin.buffer.read()).split("\0") if path)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compiled, paths, chunksize=_CHUNK))
