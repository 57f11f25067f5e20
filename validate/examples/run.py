"""An example, run as its README says: its commands, in a copy of its folder, each in a fresh process."""

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
"""Beside the suite: in a checkout, in a validation run and in an image."""
_LOG_TAIL = 2000
_RAISED = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b")


class ExampleError(RuntimeError):
    """A command of an example failed, or did not end in time."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """An example that has run to its end."""

    folder: Path
    """Where its commands ran: paths in its configuration are relative to it."""
    config: Mapping[str, Any]
    example: Mapping[str, Any]
    device: str
    """`cpu` or `cuda`: where its result is loaded again."""
    seconds: float
    compiled: int
    """Modules that torch.compile's Inductor wrote."""
    attention: int = 0
    """Backward kernels that flash-attn-4 compiled."""

    @property
    def model(self) -> Path:
        """The model it began with."""
        return self.folder / str(self.config.get("model") or self.config["base_model"])

    def result(self) -> Mapping[str, Any]:
        """What a program of ours wrote at its end."""
        found: Mapping[str, Any] = json.loads(
            (self.folder / self.config["out"] / "result.json").read_text()
        )
        return found


def run(example: Mapping[str, Any], place: Path, device: str) -> Run:
    """Run an example in `place`. Raises ExampleError with what a failed command printed last.

    example: {folder: below examples/, where its commands run, commands, config: the file there that says what it
    trains, adapter: who reads what it left (evidence.py, ADAPTERS), seconds: for all of its commands}.
    """
    shutil.copytree(EXAMPLES, place / "examples")
    folder = place / "examples" / example["folder"]
    until = time.monotonic() + example["seconds"]
    started = time.monotonic()
    inductor, attention = place / "inductor", place / "attention"
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(inductor),
        "CUTE_DSL_KEEP": "cubin",
        "CUTE_DSL_DUMP_DIR": str(attention),
    }
    attention.mkdir()
    for command in example["commands"]:
        _call(command, folder, until, caches)
    config = importlib.import_module("yaml").safe_load(
        (folder / example["config"]).read_text(encoding="utf-8")
    )
    return Run(
        folder=folder,
        config=config,
        example=example,
        device=device,
        seconds=time.monotonic() - started,
        compiled=len(list(inductor.rglob("*.py"))),
        attention=len(list(attention.rglob("*flash_bwd*.cubin"))),
    )


def _call(command: str, folder: Path, until: float, variables: Mapping[str, str]) -> None:
    """Run a command. Raises ExampleError with what it printed last."""
    log = folder / "log"
    # A container without a network has the loopback interface alone, which gloo does not take by itself.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **variables}
    code = run_in_own_session(
        shlex.split(command), log, max(1.0, until - time.monotonic()), cwd=folder, env=environment
    )
    text = log.read_text(encoding="utf-8", errors="replace")
    print(f"$ {command}\n{text[-2 * _LOG_TAIL :]}", flush=True)  # noqa: T201  the probe's log
    if code != 0:
        end = "did not end in time" if code is None else f"ended with status {code}"
        raise ExampleError(f"`{command}` {end}: {_last_words(text)}")


def _last_words(text: str) -> str:
    """The last exception, a rank's before its launcher's; where none was printed, the last lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    of_ranks = [line for line in raised if line.startswith("[rank")]
    return " | ".join(of_ranks[-1:] or raised[-1:] or lines[-3:])[-_LOG_TAIL:]
