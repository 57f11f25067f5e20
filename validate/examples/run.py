"""Run an example as its README says: its commands, one after another, in a copy of examples/."""

import importlib
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validate.harness.forked import run_in_own_session

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
"""This folder lies beside the suite: in a checkout, in a validation run and in an image."""
_LOG_TAIL_CHARACTERS = 2000
_EXCEPTION = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b")
"""The beginning of a line that names an exception; torchrun puts the rank before it."""


class ExampleError(RuntimeError):
    """A command of an example failed, or did not end in time."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """An example that has run to its end."""

    folder: Path
    """Where its commands ran. Paths in its configuration are relative to it."""
    config: Mapping[str, Any]
    """The contents of the YAML file that says what it trains."""
    example: Mapping[str, Any]
    """How it was to be run, by its claim (validate/checks/_behaviour.py, ExampleRun)."""
    device: str
    """`cpu` or `cuda`: where its result is loaded again."""
    seconds: float
    inductor_modules: int
    """How many modules torch.compile's Inductor wrote."""
    flash_attn_4_kernels: int = 0
    """How many backward kernels flash-attn-4 compiled."""

    @property
    def model(self) -> Path:
        """The folder of the model that it began with."""
        return self.folder / str(self.config.get("model") or self.config["base_model"])

    def result(self) -> Mapping[str, Any]:
        """Return the result.json that one of our own programs wrote at its end."""
        file = self.folder / self.config["out"] / "result.json"
        result: Mapping[str, Any] = json.loads(file.read_text())
        return result


def run(example: Mapping[str, Any], place: Path, device: str) -> Run:
    """Copy examples/ into the folder `place`, run one example's commands there, and return the run.

    `example` has `folder` (below examples/, where its commands run), `commands`, `config` (the YAML
    file there that says what it trains) and `seconds` (the limit for all commands together).
    Raises ExampleError, with the cause, if a command fails or takes too long.
    """
    shutil.copytree(EXAMPLES, place / "examples")
    folder = place / "examples" / example["folder"]
    start = time.monotonic()
    deadline = start + example["seconds"]

    # Compilers leave what they compile in new folders, where it can be counted below: modules of
    # Inductor, and kernels of flash-attn-4 (its backward's, which run only in training).
    inductor_folder = place / "inductor"
    attention_folder = place / "attention"
    attention_folder.mkdir()
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(inductor_folder),
        "CUTE_DSL_KEEP": "cubin",
        "CUTE_DSL_DUMP_DIR": str(attention_folder),
    }
    for command in example["commands"]:
        run_command(command, folder, deadline, variables)

    yaml = importlib.import_module("yaml")
    config = yaml.safe_load((folder / example["config"]).read_text(encoding="utf-8"))
    return Run(
        folder=folder,
        config=config,
        example=example,
        device=device,
        seconds=time.monotonic() - start,
        inductor_modules=len(list(inductor_folder.rglob("*.py"))),
        flash_attn_4_kernels=len(list(attention_folder.rglob("*flash_bwd*.cubin"))),
    )


def run_command(command: str, folder: Path, deadline: float, variables: Mapping[str, str]) -> None:
    """Run a command in a folder, with `variables` added to the environment, and print its log.

    `deadline` is a time of time.monotonic(). Raises ExampleError with the line of the log that
    names the cause, if the command fails or has not ended by then.
    """
    log_file = folder / "log"
    # A container without a network has only the loopback interface, which gloo does not choose by
    # itself.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **variables}
    # A command has at least a second, even if earlier commands took all the time.
    seconds_left = max(1.0, deadline - time.monotonic())
    # The exit code is None if the command was stopped because its time was up.
    exit_code = run_in_own_session(
        shlex.split(command), log_file, seconds_left, cwd=folder, env=environment
    )

    log = log_file.read_text(encoding="utf-8", errors="replace")
    # The probe's own log gets twice as much of it as the message of an error may have.
    shown_log = log[-2 * _LOG_TAIL_CHARACTERS :]
    print(f"$ {command}\n{shown_log}", flush=True)  # noqa: T201  the probe's log
    if exit_code is None:
        raise ExampleError(f"`{command}` did not end in time: {find_cause(log)}")
    if exit_code != 0:
        raise ExampleError(f"`{command}` ended with status {exit_code}: {find_cause(log)}")


def find_cause(log: str) -> str:
    """Return the line of a failed command's log that names the cause; a long one is cut.

    It is the last exception of a rank (a process that torchrun started), if there is one, since
    torchrun's own exception follows from it; otherwise the last exception, or the last three lines
    where none was printed.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    rank_exceptions = [line for line in exceptions if line.startswith("[rank")]
    if rank_exceptions:
        cause = rank_exceptions[-1]
    elif exceptions:
        cause = exceptions[-1]
    else:
        cause = " | ".join(lines[-3:])
    return cause[-_LOG_TAIL_CHARACTERS:]
