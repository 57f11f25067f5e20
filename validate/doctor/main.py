"""`doctor`: what this machine is good for, and the settings to train with on it.

docker run --rm --gpus all IMAGE doctor --model-size 7b --for axolotl
docker run --rm -i IMAGE doctor hint < train.log
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from validate import hints, report
from validate.doctor import hardware, snippets
from validate.doctor.advice import FRAMEWORKS, GB, STRATEGIES, Advice, Goal, Setting, advise
from validate.doctor.hardware import Found
from validate.terminal import wrapped

_WIDEST = 120
_VALUES = 17
"""Width of the column of values: flash_attention_2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Look, advise, print. 0 whatever is found; 2 for arguments that mean nothing. `hint` explains error texts."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["hint"]:
        return hints.main(given[1:])
    options = _parser().parse_args(given)
    found = hardware.detect()
    at_hand = (one for one in FRAMEWORKS[1:] if one in found.stack.packages)  # the one that the image was made for
    goal = Goal(
        billions=options.model_size,
        framework=options.framework or next(at_hand, FRAMEWORKS[0]),
        strategy=options.strategy,
        model=options.model,
        data=options.data,
    )
    advice = advise(found.hardware, found.stack, goal)
    shown = json.dumps(json_data(found, advice), indent=1) if options.json else "\n".join(text(found, advice))
    sys.stdout.write(shown + "\n")
    return 0


def model_size(value: str) -> float:
    """`7b`, `1.5B`, `350m` or a number of billions. Raises argparse.ArgumentTypeError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bm]?)", value.strip().lower())
    size = float(match[1]) / (1000 if match[2] == "m" else 1) if match else 0.0
    if not size:
        raise argparse.ArgumentTypeError(f"{value!r} is no model size: write 7b, 1.5b or 350m")
    return size


def json_data(found: Found, advice: Advice) -> dict[str, Any]:
    """The content of `doctor --json`."""
    framework, snippet = snippets.snippet(advice, found.stack)
    everything = {**asdict(found), **asdict(advice)}
    keys = ("hardware", "stack", "goal", "strategy", "gpus", "settings", "warnings", "troubles")
    return {
        **{key: everything[key] for key in keys},
        "hints": [{"id": hint.id, "cause": hint.cause, "fix": hint.fix} for hint in hints.find(found.troubles)],
        "snippet": {"framework": framework, "text": snippet},
    }


def text(found: Found, advice: Advice) -> Iterator[str]:
    """What a person reads, line by line."""
    width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
    machine, stack = found.hardware, found.stack
    driver = f", driver {machine.driver}" if machine.driver else ""
    for gpu in dict.fromkeys(machine.gpus):
        shared, capability = " shared with the CPU" if gpu.unified else "", ".".join(map(str, gpu.capability))
        shown = f"{gpu.name}, {gpu.memory / GB:.1f} GB{shared}, compute capability {capability}"
        yield f"GPU       {machine.gpus.count(gpu)} x {shown}{driver}"
    if not machine.gpus:
        yield f"GPU       none{driver}"
    packages = ", ".join(f"{name} {version}" for name, version in stack.packages.items())
    yield f"torch     {stack.torch or 'none'}, with {packages or 'nothing that matters here'}"
    shm = f", /dev/shm {machine.shm / GB:.2f} GB" if machine.shm is not None else ""
    yield f"machine   {machine.cpus} cores, {machine.memory / GB:.0f} GB of memory{shm}"
    for disk in machine.disks:
        yield f"disk      {disk.path} has {disk.free / GB:.0f} GB free for {disk.holds}"
    yield ""
    goal = advice.goal
    yield f"Settings for LoRA fine-tuning of a {goal.billions:g}b model ({goal.framework}):"
    for setting in advice.settings:
        yield from _row(setting, width)
    for line in (*(f"! {one}" for one in advice.warnings), *(f"trouble: {one}" for one in found.troubles)):
        yield ""
        yield wrapped(line, width, "  ")
    for hint in hints.find(found.troubles):
        yield wrapped(report.advice(hint), width, "  ")
    framework, snippet = snippets.snippet(advice, found.stack)
    yield ""
    yield f"---- {framework}: paste this into a shell, in a folder that you may write to"
    yield snippet.rstrip()


def _row(setting: Setting, width: int) -> Iterator[str]:
    """Name, value and why; below one another where the value is long."""
    value = ("yes" if setting.value else "no") if isinstance(setting.value, bool) else str(setting.value) or "-"
    head, why = f"  {setting.name:<23} {value:<{_VALUES}} ", f"{setting.why} [{setting.source}]"
    if len(value) > _VALUES:
        yield head
        head = " " * (27 + _VALUES)
    yield wrapped(head + why, width, " " * (27 + _VALUES))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="doctor", description="What this machine is good for in training; `doctor hint` explains an error text."
    )
    parser.add_argument("--model-size", type=model_size, default=7.0, metavar="7b", help="parameters (default: 7b)")
    parser.add_argument(
        "--for", dest="framework", choices=FRAMEWORKS, help="whose settings to print (default: what the image holds)"
    )
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        help="how several GPUs share the work (default: ddp if the model fits on each, else fsdp)",
    )
    parser.add_argument("--model", default="", metavar="NAME", help="a model's name or folder (default: a tiny one)")
    parser.add_argument(
        "--data",
        default="",
        metavar="FILE",
        help="JSON lines with instruction, input and output (default: the image's)",
    )
    parser.add_argument("--json", action="store_true", help="machine-readable, on stdout and nothing else")
    return parser
