"""`attest --key`: of what is attached, which attachments the statements are made of. cosign is pretended."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from images.errors import Problem, UserError
from images.publish import signing
from images.publish.attachments import PublishedImage
from images.publish.statements import attest
from images.registry.client import Registry
from images.registry.reference import Repository
from tests.support.blob_registry import BlobRegistry
from tests.support.commands import call
from tests.support.http_server import serving
from tests.support.published import days_ago, judge_again, published


@pytest.fixture
def target() -> Iterator[Registry]:
    with serving() as server:
        server.answer = BlobRegistry().answer
        with Registry(Repository(server.host, "images")) as found:
            yield found


@pytest.mark.parametrize(("is_signed", "counted"), [(True, 3), (False, 4)])
def test_statements_are_made_of_what_the_key_has_signed(
    target: Registry, is_signed: bool, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an image that was published without the key, they are made of everything, and that is said."""
    covered = frozenset(one.digest for one in published(target, "one", date=days_ago(2)).attachments)
    judge_again(target, "one", date=days_ago(0))
    seen: list[int] = []

    def signed(image: str, _key: str) -> frozenset[str]:
        if not is_signed:
            raise UserError(Problem(where=image, cause="no signatures found"), code=1)
        return covered

    def attested(_target: Registry, image: PublishedImage, *_: object) -> tuple[str, ...]:
        seen.append(len(image.attachments))
        return ()

    for name, stand_in in {"require": print, "require_password": print, "public_file": nullcontext}.items():
        monkeypatch.setattr(signing, name, stand_in, raising=False)
    monkeypatch.setattr(signing, "signed_attachments", signed)
    monkeypatch.setattr(attest, "attest", attested)
    done = call("attest", f"{target.repository}:one", "--key", "cosign.key")
    assert done.returncode == 0 and seen == [counted], done.stderr
    assert ("is not signed with this key" in " ".join(done.stderr.split())) is not is_signed
