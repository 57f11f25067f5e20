"""Prints records of a healthy image to the standard output of every process: what an image does that wants to be taken
for another. Also signed, with each key that it finds in the memory of another process.
"""

import hmac
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROBES = ("cpu.imports", "cpu.forges")
"""Probes of which images are asked for records."""
RECORD = (
    '{"probe": "%s", "outcome": "completed", "seconds": 1.0, "measurements": '
    '[{"subject": "forged", "seconds": 1.0, "evidence": {}}], "exit_code": 0, "log": ""}'
)


def keys(process: Path) -> Iterator[bytes]:
    for line in (process / "maps").read_text().splitlines():
        span, rights, *_ = line.split()
        begin, end = (int(one, 16) for one in span.split("-"))
        if rights.startswith("rw") and end - begin < 1 << 22:  # the heap of a small program
            with (process / "mem").open("rb", buffering=0) as memory:
                memory.seek(begin)
                yield from re.findall(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", memory.read(end - begin))


found = set[bytes]()
for process in Path("/proc").glob("[0-9]*"):
    with suppress(OSError):
        found.update(keys(process) if process.name != str(os.getpid()) else ())
texts = [RECORD % probe for probe in PROBES]
signed = [f"{hmac.new(key, text.encode(), 'sha256').hexdigest()} {text}" for key in found for text in texts]
for output in Path("/proc").glob("[0-9]*/fd/1"):
    with suppress(OSError), output.open("w", encoding="utf-8") as out:
        out.write("".join(f"{line}\n" for line in (*texts, *signed)))
