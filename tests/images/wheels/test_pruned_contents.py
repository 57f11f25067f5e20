"""What the pruner leaves of a wheel, made outside an image, is what it leaves of the installed one."""

from dataclasses import replace
from pathlib import Path

import pytest

from images.config.names import Arch
from images.context import pruner
from images.errors import UserError
from images.host.hashing import sha256_of_file
from images.planning.image import Pruning
from images.wheels import pruned_contents
from tests.support import fatbins, wheels
from tests.support.fatbins import Code
from validate.environment import wheel_contents

WANTED = Pruning(arch=Arch(9, 0), nvidia=False)


def library() -> bytes:
    kernels = {"kernel": 512}
    return fatbins.library(fatbins.region(Code(arch=80, kernels=kernels), Code(arch=90, kernels=kernels)))


def test_a_pruned_wheel_has_another_digest_and_its_other_rows(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path, {**wheels.FILES, "small/lib.so": library()})
    found = pruned_contents._pruned(wheel.as_uri(), sha256_of_file(wheel), dict(pruner.files(WANTED)))
    files = {**wheels.FILES, "small/lib.so": library()}
    whole = wheel_contents.of_wheel([[name, wheels.record_hash(one)] for name, one in files.items()])
    assert wheel_contents.strange(whole, found.tags) == ["small/lib.so"]
    assert wheel_contents.lacking(whole, found.tags) == 1


def test_a_wheel_without_other_code_stays_as_it_is(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path)
    found = pruned_contents._pruned(wheel.as_uri(), sha256_of_file(wheel), dict(pruner.files(WANTED)))
    rows = wheel_contents.of_wheel([[name, wheels.record_hash(one)] for name, one in wheels.FILES.items()])
    assert found == wheel_contents.contents(rows)


def test_a_wheel_that_is_not_the_locks_is_refused(tmp_path: Path) -> None:
    wheel = wheels.make(tmp_path)
    with pytest.raises(UserError, match="the lock has 00"):
        pruned_contents._pruned(wheel.as_uri(), "00", dict(pruner.files(WANTED)))


def test_the_key_tells_one_pruner_from_another() -> None:
    others = [
        replace(WANTED, arch=Arch(8, 0)),
        replace(WANTED, nvidia=True),
        replace(WANTED, alternatives={"a": ("b",)}),
    ]
    assert len({pruner.key(one) for one in (WANTED, *others)}) == 4
    assert (
        pruner.reads(WANTED, "torch") and not pruner.reads(WANTED, "nvidia-nccl-cu12") and not pruner.reads(None, "x")
    )
    assert pruner.reads(others[1], "nvidia-nccl-cu12")
