"""Exchange facts between `doctor` and the processes that ask the driver and torch.

Each fact is a marked line of JSON on stdout.
"""

import json
import sys
from typing import Any

_MARK = "validate:fact:"
"""It tells facts from what libraries print on stdout."""


def report(**facts: Any) -> None:
    """Print one line with these facts, at once: the process may crash with its next call."""
    sys.stdout.write(f"\n{_MARK}{json.dumps(facts)}\n")
    sys.stdout.flush()


def read(output: bytes) -> list[dict[str, Any]]:
    """Return the facts of each line that a process reported. `output`: all that it printed.

    A line that a crash cut off is left out.
    """
    answers = []
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK) and line.endswith("}"):
            answers.append(json.loads(line.removeprefix(_MARK)))
    return answers
