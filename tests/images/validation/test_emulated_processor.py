"""What emulated programs see of an arm64 processor."""

import pytest

from images.validation.emulated_processor import FOLDER, EmulatedProcessor, emulated_processor
from images.validation.foreign import Foreign


@pytest.mark.parametrize(("cpus", "listed"), [(1, b"0\n"), (2, b"0-1\n"), (16, b"0-15\n")])
def test_each_processor_has_its_identification(cpus: int, listed: bytes) -> None:
    found = emulated_processor("arm64", cpus).files
    assert found["possible"] == found["online"] == found["present"] == listed
    registers = {name: content for name, content in found.items() if name.endswith("/midr_el1")}
    assert set(registers) == {f"cpu{cpu}/regs/identification/midr_el1" for cpu in range(cpus)}
    assert set(registers.values()) == {b"0x00000000000f0510\n"}, "the kernel's form: 0x and 16 digits"


def test_its_vectors_are_as_long_as_those_of_grace() -> None:
    assert emulated_processor("arm64", 1).environment == {"QEMU_CPU": "max,sve-max-vq=1"}, "128 bits"


def test_programs_for_x86_need_nothing() -> None:
    assert emulated_processor("amd64", 4) == EmulatedProcessor()


@pytest.mark.parametrize(
    ("platform", "told"),
    [("linux/arm64", {"QEMU_CPU": "max,sve-max-vq=1", "stands_in": FOLDER}), ("linux/amd64", {})],
)
def test_evidence_says_which_it_was(platform: str, told: dict[str, str]) -> None:
    reader = Foreign(python={}, user=b"", emulator="qemu-user 7.2", platform=platform, of_its_release=True)
    assert reader.emulated(())["processor"] == told
