"""A server that answers what a test says."""

from collections.abc import Iterator

import pytest

from tests.support.http_server import Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found
