"""`doctor`: facts about this machine and this image, and the settings that follow from them.

docker run --rm --gpus all IMAGE doctor
docker run --rm -i IMAGE doctor hint < train.log
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from validate import hints, report
from validate.doctor import hardware
from validate.doctor.advice import GB, Advice, Gpu, Setting, advise
from validate.doctor.hardware import Found
from validate.terminal import wrapped

_WIDEST = 120
_NAMES, _VALUES = 21, 17
"""Widths of two columns: CUDA_VISIBLE_DEVICES, flash_attention_2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Look and print. Returns 0 whatever is found, and 2 for unknown arguments. `hint` explains error texts."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["hint"]:
        return hints.main(words[1:])
    options = _parser().parse_args(words)

    found = hardware.detect()
    advice = advise(found.hardware, found.stack)
    if options.json:
        output = json.dumps(json_data(found, advice), indent=1)
    else:
        output = "\n".join(text(found, advice))
    sys.stdout.write(output + "\n")
    return 0


def json_data(found: Found, advice: Advice) -> dict[str, Any]:
    """Return the content of `doctor --json`. It holds no names of hosts or users: people attach it to issues."""
    matching = hints.find(found.troubles)
    return {
        **asdict(found),
        **asdict(advice),
        "hints": [{"id": hint.id, "cause": hint.cause, "fix": hint.fix} for hint in matching],
    }


def text(found: Found, advice: Advice) -> Iterator[str]:
    """Yield what a person reads, line by line: facts, settings, warnings, and errors with their hints."""
    width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
    yield from _facts(found)

    yield ""
    yield "Settings that follow:"
    for setting in advice.settings:
        yield from _row(setting, width)

    problems = [f"! {warning}" for warning in advice.warnings]
    problems += [f"trouble: {trouble}" for trouble in found.troubles]
    for problem in problems:
        yield ""
        yield wrapped(problem, width, "  ")
    for hint in hints.find(found.troubles):
        yield wrapped(report.advice(hint), width, "  ")


def _facts(found: Found) -> Iterator[str]:
    machine, stack = found.hardware, found.stack
    driver = f", driver {machine.driver}" if machine.driver else ""
    for gpu in dict.fromkeys(machine.gpus):
        yield f"GPU       {machine.gpus.count(gpu)} x {_shown(gpu)}{driver}"
    if not machine.gpus:
        yield f"GPU       none{driver}"

    packages = ", ".join(f"{name} {version}" for name, version in stack.packages.items())
    yield f"torch     {stack.torch or 'none'}, with {packages or 'none of the packages that settings depend on'}"
    shm = f", /dev/shm {machine.shm / GB:.2f} GB" if machine.shm is not None else ""
    yield f"machine   {machine.cpus} cores, {machine.memory / GB:.0f} GB of memory{shm}"
    for disk in machine.disks:
        yield f"disk      {disk.path} has {disk.free / GB:.0f} GB free for {disk.holds}"


def _shown(gpu: Gpu) -> str:
    shared = " shared with the CPU" if gpu.unified else ""
    capability = ".".join(map(str, gpu.capability))
    return f"{gpu.name}, {gpu.memory / GB:.1f} GB{shared}, compute capability {capability}"


def _row(setting: Setting, width: int) -> Iterator[str]:
    """Yield name, value and reason; the reason in a line below where the value is long."""
    head = f"  {setting.name:<{_NAMES}} {setting.value:<{_VALUES}} "
    indent = " " * (_NAMES + _VALUES + 4)
    if len(setting.value) > _VALUES:
        yield head.rstrip()
        head = indent
    yield wrapped(f"{head}{setting.why} [{setting.source}]", width, indent)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="doctor",
        description="Show this machine, this image and the settings that follow; `doctor hint` explains an error.",
    )
    # For issues: the form for a broken combination asks for it.
    parser.add_argument("--json", action="store_true", help="print JSON, for an issue or a script")
    return parser
