"""`doctor`: print facts about this machine and this image, and the settings that follow from them.

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

from validate import elsewhere, hints
from validate.doctor import hardware
from validate.doctor.advice import GB, Advice, Gpu, Setting, advise
from validate.doctor.hardware import Inspection
from validate.terminal import wrapped

_WIDEST = 120
_TOPIC_WIDTH = 10
"""The column of a fact's topic: `GPU`, `machine`."""
_NAME_WIDTH, _VALUE_WIDTH = 21, 17
"""Columns have room for CUDA_VISIBLE_DEVICES and flash_attention_2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Inspect the machine and print the result, or explain errors if the first argument is `hint`.

    `arguments`: by default those of the command line. Returns 0 whatever is found, and exits with 2
    for unknown arguments.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["hint"]:
        return hints.main(words[1:])
    options = _make_parser().parse_args(words)

    inspection = hardware.inspect()
    advice = advise(inspection.hardware, inspection.stack)
    if options.json:
        output = json.dumps(json_data(inspection, advice), indent=1)
    else:
        output = "\n".join(text(inspection, advice))
    sys.stdout.write(output + "\n")
    return 0


def json_data(inspection: Inspection, advice: Advice) -> dict[str, Any]:
    """Return the content of `doctor --json`.

    It holds no names of hosts or users: people attach it to issues.
    """
    matching_hints = []
    for hint in hints.find(inspection.troubles):
        matching_hints.append({"id": hint.id, "cause": hint.cause, "fix": hint.remedy})
    return {**asdict(inspection), **asdict(advice), "hints": matching_hints}


def text(inspection: Inspection, advice: Advice) -> Iterator[str]:
    """Yield the lines of `doctor`'s report: facts, settings, warnings, and errors with hints.

    An inspection has what the machine and the image are, and the errors that it met (`troubles`).
    `advice` has the settings and warnings that follow. Long lines are wrapped at the terminal's
    width.
    """
    width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
    for fact in _write_facts(inspection):
        yield wrapped(fact, width, " " * _TOPIC_WIDTH)

    yield ""
    yield "Settings that follow:"
    for setting in advice.settings:
        yield from _write_setting(setting, width)

    problems = [f"! {warning}" for warning in advice.warnings]
    problems += [f"trouble: {trouble}" for trouble in inspection.troubles]
    for problem in problems:
        yield ""
        yield wrapped(problem, width, "  ")
    # What serves without Docker is the same for several hints: it comes once, after them.
    replacements: dict[str, None] = {}
    for hint in hints.find(inspection.troubles):
        yield wrapped(f"hint: {hint.cause} {hint.fix}", width, "  ")
        replacements.update(dict.fromkeys(elsewhere.replacements_in(hint.fix)))
    for replacement in replacements:
        yield wrapped(replacement, width, "  ")


def _write_facts(inspection: Inspection) -> Iterator[str]:
    """Yield the lines of a report about this machine: its GPUs, torch, memory and disks.

    A line begins with its topic in a column of ten characters: `GPU       8 x NVIDIA H200 (...)`.
    """
    machine, stack = inspection.hardware, inspection.stack

    # GPUs of one model are equal, so a machine with eight of them gets one line.
    driver = f", driver {machine.driver}" if machine.driver else ""
    for gpu in dict.fromkeys(machine.gpus):
        yield f"GPU       {machine.gpus.count(gpu)} x {_describe_gpu(gpu)}{driver}"
    if not machine.gpus:
        yield f"GPU       none{driver}"

    versions = [f"{name} {version}" for name, version in stack.packages.items()]
    packages = ", ".join(versions) or "none of the packages that settings depend on"
    yield f"torch     {stack.torch or 'none'}, with {packages}"

    shm = f", /dev/shm {machine.shm / GB:.2f} GB" if machine.shm is not None else ""
    yield f"machine   {machine.cpus} cores, {machine.memory / GB:.0f} GB of memory{shm}"
    for disk in machine.disks:
        yield f"disk      {disk.path} has {disk.free / GB:.0f} GB free for {disk.holds}"


def _describe_gpu(gpu: Gpu) -> str:
    """Return `NVIDIA H100, 85.0 GB, compute capability 9.0`."""
    shared = " shared with the CPU" if gpu.unified else ""
    capability = ".".join(map(str, gpu.capability))
    return f"{gpu.name}, {gpu.memory / GB:.1f} GB{shared}, compute capability {capability}"


def _write_setting(setting: Setting, width: int) -> Iterator[str]:
    """Yield the lines of a setting: its name, value and reason, in columns.

    The reason is in a line below if the value is too long for its column. `width`: of the terminal.
    """
    name_and_value = f"  {setting.name:<{_NAME_WIDTH}} {setting.value:<{_VALUE_WIDTH}} "
    reason = f"{setting.why} [{setting.source}]"
    indent = " " * (_NAME_WIDTH + _VALUE_WIDTH + 4)
    if len(setting.value) > _VALUE_WIDTH:
        yield name_and_value.rstrip()
        yield wrapped(indent + reason, width, indent)
    else:
        yield wrapped(name_and_value + reason, width, indent)


def _make_parser() -> argparse.ArgumentParser:
    """Return the parser of `doctor`'s options. `hint` has its own (validate/hints.py)."""
    parser = argparse.ArgumentParser(
        prog="doctor",
        description="Show this machine, this image and the settings that follow; "
        "`doctor hint` explains an error.",
    )
    # The issue form for a broken combination asks for this JSON.
    parser.add_argument("--json", action="store_true", help="print JSON, for an issue or a script")
    return parser
