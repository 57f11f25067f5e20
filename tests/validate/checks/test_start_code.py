"""S7: what runs when Python starts, and is known to come from one of Debian's packages."""

from __future__ import annotations

import hashlib
from pathlib import Path

from validate.checks.static import environment
from validate.environment import debian


def test_a_file_of_a_debian_package_is_known_while_it_is_as_packaged(tmp_path: Path) -> None:
    file, other = tmp_path / "usr/distutils-precedence.pth", tmp_path / "usr/other.pth"
    file.parent.mkdir()
    for one in (file, other):
        one.write_text("import os\n")
    info = tmp_path / "dpkg/info"
    info.mkdir(parents=True)
    digest = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
    (info / "python3-setuptools.list").write_text(f"{file}\n")
    (info / "python3-setuptools.md5sums").write_text(f"{digest}  {str(file)[1:]}\n")
    packages = debian.owned(str(tmp_path / "dpkg"))
    assert environment._of_debian(str(file), packages)
    assert not environment._of_debian(str(other), packages)
    file.write_text("import sys\n")
    assert not environment._of_debian(str(file), packages)
