"""Cold builds by the command line."""

import subprocess
from pathlib import Path

import pytest

from images.bench.parts import cold
from images.bench.project_copy import ProjectCopy
from images.planning import plan
from tests.support.bench import SOURCES, Cache


def test_the_image_that_the_command_line_builds_uncached_stands_on_a_layer_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planned,) = plan.select(["cu130-torch211"], SOURCES)
    assert planned.image is not None
    copied = ProjectCopy(tmp_path, Cache(), tmp_path / "out")  # type: ignore[arg-type]
    copied.copy()
    script = tmp_path / "templates" / "scripts" / "user.sh"
    before = script.read_text()
    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(ProjectCopy, "build", lambda _self, _image, option: ran.append((option, script.read_text())))
    cold.by_command(Cache().builder(), copied, planned.image)
    ((option, then),) = ran
    assert option == "--no-cache" and then.startswith(before)
    assert then.removeprefix(before) == "echo RUN-ID >/etc/truetag-bench\n"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
