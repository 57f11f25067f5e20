"""What a compilation did, into dist/record.json: each object by where it came from, and the nvcc shim's doing.

Usage: record.py FOLDER, with dist/*.whl, ccache.log (CCACHE_STATSLOG), nvcc.log and nvcc.version in it; the last three
are there only if something was compiled.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_HITS = {"direct_cache_hit", "preprocessed_cache_hit"}
_NO_OBJECT = {"called_for_link", "called_for_preprocessing", "no_input_file", "autoconf_test"}


def objects(log: str) -> dict[str, int]:
    """Counts of a ccache log: `# FILE`, then a line for each counter that this call raised."""
    found = {"compiled": 0, "from_cache": 0, "not_cached": 0}
    for block in log.split("# ")[1:]:
        counters = set(block.splitlines()[1:])
        if counters & _HITS:
            found["from_cache"] += 1
        elif "cache_miss" in counters:
            found["compiled"] += 1
        elif counters and not counters & _NO_OBJECT:
            found["not_cached"] += 1
    return found


def shim(log: str) -> dict[str, Any]:
    """The shim's log, summed up: how many commands, and what was asked for, kept and added in any of them."""
    entries = [json.loads(line) for line in log.splitlines()]
    named = {word: sorted({code for entry in entries for code in entry[word]}) for word in ("given", "kept", "added")}
    dropped = sorted({code for entry in entries for code in entry["given"]} - set(named["kept"]))
    return {"commands": len(entries), **named, "dropped": dropped}


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def main(folder: Path) -> None:
    (wheel,) = (folder / "dist").glob("*.whl")
    gcc = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    nvcc = _text(folder / "nvcc.version").strip().splitlines()
    record = {
        "wheel": wheel.name,
        "compilers": {"g++": gcc, **({"nvcc": nvcc[-1]} if nvcc else {})},
        "objects": objects(_text(folder / "ccache.log")),
        "shim": shim(_text(folder / "nvcc.log")),
    }
    (folder / "dist" / "record.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
