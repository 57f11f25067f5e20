"""system: NCCL's way to rdma-core, replayed over small libraries made for the purpose, and judged."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import elves
from tests.support.claims import bare_claims
from tests.support.judging import fails, judge_claim, says
from validate.binaries.loader import Files, Process, SearchPath
from validate.checks.static import system
from validate.judging import Status

TOOLS, VERBS = bare_claims("cu126-torch27").only(["static.system"]).claims

PROVIDER = {"path": "/p.so", "missing": [], "versions": []}
LIBRARY = {"path": "/usr/lib/libibverbs.so.1", "missing": [], "lacking": []}
GOOD: Mapping[str, Any] = {
    "nccl": {"path": "/v/libnccl.so.2", "opens": ["libibverbs.so", "libibverbs.so.1"], "asks": ["ibv_open_device"]},
    "libraries": dict.fromkeys(VERBS.expect["libraries"], LIBRARY),
    "providers": dict.fromkeys(VERBS.expect["providers"], PROVIDER),
}


@pytest.mark.parametrize(
    ("part", "name", "found", "words"),
    [
        ("libraries", "libibverbs.so.1", LIBRARY, ""),
        ("libraries", "libibverbs.so.1", {**LIBRARY, "path": None}, "the loader finds no libibverbs.so.1"),
        ("libraries", "libibverbs.so.1", {**LIBRARY, "missing": ["libnl-3.so.200"]}, "libnl-3.so.200"),
        ("libraries", "libibverbs.so.1", {**LIBRARY, "lacking": ["ibv_open_device@IBVERBS_1.1"]}, "lacks ibv_open_de"),
        ("providers", "mlx5", {**PROVIDER, "missing": ["libefa.so.1"]}, "needs libefa.so.1"),
        ("providers", "mlx5", {**PROVIDER, "versions": ["IBVERBS_PRIVATE_99 of libibverbs.so.1"]}, "PRIVATE_99"),
        ("providers", "mlx5", {**PROVIDER, "error": "No such file"}, "can't be read: No such file"),
    ],
)
def test_what_nccl_would_not_get_is_named(part: str, name: str, found: object, words: str) -> None:
    says(judge_claim(VERBS, {**GOOD, part: {**GOOD[part], name: found}}), words)


def test_a_missing_provider_is_named() -> None:
    providers = {name: found for name, found in GOOD["providers"].items() if name != "mlx5"}
    fails(judge_claim(VERBS, {**GOOD, "providers": providers}), "/etc/libibverbs.d names no driver mlx5")


@pytest.mark.parametrize("path", ["/v/libnccl.so.2", None])
def test_another_nccl_than_the_one_that_was_read_is_not_green(path: str | None) -> None:
    other = {"path": path, "opens": ["libverbs2.so"], "asks": []}
    assert judge_claim(VERBS, {**GOOD, "nccl": other}).status is Status.UNPROVEN


@pytest.mark.parametrize(
    ("program", "found", "words"),
    [
        ("git", {"version": "1"}, ""),
        ("git", {"path": None}, "no git"),
        ("curl", {"error": "libcurl.so.4: cannot open"}, "/usr/bin/curl does not run: libcurl.so.4"),
        ("ssh", {"error": "No user exists for uid 61234"}, ""),  # it refuses a user without a name
        ("ssh", {"error": "error while loading libcrypto.so.3"}, "/usr/bin/ssh does not run"),
    ],
)
def test_a_program_that_is_missing_or_does_not_start_is_named(program: str, found: dict[str, Any], words: str) -> None:
    well = {name: {"path": f"/usr/bin/{name}", "version": "1"} for name in TOOLS.expect["programs"]}
    says(judge_claim(TOOLS, {"programs": {**well, program: {"path": f"/usr/bin/{program}", **found}}}), words)


def verbs_folder(folder: Path, *, provider_needs: str = "IBVERBS_PRIVATE_34") -> Process:
    """A folder with libibverbs, one provider beside it, and a process that looks there."""
    (folder / "libibverbs").mkdir(parents=True)
    verbs = elves.make(
        soname="libibverbs.so.1",
        exports=["ibv_open_device", "ibv_reg_mr_iova2"],
        defines_versions=["IBVERBS_1.1", "IBVERBS_1.8", "IBVERBS_PRIVATE_34"],
        export_versions=[1, 2],
    )
    (folder / "libibverbs.so.1").write_bytes(verbs)
    provider = elves.make(needed=["libibverbs.so.1"], needs_versions={"libibverbs.so.1": [provider_needs]})
    (folder / "libibverbs" / "libmlx5-rdmav34.so").write_bytes(provider)
    return Process(SearchPath(library_path=(str(folder),), defaults=()), Files())


def test_functions_are_looked_up_by_version_as_dlvsym_does(tmp_path: Path) -> None:
    process = verbs_folder(tmp_path)
    asked = {"ibv_open_device": "IBVERBS_1.1", "ibv_reg_mr_iova2": "IBVERBS_1.1", "ibv_fork_init": "IBVERBS_1.1"}
    names = ["libibverbs.so", "libibverbs.so.1"]
    found = system._library({"names": names, "symbols": asked, "by_nccl": True}, "", process)
    assert found["path"] == str(tmp_path / "libibverbs.so.1")
    assert found["lacking"] == ["ibv_reg_mr_iova2@IBVERBS_1.1", "ibv_fork_init@IBVERBS_1.1"]
    (tmp_path / "libibverbs.so.1").unlink()
    gone = Process(SearchPath(library_path=(str(tmp_path),), defaults=()), Files())
    assert system._library({"names": names, "symbols": asked, "by_nccl": True}, "", gone)["path"] is None


def test_providers_are_those_of_the_librarys_private_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = tmp_path / "etc"
    drivers.mkdir()
    (drivers / "mlx5.driver").write_text("driver mlx5\n")
    (drivers / "hns.driver").write_text("# none\ndriver hns\n")
    monkeypatch.setattr(system, "_DRIVERS", str(drivers))
    process = verbs_folder(tmp_path / "good")
    found = dict(system._providers(str(tmp_path / "good" / "libibverbs.so.1"), process))
    assert found["mlx5"]["versions"] == [] and "error" not in found["mlx5"]
    assert "error" in found["hns"]
    process = verbs_folder(tmp_path / "other", provider_needs="IBVERBS_PRIVATE_99")
    found = dict(system._providers(str(tmp_path / "other" / "libibverbs.so.1"), process))
    assert found["mlx5"]["versions"] == ["IBVERBS_PRIVATE_99 of libibverbs.so.1"]
