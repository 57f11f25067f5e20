"""What the pruner leaves of a wheel, made outside an image, is what it leaves of the installed one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from images.config.names import Arch
from images.context import pruner
from images.errors import UserError
from images.host.hashing import sha256_of_file
from images.planning.image import Pruning
from images.wheels import pruned_records
from tests.support import fatbins, wheels
from tests.support.fatbins import Code
from tests.support.http_server import serving
from validate.environment import wheel_contents
from validate.environment.wheel_contents import Rows

WANTED = Pruning(arch=Arch(9, 0), nvidia=False)


def pruned_of(wheel: Path, digest: str) -> str:
    with serving() as server:
        server.answer = lambda *_: (200, {}, wheel.read_bytes())
        url = f"http://{server.host}/{wheel.name}"
        return pruned_records._record_after_pruning(url, digest, pruner.files(WANTED))


def pruned(folder: Path, files: Mapping[str, bytes]) -> tuple[str, Rows]:
    """Return the digest of what the pruner leaves of a wheel of these files, and the rows of the whole."""
    wheel = wheels.make(folder, files)
    found = pruned_of(wheel, sha256_of_file(wheel))
    return found, wheel_contents.rows_of_wheel(
        [[name, wheels.record_hash(one)] for name, one in files.items()]
    )


def test_a_pruned_wheel_has_another_digest_and_one_without_other_code_stays(tmp_path: Path) -> None:
    code = (Code(arch=arch, kernels={"kernel": 512}) for arch in (80, 90))
    found, whole = pruned(
        tmp_path, {**wheels.FILES, "small/lib.so": fatbins.library(fatbins.region(*code))}
    )
    assert found != wheel_contents.digest_of(whole)
    found, whole = pruned(tmp_path, wheels.FILES)
    assert found == wheel_contents.digest_of(whole)


def test_a_wheel_that_is_not_the_locks_is_refused(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path)
    with pytest.raises(UserError, match="the lock has 00"):
        pruned_of(wheel, "00")


def test_the_key_tells_one_pruner_from_another() -> None:
    nvidia, older = replace(WANTED, nvidia=True), replace(WANTED, arch=Arch(8, 0))
    others = [nvidia, older, replace(WANTED, alternatives={"a": ("b",)})]
    assert len({pruner.key(one) for one in (WANTED, *others)}) == 4
    assert pruner.reads(WANTED, "torch") and not pruner.reads(None, "torch")
    assert pruner.reads(nvidia, "nvidia-nccl-cu12") and not pruner.reads(WANTED, "nvidia-nccl-cu12")
