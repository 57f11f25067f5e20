"""Prints a record to the standard output of every process: what an image does that wants to be taken for another."""

from pathlib import Path

RECORD = (
    '{"probe": "static.devicecode", "outcome": "completed", "seconds": 1.0, "measurements": '
    '[{"subject": "forged", "seconds": 1.0, "evidence": {}}], "exit_code": 0, "log": ""}\n'
)

for output in Path("/proc").glob("[0-9]*/fd/1"):
    try:
        with output.open("w", encoding="utf-8") as out:
            out.write(RECORD)
    except OSError:
        pass
