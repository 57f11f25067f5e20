"""Our own Python as files: with a loader of its own, and with nothing left to the image."""

import io
import os
import py_compile
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from images.engine import archive
from images.engine.containers import Container
from images.engine.runtime import Exit
from images.errors import UserError
from images.publish import sbom
from images.validation import own_python
from images.validation.containers import SuiteRun
from tests.support import elves
from tests.support.engine_contents import image_info
from validate.binaries.elf import ElfError
from validate.claims import ClaimSet
from validate.survey import environments


def test_a_folder_whose_name_is_too_long_for_the_interpreter_is_refused() -> None:
    """The path of the loader is written into the interpreter, which has little room for it."""
    with pytest.raises(UserError, match="has room for"):
        own_python.python_files("/" + "x" * 300)


@pytest.mark.parametrize("read", ["query", "measure"])
def test_an_image_without_a_python_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    printed = f"LookupError: {environments.NO_PYTHON} (PATH: :/usr/bin)"
    run = SuiteRun([printed], Exit(code=1, oom=False, error=""), has_begun=False)
    monkeypatch.setattr(own_python, "run_over_files", lambda *_, **__: run)
    engine: Any = None
    info = image_info()

    with pytest.raises(UserError) as error:
        if read == "query":
            own_python.query_files(engine, info, "survey", timeout=1)
        else:
            own_python.measure_files(
                engine,
                info,
                ClaimSet(image="", claims=()),
                b"{}",
                seed=0,
                timeout=1,
                on_record=lambda _record: None,
            )

    assert error.value.problems[0].cause == "has no Python with installed packages"


def test_a_library_that_would_search_folders_of_the_image_first_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "a.so"
    library.write_bytes(elves.make(rpath="$ORIGIN/../lib:/opt/lib"))

    with pytest.raises(ElfError, match=r"a\.so looks for its libraries in /opt/lib \(its RPATH\)"):
        own_python.needed_libraries("/bin/true", [library])


def test_an_empty_file_takes_the_place_of_a_library_that_this_machine_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the loader would look in the image, and run what it finds there."""
    monkeypatch.setattr(own_python, "_OPENED_BY_NAME", ("libzstd.so.1", "libno-such-decoder.so.1"))

    files = own_python.python_files.__wrapped__("/judge")

    assert files[f"{own_python.LIBRARIES}/libno-such-decoder.so.1"] == b""
    assert isinstance(files[f"{own_python.LIBRARIES}/libc.so.6"], Path)


def test_an_empty_file_takes_the_place_of_a_linked_library_that_the_loader_does_not_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listing = "\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n\tlibmissing.so.1 => not found\n"
    listed = SimpleNamespace(stdout=listing)
    monkeypatch.setattr(own_python, "require_own_rpath", lambda _path: None)
    monkeypatch.setattr(own_python.subprocess, "run", lambda *_, **__: listed)

    libraries = own_python.needed_libraries("/lib/ld.so", [Path("/usr/bin/program")])

    assert libraries["libmissing.so.1"] == b""
    assert isinstance(libraries["libc.so.6"], Path)


class EngineWithFile:
    """Stands in for an engine with an image that has one file, and maybe a link to it."""

    def __init__(self, content: bytes, path: str, link: str = "") -> None:
        self._path, self._link = path, link
        self._tar = b"".join(archive.pack({"file": content}))

    @contextmanager
    def container(self, _spec: object) -> Iterator[Container]:
        yield Container(SimpleNamespace(get_archive=self._get_archive), "id", "name")

    def _get_archive(self, _id: str, path: str) -> tuple[list[bytes], dict[str, str]]:
        if path == self._path:
            return [self._tar], {"linkTarget": ""}
        if path == self._link:
            return [tar_of_link(self._path)], {"linkTarget": self._path}
        raise docker.errors.NotFound("no such file")


def tar_of_link(target: str) -> bytes:
    """Return a tar with a symbolic link."""
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, target
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(link)
    return stream.getvalue()


PRELOAD = own_python.PRELOAD


@pytest.mark.parametrize(
    ("engine", "libraries"),
    [
        pytest.param(EngineWithFile(b"/x.so\n", PRELOAD), ["/x.so"], id="file"),
        pytest.param(EngineWithFile(b"/x.so\n", "/opt/list", PRELOAD), ["/x.so"], id="link"),
        pytest.param(EngineWithFile(b"\n" * 100_000 + b"/x.so\n", PRELOAD), ["/x.so"], id="padded"),
        pytest.param(EngineWithFile(b" \n", PRELOAD), [], id="blank"),
        pytest.param(EngineWithFile(b"\n", "/opt/list", PRELOAD), [], id="link to a blank file"),
        pytest.param(EngineWithFile(b"/x.so\n", "/opt/list"), [], id="none"),
    ],
)
def test_a_list_of_preloaded_libraries_is_seen_behind_a_link_and_behind_blank_lines(
    engine: Any, libraries: list[str]
) -> None:
    image = image_info()

    covered = own_python.find_covered_files(engine, image)

    assert covered == ([PRELOAD] if libraries else [])
    assert own_python.read_file(engine, image, PRELOAD).split() == libraries


def test_a_file_where_our_own_are_mounted_is_covered() -> None:
    engine: Any = EngineWithFile(b"", own_python.SUITE_FOLDER)

    assert own_python.find_covered_files(engine, image_info()) == [own_python.SUITE_FOLDER]


def test_bytecode_takes_the_place_of_a_source_if_it_was_made_of_it(tmp_path: Path) -> None:
    for name in ("fits", "older", "others", "alone"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    bytecode = {}
    for name in ("fits", "older", "others"):
        compiled = py_compile.compile(str(tmp_path / f"{name}.py"), doraise=True)
        bytecode[name] = Path(compiled or "")
    # `older`: the source has another time now. `others`: of another Python, by its magic number.
    os.utime(tmp_path / "older.py", (0, 0))
    bytecode["others"].write_bytes(b"\0\0\r\n" + bytecode["others"].read_bytes()[4:])

    paths = own_python.standard_library(tmp_path)

    names = {path.rpartition("/")[2] for path in paths}
    assert names == {"fits.pyc", "older.py", "others.py", "alone.py"}


@pytest.mark.parametrize(
    ("system", "machine"), [("Linux", "riscv64"), ("Linux", "aarch64"), ("Darwin", "arm64")]
)
def test_no_file_is_read_if_our_python_does_not_run_on_the_engines_machine(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    engine: Any = SimpleNamespace(
        facts=SimpleNamespace(architecture="amd64"), inspect=lambda _reference: image_info()
    )
    this_machine = SimpleNamespace(system=lambda: system, machine=lambda: machine)
    monkeypatch.setattr(own_python, "platform", this_machine)

    with pytest.raises(UserError, match=f"is of amd64, and this one of {machine} with {system}"):
        sbom.read_packages(engine, "x")
