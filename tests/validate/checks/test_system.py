"""S9: NCCL's way to rdma-core, replayed over small libraries made for the purpose, and judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from images.planning import plan
from images.validation.claims.context import ClaimContext
from images.validation.claims.static import system_claims
from tests.support import elves
from tests.support.judging import judge_claim
from tests.support.sources import SOURCES
from validate.binaries.loader import Files, Process, SearchPath
from validate.checks.static import system
from validate.claims import Claim
from validate.judging import Status

(PLANNED,) = plan.select(["cu126-torch27"], SOURCES)
assert PLANNED.image is not None
TOOLS, VERBS = system_claims(ClaimContext(image=PLANNED.image, facts=SOURCES.facts))

LIBRARY = {"path": "/usr/lib/libibverbs.so.1", "missing": [], "lacking": []}
GOOD: Mapping[str, Any] = {
    "nccl": {"path": "/v/libnccl.so.2", "opens": ["libibverbs.so", "libibverbs.so.1"], "asks": ["ibv_open_device"]},
    "libraries": dict.fromkeys(VERBS.expect["libraries"], LIBRARY),
    "providers": {name: {"path": f"/{name}.so", "missing": [], "versions": []} for name in VERBS.expect["providers"]},
}


def judged(claim: Claim, evidence: Mapping[str, Any]) -> tuple[Status, str]:
    return judge_claim(claim, evidence)


def test_a_whole_rdma_core_is_green() -> None:
    assert judged(VERBS, GOOD)[0] is Status.PASS


@pytest.mark.parametrize(
    ("part", "found", "status", "words"),
    [
        ("libraries", {**LIBRARY, "path": None}, Status.FAIL, "the loader finds no libibverbs.so.1"),
        ("libraries", {**LIBRARY, "missing": ["libnl-3.so.200"]}, Status.FAIL, "libnl-3.so.200"),
        ("libraries", {**LIBRARY, "lacking": ["ibv_open_device@IBVERBS_1.1"]}, Status.FAIL, "lacks ibv_open_device"),
    ],
)
def test_a_library_that_nccl_would_not_get_is_named(part: str, found: object, status: Status, words: str) -> None:
    changed = {**GOOD[part], "libibverbs.so.1": found}
    verdict, reason = judged(VERBS, {**GOOD, part: changed})
    assert verdict is status and words in reason


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"path": "/p.so", "missing": ["libefa.so.1"], "versions": []}, "needs libefa.so.1"),
        ({"path": "/p.so", "missing": [], "versions": ["IBVERBS_PRIVATE_99 of libibverbs.so.1"]}, "PRIVATE_99"),
        ({"path": "/p.so", "missing": [], "versions": [], "error": "No such file"}, "can't be read: No such file"),
    ],
)
def test_a_provider_that_would_not_load_is_named(found: object, words: str) -> None:
    verdict, reason = judged(VERBS, {**GOOD, "providers": {**GOOD["providers"], "mlx5": found}})
    assert verdict is Status.FAIL and words in reason


def test_a_missing_provider_is_named() -> None:
    providers = {name: found for name, found in GOOD["providers"].items() if name != "mlx5"}
    assert judged(VERBS, {**GOOD, "providers": providers}) == (Status.FAIL, "/etc/libibverbs.d names no driver mlx5")


def test_another_nccl_than_the_one_that_was_read_is_not_green() -> None:
    other = {"path": "/v/libnccl.so.2", "opens": ["libverbs2.so"], "asks": []}
    assert judged(VERBS, {**GOOD, "nccl": other})[0] is Status.UNPROVEN
    assert judged(VERBS, {**GOOD, "nccl": {"path": None, "opens": [], "asks": []}})[0] is Status.UNPROVEN


def test_a_program_that_is_missing_or_does_not_start_is_named() -> None:
    well = {name: {"path": f"/usr/bin/{name}", "version": "1"} for name in TOOLS.expect["programs"]}
    assert judged(TOOLS, {"programs": well})[0] is Status.PASS
    assert "no git" in judged(TOOLS, {"programs": {**well, "git": {"path": None}}})[1]
    broken = {"path": "/usr/bin/curl", "error": "libcurl.so.4: cannot open shared object file"}
    assert "libcurl.so.4" in judged(TOOLS, {"programs": {**well, "curl": broken}})[1]


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


def with_ssh(error: str) -> Mapping[str, Any]:
    ran = {name: {"path": f"/usr/bin/{name}", "version": "1"} for name in TOOLS.expect["programs"]}
    return {"programs": {**ran, "ssh": {"path": "/usr/bin/ssh", "error": error}}}


def test_ssh_that_refuses_a_user_without_a_name_is_not_broken_and_one_that_lacks_a_library_is() -> None:
    assert judged(TOOLS, with_ssh("No user exists for uid 61234"))[0] is Status.PASS
    status, reason = judged(TOOLS, with_ssh("error while loading shared libraries: libcrypto.so.3"))
    assert status is Status.FAIL and "/usr/bin/ssh does not run" in reason
