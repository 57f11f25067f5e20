"""added and command: what a derived image adds works, and its own commands end with 0."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.judging import fails
from validate.checks import _command
from validate.checks.cpu import added
from validate.checks.static import added as folders
from validate.checks.static.modes import User
from validate.environment.installed import Distribution, Entry
from validate.judging import Finding, Status


def make_distribution(
    name: str,
    version: str = "1.0",
    *,
    location: Path = Path("/site"),
    files: tuple[str, ...] = (),
    requires: tuple[str, ...] = (),
) -> Distribution:
    """Return an installed distribution with these files, without writing anything."""
    return Distribution(
        name=name,
        version=version,
        location=str(location),
        info=location / f"{name}-{version}.dist-info",
        tags=(),
        requires=requires,
        entries=tuple(Entry(path=f"{location}/{file}", sha256="") for file in files),
    )


def passes(finding: Finding, words: str) -> None:
    """It is a PASS whose reason says this."""
    assert finding.status is Status.PASS, finding.reason
    assert words in finding.reason, finding.reason


# ---- which packages are looked at


@pytest.mark.parametrize(
    ("base", "is_changed"),
    [
        ({}, True),
        ({"wandb": "0.9"}, True),
        ({"wandb": "1.0"}, False),
        ({"wandb": "1.0+cu126"}, False),
        # An optional package that the base image may lack: any version of it may be the base's.
        ({"wandb": ""}, False),
    ],
)
def test_a_package_is_looked_at_if_the_base_has_another_version_or_none(
    base: dict[str, str], *, is_changed: bool
) -> None:
    assert added.is_changed(make_distribution("wandb"), base) is is_changed


@pytest.mark.parametrize(
    ("files", "modules"),
    [
        (("yaml/__init__.py", "_yaml/__init__.py"), ["yaml"]),
        (("_cffi_backend.so",), ["_cffi_backend"]),
        (("rich/__init__.py", "tests/__init__.py"), ["rich"]),
        (("__editable___mine_0_1_finder.py",), []),
        ((), []),
    ],
)
def test_public_modules_are_imported_and_stray_folders_are_not(
    files: tuple[str, ...], modules: list[str]
) -> None:
    assert added.list_modules(make_distribution("x", files=files)) == modules


def test_compiled_modules_are_imported_by_their_dotted_names() -> None:
    files = (
        "pycocotools/__init__.py",
        "pycocotools/_mask.cpython-311-x86_64-linux-gnu.so",
        "pycocotools/tests/_test.cpython-311-x86_64-linux-gnu.so",
        "pycocotools.libs/libgomp-a1b2.so.1",
        "fast/_core.abi3.so",
        "fast/plugin.so",
    )

    names = added.list_extensions(make_distribution("x", files=files))
    assert names == ["fast._core", "pycocotools._mask"]


def test_a_compiled_module_that_can_not_be_the_first_of_a_circle_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in scipy 1.17.1: `circle._core` imports `circle.api`, which takes a name from `_core`."""
    package = tmp_path / "circle"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_core.py").write_text("import circle.api\nloop = 1\n")
    (package / "api.py").write_text("from circle._core import loop\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert added.import_modules(["circle"], ["circle._core"]) == {"modules": ["circle"]}
    # A top-level module that can't be imported is a fault, whatever the cause.
    error = added.import_modules(["circle._core"])["error"]
    assert "partially initialized" in error["message"]


def test_an_editable_package_is_imported_by_the_names_in_top_level(tmp_path: Path) -> None:
    mine = make_distribution("mine", location=tmp_path, files=("__editable___mine_finder.py",))
    mine.info.mkdir()
    (mine.info / "top_level.txt").write_text("my_training\n")

    assert added.list_modules(mine) == ["my_training"]


# ---- imports


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sys.path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write_package(folder: Path, name: str, source: str) -> Distribution:
    """Write a module, and return its distribution."""
    (folder / f"{name}.py").write_text(source)
    return make_distribution(name, location=folder, files=(f"{name}.py",))


def import_one(folder: Path, name: str, source: str) -> added.ImportsEvidence:
    return added.import_all([write_package(folder, name, source)])


def test_a_package_that_can_be_imported_passes(importable: Path) -> None:
    evidence = import_one(importable, "good_addition", "VALUE = 1")

    passes(added.judge_imports("imports", {"base": {}}, evidence), "1 added packages")


def test_a_package_for_another_numpy_fails_with_its_name(importable: Path) -> None:
    source = "raise ValueError('numpy.dtype size changed, may indicate binary incompatibility')"
    evidence = import_one(importable, "for_numpy_1", source)

    finding = added.judge_imports("imports", {"base": {}}, evidence)
    fails(finding, "for_numpy_1 1.0 can't be imported", "numpy.dtype size changed")


def test_a_package_whose_kernels_need_torch_in_the_process_passes(
    importable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (importable / "torch.py").write_text("")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    source = "import sys\nif 'torch' not in sys.modules: raise ImportError('libc10.so')"
    evidence = import_one(importable, "kernels_for_torch", source)

    passes(added.judge_imports("imports", {"base": {}}, evidence), "1 added packages")


def test_a_package_that_lacks_an_optional_one_is_only_reported(importable: Path) -> None:
    """matplotlib-inline, which jupyterlab brings, does not require matplotlib."""
    evidence = import_one(importable, "plots_inline", "import no_such_package_here.plots")

    finding = added.judge_imports("imports", {"base": {}}, evidence)
    passes(finding, "plots_inline without no_such_package_here")


def test_a_package_that_another_release_lacks_a_module_for_fails(importable: Path) -> None:
    """autoawq asks for a module of transformers that this release does not have."""
    evidence = import_one(importable, "moved_on", "import json.no_such_module")

    fails(added.judge_imports("imports", {"base": {}}, evidence), "moved_on", "json.no_such_module")


def test_a_package_that_ends_the_process_fails_and_others_are_still_imported(
    importable: Path,
) -> None:
    evidence = added.import_all(
        [
            write_package(importable, "ends_it_all", "import os; os._exit(3)"),
            write_package(importable, "imported_beside", ""),
        ]
    )

    fails(
        added.judge_imports("imports", {"base": {}}, evidence), "ends_it_all 1.0 can't be imported"
    )
    assert "error" not in evidence["packages"]["imported_beside"]


def test_a_package_that_misses_the_driver_is_only_reported(importable: Path) -> None:
    source = "raise ImportError('libcuda.so.1: cannot open shared object file')"
    evidence = import_one(importable, "wants_a_driver", source)

    finding = added.judge_imports("imports", {"base": {}}, evidence)
    passes(finding, "wants_a_driver asked for a GPU")


def test_an_error_raised_where_triton_looks_for_a_gpu_is_only_reported(importable: Path) -> None:
    folder = importable / "triton" / "runtime"
    folder.mkdir(parents=True)
    (folder / "driver.py").write_text("def active(): raise RuntimeError('0 active drivers')")
    source = (
        "import importlib.util as util\n"
        f"spec = util.spec_from_file_location('driver', {str(folder / 'driver.py')!r})\n"
        "driver = util.module_from_spec(spec)\n"
        "spec.loader.exec_module(driver)\n"
        "driver.active()\n"
    )
    evidence = import_one(importable, "asks_triton", source)

    passes(added.judge_imports("imports", {"base": {}}, evidence), "asks_triton asked for a GPU")


def test_the_same_words_from_elsewhere_are_a_failure(importable: Path) -> None:
    """The place of the error counts, not its text."""
    evidence = import_one(importable, "says_the_same", "raise RuntimeError('0 active drivers')")

    fails(added.judge_imports("imports", {"base": {}}, evidence), "says_the_same")


def test_an_image_that_adds_nothing_passes() -> None:
    finding = added.judge_imports("imports", {"base": {}}, {"packages": {}})

    passes(finding, "no package was added")


# ---- requirements


def find_unmet(
    installed: list[Distribution], base: dict[str, str], changed: tuple[str, ...]
) -> list[str]:
    """Return the requirements that are reported, as `PACKAGE: REQUIREMENT`."""
    changed_distributions = [one for one in installed if one.name in changed]
    evidence = added.check_requirements(installed, changed_distributions, base)
    return [f"{row['package']}: {row['requires']}" for row in evidence["unmet"]]


def test_an_added_package_whose_requirement_has_another_version_is_reported() -> None:
    installed = [
        make_distribution("tensorboard", "2.21.0", requires=("protobuf!=4.24.0,>=3.19.6",)),
        make_distribution("protobuf", "3.19.5"),
    ]

    unmet = find_unmet(installed, {}, ("tensorboard", "protobuf"))
    assert unmet == ["tensorboard 2.21.0: protobuf!=4.24.0,>=3.19.6"]


def test_a_package_of_the_base_is_reported_if_an_addition_moved_what_it_requires() -> None:
    installed = [
        make_distribution("datasets", "4.5.0", requires=("pyarrow>=21",)),
        make_distribution("pyarrow", "20.0"),
    ]
    base = {"datasets": "4.5.0", "pyarrow": "26.0"}

    assert find_unmet(installed, base, ("pyarrow",)) == ["datasets 4.5.0: pyarrow>=21"]


def test_a_package_of_the_base_is_reported_if_what_it_requires_was_removed() -> None:
    installed = [make_distribution("datasets", "4.5.0", requires=("pyarrow>=21",))]
    base = {"datasets": "4.5.0", "pyarrow": "26.0"}

    assert find_unmet(installed, base, ()) == ["datasets 4.5.0: pyarrow>=21"]


def test_what_the_base_does_not_meet_itself_is_not_reported() -> None:
    installed = [make_distribution("axolotl", "0.13", requires=("missing>=1", "torch>=9"))]
    installed.append(make_distribution("torch", "2.5.1"))

    assert find_unmet(installed, {"axolotl": "0.13", "torch": "2.5.1"}, ()) == []


@pytest.mark.parametrize(
    "requirement",
    ["colorama; sys_platform == 'win32'", "pytest; extra == 'dev'", "not a requirement !"],
)
def test_requirements_that_do_not_apply_here_are_left_out(requirement: str) -> None:
    assert find_unmet([make_distribution("x", requires=(requirement,))], {}, ("x",)) == []


def test_a_development_release_meets_a_requirement() -> None:
    installed = [
        make_distribution("x", requires=("y>=1.0",)),
        make_distribution("y", "1.1.dev3"),
    ]

    assert find_unmet(installed, {}, ("x", "y")) == []


def test_an_unmet_requirement_fails_with_both_packages() -> None:
    evidence: added.RequirementsEvidence = {
        "checked": 1,
        "unmet": [{"package": "trl 0.29.1", "requires": "rich", "installed": ""}],
    }

    finding = added.judge_requirements("requirements", {"base": {}}, evidence)
    fails(finding, "trl 0.29.1 requires rich, which is not installed")


def test_without_a_reader_of_requirements_the_claim_is_unproven() -> None:
    reason = (
        "neither packaging nor pip can be imported, so truetag can't read what packages require"
    )

    finding = added.judge_requirements("requirements", {"base": {}}, {"cannot_check": reason})

    assert finding.status is Status.UNPROVEN


# ---- folders


@pytest.mark.parametrize(
    ("mode", "owner", "group", "may_write"),
    [
        (0o755, 0, 0, False),
        (0o755, 1001, 0, True),
        (0o775, 0, 1001, True),
        (0o777, 0, 0, True),
        # Its owner's rights count, although everybody else has more.
        (0o577, 1001, 0, False),
        # To make a file takes the right to enter, too.
        (0o776, 0, 0, False),
    ],
)
def test_mode_and_owner_decide_who_may_write(
    mode: int, owner: int, group: int, *, may_write: bool
) -> None:
    facts = os.stat_result((0o40000 | mode, 0, 0, 0, owner, group, 0, 0, 0, 0))

    assert folders.may_write(User(uid=1001, gid=1001), facts) is may_write
    assert folders.may_write(User(uid=0, gid=0), facts)


def test_a_folder_that_can_be_made_counts_by_the_folder_above(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    folder = folders.inspect_folder(f"{tmp_path}/cache/triton", User(uid=1001, gid=1001))
    assert (folder["exists"], folder["mode"], folder["writable"]) == (False, "755", False)


def test_a_working_folder_of_root_fails_with_the_line_that_mends_it() -> None:
    app: folders.Folder = {
        "path": "/app",
        "exists": True,
        "owner": 0,
        "mode": "755",
        "writable": False,
    }
    evidence: Any = {"user": "1001:1001", "folders": {folders.WORKING_FOLDER: app}}

    finding = folders.judge("folders", {"variables": []}, evidence)
    fails(finding, "user 1001:1001 can't write to the working folder, /app", "mode 755")
    assert "`RUN mkdir -p /app && chown 1001:1001 /app`" in finding.next_step


# ---- commands


def run_command(line: str, tmp_path: Path, seconds: float = 60) -> _command.CommandEvidence:
    return _command.run(line, seconds, str(tmp_path))


def test_a_command_that_ends_with_0_passes(tmp_path: Path) -> None:
    evidence = run_command("pwd", tmp_path)

    assert evidence["printed"] == f"{tmp_path}\n"
    passes(_command.judge("smoke", {"run": "pwd", "seconds": 60}, evidence), "ended with 0")


def test_a_command_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    evidence = run_command("echo fine; echo ValueError: no loss >&2; exit 3", tmp_path)

    finding = _command.judge("smoke", {"run": "x", "seconds": 60}, evidence)
    fails(finding, "ended with status 3", "ValueError: no loss")


def test_a_command_that_takes_too_long_fails_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    evidence = run_command("sleep 600 & echo $! >pid; sleep 600", tmp_path, seconds=1)

    finding = _command.judge("smoke", {"run": "x", "seconds": 1}, evidence)
    fails(finding, "did not end within 1 s")
    wait_until_ended(int((tmp_path / "pid").read_text()))


def wait_until_ended(process: int) -> None:
    """Return when a process has ended; fail if it runs on. A killed one takes a moment to end."""
    for _ in range(600):
        if not is_running(process):
            return
        time.sleep(0.1)
    raise AssertionError(f"process {process} is still running")


def is_running(process: int) -> bool:
    """Return whether a process runs. One that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
