"""What the pruner leaves of a wheel outside of an image is what it leaves of the installed one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from images.config.names import Arch
from images.context import pruner
from images.errors import UserError
from images.host.hashing import sha256_of_file
from images.locking.index_access import IndexLogin
from images.planning.image import Pruning
from images.wheels import pruned_records
from tests.support import fatbins, wheels
from tests.support.fatbins import Code
from tests.support.http_server import serving
from validate.environment import wheel_contents

PRUNING = Pruning(arch=Arch(9, 0), nvidia=False)


def record_after_pruning(wheel: Path, digest: str) -> str:
    """Return the digest of the RECORD that is left of a wheel, which a lock has with this hash."""
    with serving() as server:
        server.answer = lambda *_: (200, {}, wheel.read_bytes())
        url = f"http://{server.host}/{wheel.name}"
        return pruned_records._record_after_pruning(
            url, digest, pruner.files(PRUNING), IndexLogin({})
        )


def before_and_after_pruning(folder: Path, files: Mapping[str, bytes]) -> tuple[str, str]:
    """Return the digest of the RECORD of a wheel with these files, and that of what is left."""
    wheel = wheels.make(folder, files)
    rows = [[path, wheels.record_hash(content)] for path, content in files.items()]
    before = wheel_contents.digest_of(wheel_contents.rows_of_wheel(rows))
    return before, record_after_pruning(wheel, sha256_of_file(wheel))


def test_a_wheel_with_code_for_other_gpus_has_another_record_afterwards(tmp_path: Path) -> None:
    code = [Code(arch=arch, kernels={"kernel": 512}) for arch in (80, 90)]
    library = fatbins.library(fatbins.region(*code))

    before, after = before_and_after_pruning(tmp_path, {**wheels.FILES, "small/lib.so": library})

    assert before != after


def test_a_wheel_without_code_for_other_gpus_keeps_its_record(tmp_path: Path) -> None:
    before, after = before_and_after_pruning(tmp_path, wheels.FILES)

    assert before == after


def test_a_wheel_that_is_not_the_locks_is_refused(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path)

    with pytest.raises(UserError, match="the lock has 00"):
        record_after_pruning(wheel, "00")


def test_a_wheel_that_cannot_be_fetched_is_named_without_its_address() -> None:
    """The address may have a token."""
    with serving() as server:
        server.answer = lambda *_: (403, {}, b"")
        url = f"http://{server.host}/small-1.0-py3-none-any.whl?token=s3cret"
        with pytest.raises(UserError) as error:
            pruned_records._record_after_pruning(url, "00", pruner.files(PRUNING), IndexLogin({}))

    (problem,) = error.value.problems
    assert problem.where == "small-1.0-py3-none-any.whl"
    assert problem.cause == "this wheel can't be fetched from its index: HTTP 403"


def test_the_key_tells_one_pruner_from_another() -> None:
    prunings = [
        PRUNING,
        replace(PRUNING, nvidia=True),
        replace(PRUNING, arch=Arch(8, 0)),
        replace(PRUNING, alternatives={"a": ("b",)}),
    ]

    assert len({pruner.key(pruning) for pruning in prunings}) == 4


def test_nvidias_libraries_are_read_only_where_the_matrix_says_so() -> None:
    with_nvidia = replace(PRUNING, nvidia=True)

    assert pruner.reads(PRUNING, "torch")
    assert not pruner.reads(None, "torch")
    assert pruner.reads(with_nvidia, "nvidia-nccl-cu12")
    assert not pruner.reads(PRUNING, "nvidia-nccl-cu12")
