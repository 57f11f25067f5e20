"""system: NCCL's way to rdma-core, through small libraries compiled for the purpose, and judged."""

import multiprocessing
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.claims import bare_claims
from tests.support.judging import fails, judge_claim, says
from validate.checks.static import system
from validate.environment.user_environment import UserEnvironment
from validate.judging import Status

TOOLS, VERBS = bare_claims("cu126-torch27").measured_by(["static.system"]).claims

PROVIDER = {"path": "/p.so"}
LIBRARY: Mapping[str, Any] = {"lacking": []}
GOOD: Mapping[str, Any] = {
    "nccl": {"path": "/v/libnccl.so.2", "opens": ["libibverbs.so", "libibverbs.so.1"]},
    "libraries": dict.fromkeys(VERBS.expect["libraries"], LIBRARY),
    "providers": dict.fromkeys(VERBS.expect["providers"], PROVIDER),
}


@pytest.mark.parametrize(
    ("part", "name", "found", "words"),
    [
        ("libraries", "libibverbs.so.1", LIBRARY, ""),
        (
            "libraries",
            "libibverbs.so.1",
            {**LIBRARY, "error": "libnl-3.so.200: none"},
            "libibverbs.so.1 (libnl-3.so.200",
        ),
        (
            "libraries",
            "libibverbs.so.1",
            {**LIBRARY, "lacking": ["ibv_open_device@IBVERBS_1.1"]},
            "lacks ibv_open_de",
        ),
        (
            # Evidence from before 2026-11-29 has a path, and no error.
            "libraries",
            "libibverbs.so.1",
            {**LIBRARY, "path": None},
            "the loader finds no libibverbs.so.1",
        ),
        (
            "providers",
            "mlx5",
            {**PROVIDER, "error": "No such file"},
            "/p.so can't be opened: No such file",
        ),
    ],
)
def test_what_nccl_would_not_get_is_named(part: str, name: str, found: object, words: str) -> None:
    says(judge_claim(VERBS, {**GOOD, part: {**GOOD[part], name: found}}), words)


def test_a_missing_provider_is_named() -> None:
    providers = {name: found for name, found in GOOD["providers"].items() if name != "mlx5"}
    fails(
        judge_claim(VERBS, {**GOOD, "providers": providers}),
        "/etc/libibverbs.d names no driver mlx5",
    )


@pytest.mark.parametrize("path", ["/v/libnccl.so.2", None])
def test_another_nccl_than_the_one_that_was_read_is_not_green(path: str | None) -> None:
    other = {"path": path, "opens": ["libverbs2.so"]}
    assert judge_claim(VERBS, {**GOOD, "nccl": other}).status is Status.UNPROVEN


@pytest.mark.parametrize(
    ("program", "found", "words"),
    [
        ("git", {"version": "1"}, ""),
        ("git", {"path": None}, "no git"),
        (
            "curl",
            {"error": "libcurl.so.4: cannot open"},
            "/usr/bin/curl does not run: libcurl.so.4",
        ),
        ("ssh", {"error": "No user exists for uid 61234"}, ""),  # it refuses a user without a name
        ("ssh", {"error": "error while loading libcrypto.so.3"}, "/usr/bin/ssh does not run"),
    ],
)
def test_a_program_that_is_missing_or_does_not_start_is_named(
    program: str, found: dict[str, Any], words: str
) -> None:
    well = {name: {"path": f"/usr/bin/{name}", "version": "1"} for name in TOOLS.expect["programs"]}
    says(
        judge_claim(
            TOOLS, {"programs": {**well, program: {"path": f"/usr/bin/{program}", **found}}}
        ),
        words,
    )


@pytest.fixture
def rdma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a libibverbs that has two functions, a provider beside it, and drivers that are named."""
    (tmp_path / "libibverbs").mkdir()
    (tmp_path / "mlx5.driver").write_text("driver mlx5\n")
    (tmp_path / "hns.driver").write_text("# none\ndriver hns\n")
    monkeypatch.setattr(system, "_DRIVERS", str(tmp_path))
    monkeypatch.setattr(system, "_VERBS", f"^{tmp_path}/libibverbs.so.1$")
    make_verbs(tmp_path, "IBVERBS_PRIVATE_34")
    provider = ["-L", str(tmp_path), "-l:libibverbs.so.1", f"-Wl,-rpath,{tmp_path}"]
    make(
        tmp_path / "libibverbs/libmlx5-rdmav34.so",
        "void of_34(void); void use(void) { of_34(); }",
        *provider,
    )
    return tmp_path


def make_verbs(folder: Path, private: str) -> None:
    """Compile libibverbs with a private function of a version."""
    script = folder / "versions"
    script.write_text(
        "IBVERBS_1.1 { global: ibv_open_device; }; IBVERBS_1.8 { global: ibv_reg_mr_iova2; };"
        f" {private} {{ global: of_34; local: *; }};"
    )
    source = "void ibv_open_device(void) {} void ibv_reg_mr_iova2(void) {} void of_34(void) {}"
    soname = ["-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={script}"]
    make(folder / "libibverbs.so.1", source, *soname)


def make(library: Path, source: str, *options: str) -> None:
    file = library.with_suffix(".c")
    file.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, file, *options], check=True)


def measured_in_a_fork(work: Callable[[], Any]) -> Any:
    """What a process opens stays in it, so each case gets one of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(work)


def opened(name: str) -> Any:
    asked = {
        "ibv_open_device": "IBVERBS_1.1",
        "ibv_reg_mr_iova2": "IBVERBS_1.1",
        "ibv_fork_init": "IBVERBS_1.1",
    }
    return system.open_library(
        {"names": ["libibverbs-none.so", name], "symbols": asked, "by_nccl": True}
    )


def providers_of(name: str) -> Any:
    opened(name)
    return system.open_providers()


@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
def test_functions_are_looked_up_by_their_versions(rdma: Path) -> None:
    verbs = str(rdma / "libibverbs.so.1")
    found = measured_in_a_fork(partial(opened, verbs))
    assert found == {"lacking": ["ibv_reg_mr_iova2@IBVERBS_1.1", "ibv_fork_init@IBVERBS_1.1"]}
    (rdma / "libibverbs.so.1").unlink()
    found = measured_in_a_fork(partial(opened, verbs))
    assert "libibverbs.so.1: cannot open shared object file" in found["error"]


@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
def test_providers_are_those_of_the_librarys_private_version(rdma: Path) -> None:
    verbs = str(rdma / "libibverbs.so.1")
    found = measured_in_a_fork(partial(providers_of, verbs))
    assert (
        "error" not in found["mlx5"] and "libhns-rdmav34.so: cannot open" in found["hns"]["error"]
    )
    # Another release of libibverbs, whose providers have this name, too.
    make_verbs(rdma, "IBVERBS_PRIVATE_35")
    (rdma / "libibverbs/libmlx5-rdmav34.so").rename(rdma / "libibverbs/libmlx5-rdmav35.so")
    found = measured_in_a_fork(partial(providers_of, verbs))
    assert "version `IBVERBS_PRIVATE_34' not found" in found["mlx5"]["error"]


def test_the_names_that_stand_in_nccl_are_read(tmp_path: Path) -> None:
    nccl = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    nccl.parent.mkdir(parents=True)
    nccl.write_bytes(b"\x7fELF\0libibverbs.so.1\0xlibibverbs.so\0")
    user = UserEnvironment(environ={}, directory="/", python="")
    found = system.read_nccl([str(tmp_path)], user, VERBS.expect["libraries"])
    assert found == {"path": str(nccl), "opens": ["libibverbs.so.1"]}
