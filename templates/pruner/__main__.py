"""pruner [RECORD...]: take device code for other GPUs out of what this build step has installed.

With arguments, out of what these RECORD files list. The options are in options.json beside this
file (images/context/pruner.py).

Prints what became of each file. If one can't be read, nothing is changed and the status is 1.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import normalise_timestamps
from pruning import Alternatives, Change, PruneOptions, PruningError, prune_packages


def main() -> None:
    """Prune as options.json and the command line say. Raises PruningError."""
    content = json.loads(Path(__file__).with_name("options.json").read_text())
    alternatives = []
    for row in content["alternatives"]:
        alternatives.append(Alternatives(files=row["files"], keep=tuple(row["keep"])))
    options = PruneOptions(
        arch=content["arch"],
        nvidia=content["nvidia"],
        alternatives=tuple(alternatives),
        by_design=content["by_design"],
    )
    records = [Path(argument) for argument in sys.argv[1:]] or _records_of_this_step()
    prune_packages(records, options, tell)


def _records_of_this_step() -> list[Path]:
    """Return the RECORD files that this build step wrote, sorted."""
    # Real paths, as record_change_times.sh has noted them: lib64 may be a link to lib.
    folders = {str(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib")}
    is_record = ("-mindepth", "2", "-maxdepth", "2", "-path", "*.dist-info/RECORD")
    records = []
    for folder in folders:
        for path in normalise_timestamps.changed(folder, *is_record):
            records.append(Path(path))
    return sorted(records)


def tell(change: Change) -> None:
    """Print what became of a file."""
    what = "removed"
    if change.digest:
        what = f"{change.taken_out / 1e6:.1f} of {change.size / 1e6:.1f} MB taken out"
    sys.stdout.write(f"{change.path}: {what}\n")


if __name__ == "__main__":
    try:
        main()
    except PruningError as error:
        sys.exit(f"pruning: {error}")
