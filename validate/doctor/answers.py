"""How the processes that ask the driver and torch report facts: a marked line of JSON each, on stdout."""

import json
import sys
from typing import Any

_MARK = "validate:fact:"
"""Libraries print on stdout, too."""


def report(**facts: Any) -> None:
    """Print facts. They are flushed at once, because the process may crash with the next call."""
    sys.stdout.write(f"\n{_MARK}{json.dumps(facts)}\n")
    sys.stdout.flush()


def read(output: bytes) -> list[dict[str, Any]]:
    """Return the facts in what a process printed. A line that a crash cut off is left out."""
    answers = []
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK) and line.endswith("}"):
            answers.append(json.loads(line.removeprefix(_MARK)))
    return answers
