"""Which probes of a foreign image a Python of this machine runs, and what the evidence says of the others."""

import pytest

from images.validation.foreign import Foreign
from validate.claims import Claim, Tier


def reader(of_its_release: bool) -> Foreign:
    return Foreign(python={}, user=b"", emulator="qemu-user 7.2", platform="linux/arm64", of_its_release=of_its_release)


@pytest.mark.parametrize("probe", ["cpu.bytecode", "static.owners"])
def test_only_a_python_of_the_same_release_stands_for_the_images_own(probe: str) -> None:
    """Another one compiles otherwise, and fills other templates."""
    claim = Claim(id="T1", subject="a", tier=Tier(probe.partition(".")[0]), probe=probe, statement="")
    same, other = reader(True), reader(False)
    assert same.is_native(probe) and not other.is_native(probe)
    assert (same.emulated((claim,))["probes"], other.emulated((claim,))["probes"]) == ([], [probe])


@pytest.mark.parametrize(
    ("probe", "native"), [("static.files", True), ("cpu.instructions", True), ("cpu.imports", False)]
)
def test_files_are_read_natively_and_programs_are_not(probe: str, native: bool) -> None:
    assert reader(False).is_native(probe) is native
