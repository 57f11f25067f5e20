"""Images for linux/arm64 on a machine of another processor: built, told apart, and run by the emulator."""

import struct

import pytest

from images.config.platforms import Platform, of_machine
from images.engine import ContainerSpec, Engine
from images.host import emulation

_LOAD_AT = 0x400000
_INSTRUCTIONS = (0xD2800540, 0xD2800BA8, 0xD4000001)
"""mov x0, #42; mov x8, #93 (exit); svc #0."""


def program() -> bytes:
    """A static AArch64 program that ends with status 42."""
    code = struct.pack("<3I", *_INSTRUCTIONS)
    begin = 64 + 56
    size = begin + len(code)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, _LOAD_AT + begin, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, _LOAD_AT, _LOAD_AT, size, size, 0x1000) + code


def test_an_arm64_image_is_built_as_such_and_its_program_runs(engine: Engine) -> None:
    said: list[str] = []
    if of_machine(engine.facts.architecture) is not Platform.ARM64:
        assert emulation.require(Platform.ARM64, said.append)
    files = {"Dockerfile": b"FROM scratch\nCOPY --chmod=755 program /program\n", "program": program()}
    name = "truetag-test-arm64"
    try:
        engine.build(files, name, platform=Platform.ARM64)
        info = engine.inspect(name)
        assert info.architecture == "arm64"
        with engine.container(ContainerSpec(info.id, ["/program"])) as container:
            assert container.run(timeout=120).exit.code == 42
    finally:
        engine.untag(name)


@pytest.mark.parametrize("platform", list(Platform))
def test_a_build_is_of_the_platform_that_it_was_asked_for(engine: Engine, platform: Platform) -> None:
    name = f"truetag-test-{platform.architecture}-empty"
    try:
        engine.build({"Dockerfile": b"FROM scratch\nLABEL a=b\n"}, name, platform=platform)
        assert engine.inspect(name).architecture == platform.architecture
    finally:
        engine.untag(name)
