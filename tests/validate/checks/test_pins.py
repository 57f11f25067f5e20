"""pins: a distribution is installed at its version, and `import` would load its own files."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.judging import fails, says
from tests.support.site_packages import PYTHON, Site, measure_and_judge, static_claim
from validate.checks.static import pins
from validate.claims import Claim
from validate.judging import Finding

PINNED = static_claim(
    "pins", "pkg", "pins", version="1.0", locals=[""], modules=["pkg"], python=PYTHON, shares=[]
)


def pin_of(name: str, **expect: Any) -> Claim:
    """Return a claim about another distribution. What is not given is as for `pkg`."""
    return static_claim("pins", name, "pins", **{**PINNED.expect, **expect})


def judged(claim: Claim = PINNED) -> Finding:
    return measure_and_judge(pins, claim)


def install_behind_another(site: Site) -> None:
    """Install pkg, with a pkg.py in a folder that comes before it in PYTHONPATH."""
    site.install()
    site.write("../other/pkg.py")
    site.start_with(PYTHONPATH=f"{site.parent}/other:{site.root}")


def install_with_one_in_the_working_directory(site: Site) -> None:
    site.install()
    site.write("../home/pkg.py")


def install_beside_a_rival(site: Site) -> None:
    site.install()
    site.install("rival", "2", {"pkg/a.py": b""})


def install_twice(site: Site) -> None:
    site.install()
    site.install(version="0.9", contents={})


@pytest.mark.parametrize(
    ("arrange", "words"),
    [
        pytest.param(lambda site: site.install(), "", id="as-pinned"),
        pytest.param(lambda site: None, "not installed", id="missing"),
        pytest.param(
            lambda site: site.install(version="1.1"),
            "pkg 1.1 is installed, and 1.0 is expected",
            id="another-version",
        ),
        pytest.param(
            lambda site: site.install(version="1.0+cpu"), "1.0+cpu", id="another-local-version"
        ),
        pytest.param(
            install_with_one_in_the_working_directory,
            "found through {home}",
            id="hidden-by-the-working-directory",
        ),
        pytest.param(
            install_behind_another,
            "other/pkg.py, which belongs to no installed package",
            id="hidden-by-pythonpath",
        ),
        pytest.param(
            install_beside_a_rival, "rival also installs files", id="shared-with-another-package"
        ),
        pytest.param(install_twice, "installed 2 times", id="installed-twice"),
        pytest.param(lambda site: site.install(contents={}), "finds no module", id="without-files"),
        pytest.param(
            lambda site: site.install(contents={"pkg/data.txt": b""}),
            "namespace",
            id="without-a-module",
        ),
    ],
)
def test_what_is_not_installed_and_imported_as_pinned_fails(
    site: Site, arrange: Callable[[Site], object], words: str
) -> None:
    arrange(site)

    says(judged(), words.format(home=site.parent / "home"))


def test_a_submodule_is_found_in_a_package_without_an_init_file(site: Site) -> None:
    """flash-attn-4 brings flash_attn/cute, and no flash_attn/__init__.py."""
    site.install("flash-attn-4", "4.0", {"flash_attn/cute/__init__.py": b""})
    claim = pin_of("flash-attn-4", version="4.0", modules=["flash_attn.cute"])
    says(judged(claim), "")

    (site.root / "flash_attn/cute/__init__.py").unlink()

    fails(judged(claim), "flash_attn.cute")


WITH_ANNOTATION = (
    b"__version__ = '2.7.1+cu126'\nfrom typing import Optional\ncuda: Optional[str] = '12.6'\n"
)
"""torch/version.py may annotate the variable."""


@pytest.mark.parametrize(
    ("version_file", "words"),
    [
        pytest.param(WITH_ANNOTATION, "", id="for-the-expected-cuda"),
        pytest.param(
            b"__version__ = '2.7.1+cpu'\ncuda = None\n", "for no CUDA at all", id="for-the-cpu"
        ),
        pytest.param(
            b"__version__ = '2.7.1+cu128'\ncuda: str = '12.8'\n",
            "for CUDA 12.8",
            id="for-another-cuda",
        ),
        pytest.param(
            b"__version__ = '2.7.0+cu126'\ncuda = '12.6'\n",
            "says 2.7.0+cu126",
            id="of-another-version",
        ),
        pytest.param(b"this is no python\n", "for no CUDA at all", id="unreadable"),
    ],
)
def test_torchs_own_version_file_must_say_what_its_metadata_says(
    site: Site, version_file: bytes, words: str
) -> None:
    contents = {"torch/__init__.py": b"", "torch/version.py": version_file}
    site.install("torch", "2.7.1", contents)

    says(judged(pin_of("torch", version="2.7.1", modules=["torch"], cuda="12.6")), words)


@pytest.mark.parametrize(
    ("closed", "locked", "words"),
    [
        pytest.param(True, {"pkg": "1.0", "dep": "2"}, "", id="all-as-locked"),
        pytest.param(
            True, {"pkg": "1.0"}, "dep 2 is installed, but not in the lock", id="one-too-many"
        ),
        pytest.param(False, {"pkg": "1.0"}, "", id="more-than-an-open-lock"),
        pytest.param(
            True,
            {"pkg": "1.0", "dep": "3"},
            "dep 2 is installed, and the lock has 3",
            id="another-version",
        ),
        pytest.param(
            True, {"pkg": "1.0", "dep": "2", "gone": "1"}, "gone 1 is not installed", id="missing"
        ),
    ],
)
def test_what_is_installed_must_be_what_is_locked(
    site: Site, closed: bool, locked: dict[str, str], words: str
) -> None:
    site.install("pkg", "1.0")
    site.install("dep", "2")

    says(judged(static_claim("pins", "lock", "pins", versions=locked, closed=closed)), words)
