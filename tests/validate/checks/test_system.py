"""system: programs run, and NCCL gets what it needs of rdma-core.

What is measured is small libraries that are compiled for the purpose.
"""

import multiprocessing
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.claims import bare_claims
from tests.support.judging import fails, judge_claim, says
from validate.checks.static import system
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, Status

TOOLS, VERBS = bare_claims("cu126-torch27").measured_by(["static.system"]).claims

# ---- rdma-core, judged.

PROVIDER: dict[str, Any] = {"path": "/p.so"}
LIBRARY: dict[str, Any] = {"lacking": []}
WELL: dict[str, Any] = {
    "nccl": {"path": "/v/libnccl.so.2", "opens": ["libibverbs.so", "libibverbs.so.1"]},
    "libraries": dict.fromkeys(VERBS.expect["libraries"], LIBRARY),
    "providers": dict.fromkeys(VERBS.expect["providers"], PROVIDER),
}


def judged_verbs(**measured: Any) -> Finding:
    """Judge evidence about rdma-core. What is not given is well."""
    return judge_claim(VERBS, {**WELL, **measured})


def judged_libibverbs(measured: dict[str, Any]) -> Finding:
    libraries = {**WELL["libraries"], "libibverbs.so.1": {**LIBRARY, **measured}}
    return judged_verbs(libraries=libraries)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        pytest.param({}, "", id="well"),
        pytest.param(
            {"error": "libnl-3.so.200: none"},
            "libibverbs.so.1 (libnl-3.so.200",
            id="can-not-be-opened",
        ),
        pytest.param(
            {"lacking": ["ibv_open_device@IBVERBS_1.1"]}, "lacks ibv_open_de", id="lacks-a-function"
        ),
        # Evidence from before 2026-11-29 has a path, and no error.
        pytest.param(
            {"path": None}, "the loader finds no libibverbs.so.1", id="not-found-in-old-evidence"
        ),
    ],
)
def test_a_library_that_nccl_would_not_get_fails(measured: dict[str, Any], words: str) -> None:
    says(judged_libibverbs(measured), words)


def test_a_network_drivers_library_that_can_not_be_opened_fails() -> None:
    provider = {**PROVIDER, "error": "No such file"}

    finding = judged_verbs(providers={**WELL["providers"], "mlx5": provider})

    fails(finding, "/p.so can't be opened: No such file")


def test_a_network_driver_that_is_not_named_fails() -> None:
    providers = dict(WELL["providers"])
    del providers["mlx5"]

    fails(judged_verbs(providers=providers), "/etc/libibverbs.d names no driver mlx5")


@pytest.mark.parametrize(
    "path",
    [pytest.param("/v/libnccl.so.2", id="another-nccl"), pytest.param(None, id="no-nccl")],
)
def test_an_nccl_that_opens_other_libraries_is_unproven(path: str | None) -> None:
    finding = judged_verbs(nccl={"path": path, "opens": ["libverbs2.so"]})

    assert finding.status is Status.UNPROVEN


# ---- Programs, judged.


@pytest.mark.parametrize(
    ("program", "measured", "words"),
    [
        pytest.param("git", {"version": "1"}, "", id="well"),
        pytest.param("git", {"path": None}, "no program git", id="missing"),
        pytest.param(
            "curl",
            {"error": "libcurl.so.4: cannot open"},
            "/usr/bin/curl does not run: libcurl.so.4",
            id="does-not-start",
        ),
        pytest.param(
            "ssh", {"error": "No user exists for uid 61234"}, "", id="ssh-of-a-user-without-a-name"
        ),
        pytest.param(
            "ssh",
            {"error": "error while loading libcrypto.so.3"},
            "/usr/bin/ssh does not run",
            id="ssh-that-does-not-start",
        ),
    ],
)
def test_a_program_that_is_missing_or_does_not_start_fails(
    program: str, measured: dict[str, Any], words: str
) -> None:
    programs = {}
    for name in TOOLS.expect["programs"]:
        programs[name] = {"path": f"/usr/bin/{name}", "version": "1"}
    programs[program] = {"path": f"/usr/bin/{program}", **measured}

    says(judge_claim(TOOLS, {"programs": programs}), words)


# ---- rdma-core, measured.


@pytest.fixture
def rdma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with libibverbs, and two named drivers, of which only mlx5 has a provider."""
    if not shutil.which("gcc"):
        pytest.skip("no C compiler")
    monkeypatch.setattr(system, "_DRIVERS", str(tmp_path))
    monkeypatch.setattr(system, "_VERBS", f"^{tmp_path}/libibverbs.so.1$")
    (tmp_path / "mlx5.driver").write_text("driver mlx5\n")
    (tmp_path / "hns.driver").write_text("# none\ndriver hns\n")

    compile_libibverbs(tmp_path, private_version="IBVERBS_PRIVATE_34")
    (tmp_path / "libibverbs").mkdir()
    compile_library(
        tmp_path / "libibverbs/libmlx5-rdmav34.so",
        "void private_function(void); void use(void) { private_function(); }",
        "-L",
        str(tmp_path),
        "-l:libibverbs.so.1",
        f"-Wl,-rpath,{tmp_path}",
    )
    return tmp_path


def compile_libibverbs(folder: Path, private_version: str) -> None:
    """Compile a libibverbs with two functions for everybody, and one for providers.

    Its functions have the versions IBVERBS_1.1, IBVERBS_1.8 and `private_version`.
    """
    versions = folder / "versions"
    versions.write_text(
        "IBVERBS_1.1 { global: ibv_open_device; }; IBVERBS_1.8 { global: ibv_reg_mr_iova2; };"
        f" {private_version} {{ global: private_function; local: *; }};"
    )
    names = ("ibv_open_device", "ibv_reg_mr_iova2", "private_function")
    source = " ".join(f"void {name}(void) {{}}" for name in names)
    soname = ["-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={versions}"]
    compile_library(folder / "libibverbs.so.1", source, *soname)


def compile_library(library: Path, source: str, *options: str) -> None:
    file = library.with_suffix(".c")
    file.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, file, *options], check=True)


def measured_in_a_fork(work: Callable[[], Any]) -> Any:
    """Return what a function returns in a process of its own: what it opens stays open there."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(work)


def open_libibverbs(path: str) -> Any:
    """Open it, and look up three functions under the version that only the first of them has."""
    symbols = dict.fromkeys(("ibv_open_device", "ibv_reg_mr_iova2", "ibv_fork_init"), "IBVERBS_1.1")
    names = ["libibverbs-none.so", path]
    return system.open_library({"names": names, "symbols": symbols, "by_nccl": True})


def open_providers(libibverbs: str) -> Any:
    open_libibverbs(libibverbs)
    return system.open_providers()


def test_functions_are_looked_up_by_their_versions(rdma: Path) -> None:
    measured = measured_in_a_fork(partial(open_libibverbs, f"{rdma}/libibverbs.so.1"))

    assert measured == {"lacking": ["ibv_reg_mr_iova2@IBVERBS_1.1", "ibv_fork_init@IBVERBS_1.1"]}


def test_a_library_that_can_not_be_opened_gives_the_loaders_error(rdma: Path) -> None:
    (rdma / "libibverbs.so.1").unlink()

    measured = measured_in_a_fork(partial(open_libibverbs, f"{rdma}/libibverbs.so.1"))

    assert "libibverbs.so.1: cannot open shared object file" in measured["error"]


def test_a_provider_is_looked_for_under_libibverbs_private_version(rdma: Path) -> None:
    providers = measured_in_a_fork(partial(open_providers, f"{rdma}/libibverbs.so.1"))

    assert "error" not in providers["mlx5"]
    assert "libhns-rdmav34.so: cannot open" in providers["hns"]["error"]


def test_a_provider_of_another_release_of_libibverbs_can_not_be_opened(rdma: Path) -> None:
    compile_libibverbs(rdma, private_version="IBVERBS_PRIVATE_35")
    provider = rdma / "libibverbs/libmlx5-rdmav34.so"
    provider.rename(provider.with_name("libmlx5-rdmav35.so"))

    providers = measured_in_a_fork(partial(open_providers, f"{rdma}/libibverbs.so.1"))

    assert "version `IBVERBS_PRIVATE_34' not found" in providers["mlx5"]["error"]


def test_nccl_opens_the_libraries_whose_whole_names_stand_in_its_file(tmp_path: Path) -> None:
    nccl = tmp_path / "nvidia/nccl/lib/libnccl.so.2"
    nccl.parent.mkdir(parents=True)
    nccl.write_bytes(b"\x7fELF\0libibverbs.so.1\0xlibibverbs.so\0")
    user = UserEnvironment(environ={}, directory="/", python="")

    measured = system.read_nccl([str(tmp_path)], user, VERBS.expect["libraries"])

    assert measured == {"path": str(nccl), "opens": ["libibverbs.so.1"]}
