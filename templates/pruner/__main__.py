"""pruner [RECORD...]: takes device code for other GPUs out of what this build step installed, or of what these RECORD
files list, as options.json beside it says.

Says on stdout what became of each file, and ends with 1, nothing half done, where one can't be read.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import normalise_timestamps
from pruning import Alternatives, Change, PruneOptions, PruningError, prune_packages


def main() -> None:
    said = json.loads(Path(__file__).with_name("options.json").read_text())
    alternatives = tuple(Alternatives(files=one["files"], keep=tuple(one["keep"])) for one in said["alternatives"])
    options = PruneOptions(
        arch=said["arch"], nvidia=said["nvidia"], alternatives=alternatives, by_design=said["by_design"]
    )
    prune_packages(list(map(Path, sys.argv[1:])) or _installed(), options, tell)


def _installed() -> list[Path]:
    # As record_change_times.sh has them: lib64 may be a link to lib.
    places = {str(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib")}
    tests = ("-mindepth", "2", "-maxdepth", "2", "-path", "*.dist-info/RECORD")
    found = (Path(path) for place in places for path in normalise_timestamps.changed(place, *tests))
    return sorted(found)


def tell(change: Change) -> None:
    what = f"{change.taken_out / 1e6:.1f} of {change.size / 1e6:.1f} MB taken out" if change.digest else "removed"
    sys.stdout.write(f"{change.path}: {what}\n")


if __name__ == "__main__":
    try:
        main()
    except PruningError as error:
        sys.exit(f"pruning: {error}")
