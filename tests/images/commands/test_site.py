"""The verb `site`: what it writes, removes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

from images.commands.site import write
from images.nightly import results
from images.nightly.results import Job, Outcome
from images.site import records
from tests.support import site_samples as samples
from tests.support.commands import Called, call
from tests.support.site_samples import OLD


def test_writing_again_removes_what_is_gone_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "CNAME").write_text("mine")
    write({"index.html": b"1", "images/a.html": b"1", "images/b.html": b"1"}, tmp_path)
    write({"index.html": b"2", "images/b.html": b"2"}, tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"CNAME", "index.html", "images/b.html"} and (tmp_path / "index.html").read_bytes() == b"2"


def test_the_command_writes_a_site_of_several_folders_and_names_wrong_input(tmp_path: Path) -> None:
    def site(*arguments: str) -> Called:
        return call("site", "--out", str(tmp_path / "out"), *arguments)

    line = samples.job("cu126-torch27", Job.CONTROL, Outcome.PASS, digest=OLD)
    results.append(line, tmp_path / "branch" / "nightly")
    folders = ("--results", str(records.FOLDER), "--results", str(tmp_path / "branch"))
    done = site("--date", "2026-11-21", *folders)
    assert done.returncode == 0 and "index.html: " in done.stdout, done.stderr
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    (digests,) = ({run["digest"] for run in one["runs"]} for one in index["images"] if one["name"] == "cu126-torch27")
    assert index["date"] == "2026-11-21" and OLD in digests and len(digests) > 1
    done = site("--date", "yesterday")
    assert done.returncode == 2 and "write it as 2026-11-21" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "results" / "nightly").mkdir(parents=True)
    (tmp_path / "results" / "nightly" / "2026-11.jsonl").write_text("{}\n")
    done = site("--results", str(tmp_path / "results"))
    assert done.returncode == 2 and "2026-11.jsonl:1" in done.stderr
