"""hygiene: leftovers of a build, credentials in files, and the home, judged from evidence."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.judging import fails, judge_claim, spoiled_by, wrong
from tests.support.site_packages import static_claim
from validate.checks.static import hygiene
from validate.checks.static.files import to_record_hash
from validate.judging import Finding, Status

HEALTHY: dict[str, Any] = cases(__file__, "healthy")
EXPECT: dict[str, Any] = cases(__file__, "expected")
"""Subject of a claim -> what it expects."""


def judged(subject: str, **measured: Any) -> Finding:
    """Judge evidence. What is not given is well."""
    claim = static_claim("hygiene", subject, "hygiene", **EXPECT[subject])
    return judge_claim(claim, {**HEALTHY, **measured})


@pytest.mark.parametrize("subject", EXPECT)
def test_a_healthy_image_passes(subject: str) -> None:
    assert judged(subject).status is Status.PASS


@pytest.mark.parametrize(
    ("subject", "status"),
    [
        ("leftovers", Status.UNPROVEN),
        ("secrets", Status.UNPROVEN),
        # The home is looked at by itself.
        ("home", Status.PASS),
    ],
)
def test_a_folder_that_can_not_be_listed_leaves_unproven_what_may_lie_in_it(
    subject: str, status: Status
) -> None:
    assert judged(subject, unreadable=["/root"]).status is status


@pytest.mark.parametrize(("subject", "words", "changes"), wrong("hygiene"))
def test_a_leftover_a_credential_and_a_closed_home_fail(
    subject: str, words: str, changes: dict[str, Any]
) -> None:
    fails(judged(subject, **spoiled_by(HEALTHY, changes)), words)


@pytest.mark.parametrize(("is_altered", "count"), [(False, 0), (True, 1)])
def test_what_a_wheel_outside_of_the_environment_brought_is_no_credential(
    tmp_path: Path, is_altered: bool, count: int
) -> None:
    """The Python of a base has packages of its own, such as pip with its examples."""
    module = tmp_path / "pip" / "util.py"
    module.parent.mkdir()
    address = "https://me:planted-7f3a9c@example.org/simple\n"
    module.write_text(address)
    digest = to_record_hash(hashlib.sha256(module.read_bytes()).hexdigest())
    (tmp_path / "pip-23.2.1.dist-info").mkdir()
    (tmp_path / "pip-23.2.1.dist-info" / "RECORD").write_text(f"pip/util.py,sha256={digest},45\n")
    if is_altered:
        module.write_text(f"{address}# edited\n")

    files = {str(module): module.stat().st_size}

    secrets, searched_files = hygiene.find_secrets(files, (), ())

    assert searched_files == 1
    assert len(secrets) == count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("lib/python3.11/test/test_netrc.py", 0),
        ("lib/python3.11/site-packages/mine/test/settings", 1),
        ("lib/python3.11/netrc.py", 1),
    ],
)
def test_python_s_own_tests_are_not_read(tmp_path: Path, name: str, count: int) -> None:
    """A Python that pyenv compiled has keys and passwords there, and no package lists them."""
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text("machine h login me password planted-7f3a9c\n")

    secrets, _ = hygiene.find_secrets({str(file): file.stat().st_size}, (), ())

    assert len(secrets) == count


@pytest.mark.parametrize(("name", "count"), [("header.h", 0), (".netrc", 1)])
def test_below_folders_of_an_unknown_package_manager_only_names_tell_a_credential(
    tmp_path: Path, name: str, count: int
) -> None:
    file = tmp_path / name
    file.write_text("https://me:planted-7f3a9c@example.org/simple\n")

    secrets, _ = hygiene.find_secrets({str(file): file.stat().st_size}, (), (f"{tmp_path}/",))

    assert len(secrets) == count
