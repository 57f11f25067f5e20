"""Prunes locked wheels as a build does, and records the digests of the RECORDs that are left.

Claim `records` of an image for one GPU architecture compares installed RECORDs with them.
"""

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
from images.host import web
from images.host.hashing import sha256_of_file
from images.locking import uv, wheel_records
from images.locking.index_access import IndexLogin
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
    """Record what a wheel's RECORD (its list of files and hashes) is after pruning.

    The pruner takes code for other GPUs out of an image's libraries. So that an installed, pruned
    wheel can be compared with its lock, each wheel that was not measured yet is downloaded and
    pruned here.

    `lock` has the RECORDs of whole wheels (measure_records.update), `folder` is the folder of
    locks, and `run` calls uv. Returns the new table of RECORDs, a file of that folder, as {file
    name: content}; {} if every wheel was measured already, or if the image is not pruned. Raises
    UserError if a wheel can't be downloaded, differs from the lock, or can't be pruned.
    """
    if image.pruning is None:
        return {}
    unmeasured = pruner.unmeasured(image.pruning, lock)
    if not unmeasured:
        return {}

    # The lock has hashes of wheels. The index says where they can be downloaded.
    requirements = sorted({f"{package.name}=={package.version}" for package, _ in unmeasured})
    url_by_digest = uv.find_urls(requirements, lock.inputs, run=run, where=str(image.name))

    # The result of pruning depends on the pruner and its settings. `key` is a hash of both.
    key = pruner.key(image.pruning)
    program = pruner.files(image.pruning)
    login = IndexLogin(lock.inputs.indexes)
    table = wheel_records.read(folder)
    # `digest` is the sha256 of a whole wheel.
    for number, (package, digest) in enumerate(unmeasured, start=1):
        on_progress(
            f"{image.name}: pruning {package.name} {package.version} "
            f"({number} of {len(unmeasured)})"
        )
        record = lock.wheel_records[digest]
        pruned = dict(record.pruned)
        pruned[key] = _record_after_pruning(url_by_digest[digest], digest, program, login)
        release = table.setdefault(wheel_records.release(package), {})
        release[digest] = replace(record, pruned=pruned)
    return {wheel_records.FILE: wheel_records.serialize(table)}


def _record_after_pruning(
    url: str, digest: str, program: Mapping[str, bytes], login: IndexLogin
) -> str:
    """Download a wheel, run the pruner on it, and return the digest of the RECORD that is left.

    A RECORD is a wheel's list of its files with their hashes. The pruner takes code for other GPUs
    out of libraries. `digest` is the sha256 of the wheel in the lock. `program` has the pruner's
    files, by path, and `login` the user's logins for private indexes. Raises UserError if the wheel
    can't be downloaded, has another hash, or can't be pruned.
    """
    file_name = wheel_records.file_of(url)
    with tempfile.TemporaryDirectory(prefix="truetag-pruning-") as scratch:
        folder = Path(scratch)
        wheel = folder / "wheel.whl"
        _download(url, digest, wheel, login)

        # The pruner sees only site-packages. A RECORD also has rows of files that are installed
        # elsewhere (`:bin/torchrun`): these stay as they are.
        rows_outside: dict[str, str] = {}
        rows_inside: dict[str, str] = {}
        with zipfile.ZipFile(wheel) as archive:
            for path, file_digest in wheel_records.rows_of(archive).items():
                rows = rows_outside if path.startswith(":") else rows_inside
                rows[path] = file_digest
            record = _unpack(archive, rows_inside, folder / "site")
        # Its libraries are unpacked. Free the disk, because the largest wheels have gigabytes.
        wheel.unlink()

        _run_pruner(program, folder, record, file_name)
        with record.open(encoding="utf-8", newline="") as lines:
            pruned_rows = wheel_contents.rows_of_wheel(csv.reader(lines))
        return wheel_contents.digest_of({**rows_outside, **pruned_rows})


def _download(url: str, digest: str, target: Path, login: IndexLogin) -> None:
    """Download a wheel to the file `target`, with the user's logins for private indexes.

    `digest` is the sha256 that the lock has. Raises UserError if the download fails, or if the
    wheel has another sha256.
    """
    file_name = wheel_records.file_of(url)
    try:
        prebuilt.download(url, target, login)
    except OSError as error:
        cause = f"this wheel can't be fetched from its index: {web.describe_failure(error)}"
        then = f"`{command('lock')}` again, when the index answers"
        raise failed(file_name, cause, then) from None
    actual_digest = sha256_of_file(target)
    if actual_digest != digest:
        cause = (
            f"the wheel is refused: the index serves one with sha256 {actual_digest}, and the lock "
            f"has {digest}"
        )
        then = (
            "ask those who run the index why the file changed, or set UV_DEFAULT_INDEX to another "
            f"index and `{command('lock')}` again"
        )
        raise failed(file_name, cause, then)


def _run_pruner(program: Mapping[str, bytes], folder: Path, record: Path, wheel_name: str) -> None:
    """Run the pruner, as a build does, on the wheel whose RECORD is `record`.

    The pruner takes code for other GPUs out of the wheel's unpacked libraries, and writes the
    RECORD (the list of its files and hashes) anew. `program` has the pruner's own files, path ->
    content: they are put below `folder`. Raises UserError, which names the wheel, if it fails.
    """
    for path, content in program.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    words = [sys.executable, "-I", "-B", str(folder / "pruner"), str(record)]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    if process.returncode:
        then = "report it as an issue of truetag: builds of this image would end in the same way"
        raise failed(wheel_name, process.stderr.strip(), then)


def _unpack(wheel: zipfile.ZipFile, rows: Mapping[str, str], site: Path) -> Path:
    """Unpack the libraries of a wheel into the folder `site`, and return a RECORD written there.

    The RECORD is a CSV file that lists every file of `rows` with its hash. `rows` are the files
    below site-packages, path -> sha256. The pruner looks at libraries only, so nothing else is
    unpacked.
    """
    for member in wheel.namelist():
        path = wheel_contents.installed_path(member)
        # Libraries also end in versions (`libcudart.so.12`).
        file_name = path.rpartition("/")[2]
        if path in rows and ".so" in file_name:
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(member) as source, target.open("wb") as stream:
                shutil.copyfileobj(source, stream)

    record = site / _record_path(wheel)
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        for path, digest in rows.items():
            # The third column, the size, may be empty.
            writer.writerow((path, f"sha256={digest}", ""))
    return record


def _record_path(wheel: zipfile.ZipFile) -> str:
    """Return the path of a wheel's own RECORD in it, which `rows_of` has seen to be there."""
    for member in wheel.namelist():
        if member.endswith(".dist-info/RECORD") and member.count("/") == 1:
            return member
    raise KeyError("RECORD")
