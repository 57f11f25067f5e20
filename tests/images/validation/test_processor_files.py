"""What stands in for /sys of an arm64 processor."""

import pytest

from images.validation.foreign import Foreign
from images.validation.processor_files import FOLDER, processor_files


@pytest.mark.parametrize(("cpus", "listed"), [(1, b"0\n"), (2, b"0-1\n"), (16, b"0-15\n")])
def test_each_processor_has_its_identification(cpus: int, listed: bytes) -> None:
    found = processor_files("arm64", cpus)
    assert found["possible"] == found["online"] == found["present"] == listed
    registers = {name: content for name, content in found.items() if name.endswith("/midr_el1")}
    assert set(registers) == {f"cpu{cpu}/regs/identification/midr_el1" for cpu in range(cpus)}
    assert set(registers.values()) == {b"0x00000000000f0510\n"}, "the kernel's form: 0x and 16 digits"


def test_programs_for_x86_need_none() -> None:
    assert processor_files("amd64", 4) == {}


@pytest.mark.parametrize(("platform", "stands_in"), [("linux/arm64", [FOLDER]), ("linux/amd64", None)])
def test_evidence_says_what_stands_in(platform: str, stands_in: list[str] | None) -> None:
    reader = Foreign(python={}, user=b"", emulator="qemu-user 7.2", platform=platform, of_its_release=True)
    assert reader.emulated(()).get("stands_in") == stands_in
