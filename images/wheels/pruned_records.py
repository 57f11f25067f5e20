"""What the pruner of build steps leaves of a lock's wheels: claim `records` of images for one GPU architecture."""

import csv
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from images.context import pruner
from images.errors import command, failed
from images.host.hashing import sha256_of_file
from images.locking import uv, wheel_records
from images.locking.lock_file import Lock
from images.locking.uv import Runner
from images.planning.image import Image
from images.wheels import prebuilt
from validate.environment import wheel_contents


def update(
    image: Image,
    lock: Lock,
    folder: Path,
    *,
    run: Runner = uv.run,
    on_progress: Callable[[str], None] = lambda _text: None,
) -> dict[str, bytes]:
    """Return the table of RECORDs with the pruned ones of an image: path below `folder` (of the locks) -> content.

    Nothing if all are known. `lock` has the RECORDs of its wheels (measure_records.update). Raises UserError: a wheel
    that can't be fetched, or is not the lock's, or can't be pruned.
    """
    if image.pruning is None:
        return {}
    wanted = pruner.unmeasured(image.pruning, lock)
    if not wanted:
        return {}
    exact = sorted({f"{package.name}=={package.version}" for package, _ in wanted})
    addresses = uv.addresses(exact, lock.inputs, run=run, where=str(image.name))
    key, program = pruner.key(image.pruning), dict(pruner.files(image.pruning))
    table = wheel_records.read(folder)
    for number, (package, digest) in enumerate(wanted, start=1):
        on_progress(
            f"{image.name}: pruning {package.name} {package.version} ({number} of {len(wanted)})"
        )
        whole = lock.wheel_records[digest]
        pruned = {**whole.pruned, key: _pruned(addresses[digest], digest, program)}
        table.setdefault(wheel_records.release(package), {})[digest] = replace(whole, pruned=pruned)
    return {wheel_records.FILE: wheel_records.serialize(table)}


def _pruned(url: str, digest: str, program: Mapping[str, bytes]) -> str:
    """Return the digest of a wheel's RECORD as the pruner leaves it.

    Files outside site-packages (`:...`) stay: it does not know them.
    """
    where = wheel_records.file_of(url)
    with tempfile.TemporaryDirectory(prefix="truetag-pruning-") as scratch:
        folder = Path(scratch)
        wheel = folder / "wheel.whl"
        try:
            prebuilt.download(url, wheel)
        except OSError as error:
            raise failed(
                where, f"can't be fetched: {error}", f"`{command('lock')}` again"
            ) from None
        if (found := sha256_of_file(wheel)) != digest:
            raise failed(
                where,
                f"has sha256 {found}, the lock has {digest}: refused",
                "ask whoever serves the index",
            )
        with zipfile.ZipFile(wheel) as opened:
            rows = wheel_records.rows_of(opened)
            outside = {path: one for path, one in rows.items() if path.startswith(":")}
            inside = {path: one for path, one in rows.items() if path not in outside}
            record = _unpack(opened, inside, folder / "site")
        wheel.unlink()
        for path, content in program.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        prune = [sys.executable, "-I", "-B", str(folder / "pruner"), str(record)]
        done = subprocess.run(prune, capture_output=True, text=True, check=False)
        if done.returncode:
            raise failed(
                where,
                done.stderr.strip(),
                "the build of this image ends in the same way: report it",
            )
        with record.open(encoding="utf-8", newline="") as lines:
            return wheel_contents.digest_of(
                {**outside, **wheel_contents.rows_of_wheel(csv.reader(lines))}
            )


def _unpack(wheel: zipfile.ZipFile, rows: Mapping[str, str], site: Path) -> Path:
    """The libraries of a wheel, and a RECORD of its rows below site-packages: all that the pruner looks at."""
    info = next(
        name
        for name in wheel.namelist()
        if name.endswith(".dist-info/RECORD") and name.count("/") == 1
    )
    for member in wheel.namelist():
        path = wheel_contents.installed_path(member)
        if path in rows and ".so" in path.rpartition("/")[2]:
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(member) as source, target.open("wb") as stream:
                shutil.copyfileobj(source, stream)
    record = site / info
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(
            (path, f"sha256={one}", "") for path, one in rows.items()
        )
    return record
