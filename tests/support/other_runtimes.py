"""Judges an image of this machine's engine with Apptainer, and tells which verdicts are other than Docker's.

By hand, with a registry of its own; EVIDENCE is what a build or `validate` with Docker left:

    python -m tests.support.other_runtimes cu126-torch25 out/cu126-torch25/evidence.json

Apptainer is sid's, in a root file system of its own, as a user without rights, with this machine's Python: it unpacks
the image, and needs as much disk as that twice. (Podman: tests/integration/test_fleet.py.)
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks import loopback
from images.engine import connect
from images.fleet import images
from images.fleet.folder import JobFolder
from images.registry.reference import Repository
from tests.support.checkout import ROOT
from tests.support.debian_tools import bootstrap
from validate.evidence import Evidence
from validate.judge import judge

PACKAGES = "apptainer,ca-certificates,procps,python3,uidmap"
UID = 59900
_SCRIPT = Path(__file__).with_name("apptainer_root.sh")
Verdicts = Mapping[str, tuple[str, str]]
"""Claim -> verdict and reason."""


@contextmanager
def apptainer_root() -> Iterator[list[str]]:
    """What stands before a command that is to run beside Apptainer. /own is its user's, and large."""
    with tempfile.TemporaryDirectory(prefix="truetag-apptainer-root-") as name:
        root = Path(name) / "root"
        bootstrap("sid", root, "--variant=minbase", f"--include={PACKAGES}")
        Path(name).chmod(0o755)
        (root / "root").chmod(0o755)
        with (root / "etc" / "passwd").open("a") as users:
            users.write(f"judge:x:{UID}:{UID}::/own:/bin/sh\n")
        (root / "own").mkdir()
        os.chown(root / "own", UID, UID)
        shown = " ".join(dict.fromkeys((str(ROOT), sys.prefix, sys.base_prefix)))
        environment = ["HOME=/own", "APPTAINER_TMPDIR=/own", "PATH=/usr/bin:/bin", f"PYTHONPATH={ROOT}"]
        yield [
            *("env", f"TRUETAG_SHOWN={shown}", "unshare", "--mount", "--propagation", "private"),
            *("sh", str(_SCRIPT), str(root), str(UID), "env", "-i", *environment),
        ]


def compared(image: str, evidence: Path) -> None:
    """Judge the static and the cpu tier. Raises ValueError where there is no verdict."""
    recorded, start = Evidence.loads(evidence.read_text()), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="truetag-runtimes-") as name, connect(None) as engine:
        folder = Path(name)
        with loopback.registry(folder / "registry") as host:
            info = engine.inspect(image)
            assert info.id == recorded.digest, "the evidence is of another image"
            sent = images.send(engine, info, Repository.parse(f"{host}/fleet"), folder / "push")
            found = _by_apptainer(image, sent, folder / "apptainer")
    _tell(_verdicts(recorded), found, time.monotonic() - start)


def _by_apptainer(image: str, reference: str, out: Path) -> Verdicts:
    asked = ["run", "--image", f"{image}={reference}", "--tier", "static", "--tier", "cpu", "--out", "/own/fleet"]
    with apptainer_root() as before:
        command = [sys.executable, "-m", "images", "fleet", *asked, "--engine", "apptainer"]
        script = 'cd "$0" && "$@"; status=$?; find /own -maxdepth 1; pgrep -a apptainer; exit $status'
        done = subprocess.run(
            [*before, "sh", "-c", script, str(ROOT), *command], capture_output=True, text=True, check=False
        )
        sys.stderr.write(done.stdout[-1000:] + done.stderr[-3000:])
        root = Path(before[before.index(str(_SCRIPT)) + 1])
        shutil.copytree(root / "own" / "fleet", out)
    folder = JobFolder(out)
    (record,) = folder.records().values()
    sys.stdout.write(f"{record.worker.engine}: judged in {record.seconds:.0f} s, the fetching among them\n")
    return _verdicts(folder.evidence(record))


def _verdicts(evidence: Evidence) -> Verdicts:
    judged = judge(evidence.claim_set, evidence)
    found = {f"{one.claim.id} {one.claim.subject}": (str(one.status), one.reason) for one in judged.claims}
    return {claim: row for claim, row in found.items() if row[0] != "NOT_APPLICABLE"}


def _tell(docker: Verdicts, found: Verdicts, seconds: float) -> None:
    for who, rows in (("Docker", docker), ("here", found)):
        sys.stdout.write(f"{who}: {dict(Counter(verdict for verdict, _ in rows.values()))}\n")
    sys.stdout.write(f"{seconds:.0f} s in all\n\n| claim | Docker | here |\n|---|---|---|\n")
    for claim in docker:
        other = found.get(claim, ("not there", ""))
        if other[0] != docker[claim][0]:
            sys.stdout.write(f"| {claim} | {docker[claim][0]} | {other[0]}: {other[1]} |\n")
    for claim in found.keys() - docker.keys():
        sys.stdout.write(f"| {claim} | not there | {found[claim][0]}: {found[claim][1]} |\n")


if __name__ == "__main__":
    compared(sys.argv[1], Path(sys.argv[2]))
