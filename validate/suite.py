"""Runs the probes that a claim file names, each in a process of its own, and prints one JSON record a line.

    python3 -I -S FOLDER/validate --claims claims.json --tier static --tier cpu

`-I -S` keeps the image's own environment (PYTHONPATH, PYTHONOPTIMIZE, sitecustomize) away from the suite. Static
probes are started so too, as they only read files; all others start as a user's process in the image would.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from validate import checks
from validate.claims import ClaimSet, Tier
from validate.environment import user_environment
from validate.environment.user_environment import UserEnvironment
from validate.evidence import Measurement, Outcome, Record
from validate.fork_server import ForkServer, ForkServerError
from validate.measure import measure

TIMEOUT_SECONDS: Mapping[Tier, float] = {Tier.STATIC: 900, Tier.CPU: 900, Tier.GPU: 900, Tier.MULTIGPU: 1500}
"""A whole tier takes under a minute on two cores: a probe past these limits hangs. Ranks have limits of their own,
which tell more, so their tier's lies above what those add up to (checks/multigpu/_launch.py). A check may have its own
limit (checks.Settings).
"""

LOG_TAIL_CHARACTERS = 4000
_PACKAGE = Path(__file__).resolve().parent
_ISOLATED = ("-I", "-S")
_CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
    "HF_HOME": "huggingface",
}
"""Where compilers and hubs keep what they made. Each probe gets empty ones: a warm cache hides a missing compiler."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite, or (`--probe`) one probe in this process. The exit status says nothing about the image."""
    options = _parser().parse_args(arguments)
    claims = ClaimSet.loads(Path(options.claims).read_text(encoding="utf-8"))
    if options.probe:
        measure(options.probe, claims, Path(options.out))
        return 0
    tiers = [Tier(tier) for tier in options.tier or Tier]
    user = user_environment.read(Path(options.user)) if options.user else None
    how: dict[str, Any] = {"jobs": options.jobs, "timeout": options.timeout, "emulated": options.emulated}
    for record in run(claims.of(tiers), user=user, **how):
        print(json.dumps(asdict(record)), flush=True)  # noqa: T201  the suite's output
    return 0


def run(
    claims: ClaimSet,
    *,
    jobs: int,
    timeout: float | None = None,
    user: UserEnvironment | None = None,
    emulated: bool = False,
) -> Iterator[Record]:
    """Start every probe that a claim asks for, at most `jobs` at once, and yield each record as its process ends.

    Those that want to be alone come last, one after another. `timeout` is in seconds a probe; None: its own, else its
    tier's. Claims known to be unproven are not measured. `user` is whom probes look at if it is not this process's
    user: then they keep this process's own environment. Where programs run emulated, probes that begin with torch share
    its import.
    """
    probes = dict.fromkeys(claim.probe for claim in claims.inside().claims if not claim.unproven)
    given = user or user_environment.of_this_process()
    with tempfile.TemporaryDirectory(prefix="validate-") as folder, contextlib.ExitStack() as held:
        scratch = Path(folder)
        claim_file = scratch / "claims.json"
        claim_file.write_text(claims.dumps(), encoding="utf-8")
        marker = user_environment.record(given, scratch / "user-environment.json")
        environ = {
            **(os.environ if user else given.environ),
            **marker,
            **(user_environment.EMULATED if emulated else {}),
        }
        server = None
        if emulated and sum(checks.settings(probe).torch_first for probe in probes) > 1:
            server = held.enter_context(ForkServer([sys.executable, str(_PACKAGE)], environ, scratch / "fork-server"))
        pool = held.enter_context(ThreadPoolExecutor(max_workers=jobs))
        running = [
            pool.submit(_run_probe, probe, claim_file, scratch / probe, environ, timeout, server)
            for probe in sorted(probes, key=lambda probe: _turn(probe, server))
            if not checks.settings(probe).alone
        ]
        for future in as_completed(running):
            yield future.result()
        for probe in probes:
            if checks.settings(probe).alone:
                yield _run_probe(probe, claim_file, scratch / probe, environ, timeout)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="validate", description="Measure an image from inside, one record a line.")
    parser.add_argument("--claims", required=True, help="the image's claims, as JSON")
    parser.add_argument("--tier", action="append", choices=[tier.value for tier in Tier], help="default: all")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="probes at once (cores)")
    parser.add_argument("--timeout", type=float, help="seconds a probe (default: by tier)")
    parser.add_argument("--emulated", action="store_true", help="programs run emulated: import torch once")
    parser.add_argument("--user", metavar="FILE", help="look at this user's environment, not at this process's")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    return parser


def _turn(probe: str, server: ForkServer | None) -> int:
    """When a probe begins. Those that need the server leave it time to import torch."""
    how = checks.settings(probe)
    if server is None:
        return int(not how.starts_first)
    return 1 + (not how.starts_first) if how.torch_first else 0


def _run_probe(
    probe: str,
    claim_file: Path,
    scratch: Path,
    environ: Mapping[str, str],
    timeout: float | None,
    server: ForkServer | None = None,
) -> Record:
    started = time.monotonic()
    if checks.file_of(probe) is None:
        return Record(probe=probe, outcome=Outcome.MISSING, seconds=0.0)
    scratch.mkdir()
    results, log = scratch / "results", scratch / "log"
    tier = Tier(probe.partition(".")[0])
    flags = _ISOLATED if tier is Tier.STATIC else ()
    command = [sys.executable, *flags, str(_PACKAGE), "--claims", str(claim_file), "--probe", probe]
    limit = timeout or checks.settings(probe).seconds or TIMEOUT_SECONDS[tier]
    caches = _cold_caches(scratch)
    request = {"probe": probe, "claims": str(claim_file), "out": str(results), "log": str(log), "environ": caches}
    code = _forked_or_called(server, request, [*command, "--out", str(results)], {**environ, **caches}, limit)
    measurements, closed = _read(results)
    return Record(
        probe=probe,
        outcome=_outcome(code, closed),
        seconds=round(time.monotonic() - started, 3),
        measurements=measurements,
        exit_code=code,
        log=_tail(log),
    )


def _forked_or_called(
    server: ForkServer | None,
    request: Mapping[str, Any],
    command: Sequence[str],
    environ: Mapping[str, str],
    limit: float,
) -> int | None:
    """In a fork of the server; in a process of its own where there is none, or where it can't import torch."""
    if server is not None and checks.settings(request["probe"]).torch_first:
        with contextlib.suppress(ForkServerError):
            return server.call(request, limit)
    return _call(command, environ, Path(request["log"]), limit)


def _call(command: Sequence[str], environ: Mapping[str, str], log: Path, limit: float) -> int | None:
    """Run in a session of its own, so that nothing it started outlives it. None: it ran past the limit."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _outcome(code: int | None, closed: bool) -> Outcome:
    """The closing line decides; how a process died only says why there is none."""
    if closed:
        return Outcome.COMPLETED
    if code is None:
        return Outcome.TIMED_OUT
    return Outcome.SILENT if code == 0 else Outcome.CRASHED


def _cold_caches(scratch: Path) -> dict[str, str]:
    return {variable: str(scratch / "cache" / folder) for variable, folder in _CACHES.items()}


def _read(results: Path) -> tuple[tuple[Measurement, ...], bool]:
    """Measurements of a result file, and whether its closing line is there. A torn last line is left out."""
    if not results.exists():
        return (), False
    measurements: list[Measurement] = []
    for line in results.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if entry.get("closing"):
            return tuple(measurements), True
        measurements.append(Measurement(**entry))
    return tuple(measurements), False


def _tail(log: Path) -> str:
    with log.open("rb") as lines:
        lines.seek(max(0, log.stat().st_size - LOG_TAIL_CHARACTERS))
        return lines.read().decode("utf-8", "replace")
