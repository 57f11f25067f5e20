"""What all tests share: options of the whole suite, and no property test that fails because the machine is busy."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).parent / "pretend"))
import pretended

# How long an example takes is for the machine to say, and for what else runs on it.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("another machine", "run as if the engine's machine were of another size")
    group.addoption("--pretend-memory", type=int, metavar="BYTES", help="the memory that the engine says it has")
    group.addoption("--pretend-cores", type=int, metavar="N", help="the cores that the engine says it has")


def pytest_configure(config: pytest.Config) -> None:
    pretended.start(config.getoption("--pretend-memory"), config.getoption("--pretend-cores"))


class Groups(LoadScopeScheduling):
    """Which tests stay on one worker. xdist's own groups rest on a private attribute that pytest 9.2 dropped."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(nodeid: str) -> str:
    """One a file; the browser's; the shared engine's, one after another, as several count what the engine holds."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/integration/") and not file.endswith("/test_engines.py"):
        return "engine"
    return "browser" if file.startswith("tests/browser/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)
