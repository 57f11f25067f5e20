"""installed: which distributions an environment has."""

import os
from pathlib import Path

import pytest

from validate.environment import installed


def write_metadata(folder: Path, name: str, version: str, record: str) -> None:
    """Write the metadata of a distribution, without its files."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(record)


def versions(*folders: Path) -> list[tuple[str, str]]:
    """Return version and folder of each distribution in these folders of sys.path."""
    found = installed.distributions([str(folder) for folder in folders])
    return [(one.version, Path(one.location).name) for one in found]


def test_copied_metadata_of_a_package_in_a_later_folder_is_no_second_installation(
    tmp_path: Path,
) -> None:
    image, additions = tmp_path / "image", tmp_path / "additions"
    record = "torch/__init__.py,sha256=x,0\n../bin/torchrun,sha256=y,0\n"
    write_metadata(image, "torch", "2.5.1", record)
    write_metadata(additions, "torch", "2.5.1", record)
    (image / "torch").mkdir()
    (image / "torch/__init__.py").touch()
    # Commands are copied, too, and lie beside both folders.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/torchrun").touch()

    assert versions(additions, image) == [("2.5.1", "image")]


def test_a_second_copy_with_files_of_its_own_is_one(tmp_path: Path) -> None:
    image, additions = tmp_path / "image", tmp_path / "additions"
    for folder in (image, additions):
        write_metadata(folder, "torch", "2.5.1", "torch/__init__.py,sha256=x,0\n")
        (folder / "torch").mkdir()
        (folder / "torch/__init__.py").touch()

    assert versions(additions, image) == [("2.5.1", "additions"), ("2.5.1", "image")]


def test_another_version_in_front_counts_beside_the_one_that_it_hides(tmp_path: Path) -> None:
    image, additions = tmp_path / "image", tmp_path / "additions"
    write_metadata(image, "rich", "14.0", "rich/__init__.py,sha256=x,0\n")
    write_metadata(additions, "rich", "15.0", "rich/__init__.py,sha256=x,0\n")

    assert versions(additions, image) == [("15.0", "additions"), ("14.0", "image")]


@pytest.mark.parametrize("closed", ["", "RECORD"])
def test_metadata_that_this_user_may_not_read_has_the_name_and_version_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    """As `umask 077; pip install`, seen by the image's user. (Tests run as root, who may.)"""
    write_metadata(tmp_path, "my_package", "1.0", "my_package.py,sha256=x,1\n")
    path = tmp_path / "my_package-1.0.dist-info" / closed
    real_access = os.access
    monkeypatch.setattr(
        os, "access", lambda file, mode: Path(file) != path and real_access(file, mode)
    )

    (distribution,) = installed.distributions([str(tmp_path)])

    assert (distribution.name, distribution.version) == ("my-package", "1.0")
    assert not distribution.readable and distribution.entries is None
