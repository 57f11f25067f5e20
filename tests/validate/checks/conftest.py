"""Fixtures that several checks' tests share."""

from pathlib import Path

import pytest

from tests.support.site_packages import Site, make_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """An empty Python environment, which checks find in place of this machine's own."""
    return make_site(tmp_path, monkeypatch)
