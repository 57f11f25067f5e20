"""Which image a tag may name: by its labels and the matrix, and with a key by what that signed. cosign is pretended."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from images.errors import UserError
from images.publish import attachments
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.release import promote
from images.publish.tags import immutable_tag, version_of
from images.publish.verify import Check, verify
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from tests.support.attested import NAME
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import serving
from tests.support.published import CLAIMS, days_ago, pretend_cosign, published
from validate.claims import Tier
from validate.judging import Status

KEY = "cosign.key"
POLICY = ReleasePolicy(
    gate=(Tier.STATIC,),
    alias_gate=(Tier.STATIC,),
    aliases_of=lambda name: ("latest",) if name == NAME else (),
    claims_of=lambda _labels, _run: CLAIMS,
)
NO_MATRIX = replace(POLICY, aliases_of=lambda _name: (), claims_of=lambda _labels, run: run.claim_set, own_claims=True)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    pretend_cosign(monkeypatch)
    with serving() as server, Registry(Repository(server.host, "images")) as found:
        server.answer = BlobRegistry().answer
        yield found


def signed(target: Registry, content: str, *names: str, name: str = NAME, key: str = KEY) -> PublishedImage:
    """An image that a key signed for some tags, which name it then."""
    image = published(target, content, date=days_ago(1), key=key, name=name)
    attachments.sign_image(target, image.manifest.digest, key, key, names)
    for tag in names:
        target.put(image.manifest, tag)
    return image


def check(target: Registry, tag: str, policy: ReleasePolicy = POLICY, key: str = KEY, of: str = "tag") -> Check:
    found = verify(Reference(target.repository, tag), policy, key=key, unsigned=not key)[1]
    return next(one for one in found if one.subject.startswith(of))


def told(target: Registry, tag: str, policy: ReleasePolicy = POLICY, key: str = KEY) -> str:
    """What is said against a tag; empty: nothing."""
    found = check(target, tag, policy, key)
    return found.reason if found.status is Status.FAIL else ""


def test_the_tags_that_a_key_signed_are_those_of_the_image(target: Registry) -> None:
    image = signed(target, "one", NAME, "latest", f"{NAME}-20261121-000000000000")
    assert [told(target, tag) for tag in (NAME, "latest")] == ["", ""]
    assert "whose tags are" in told(target, f"{NAME}-20261121-000000000000"), "another build's dated tag"
    digest = Reference(target.repository, image.manifest.digest)
    assert "tag" not in [one.subject for one in verify(digest, POLICY, key=KEY)[1]]


@pytest.mark.parametrize("key", [KEY, ""])
def test_an_image_under_another_ones_tag_is_told_with_both_names(target: Registry, key: str) -> None:
    image = signed(target, "one", NAME, "latest")
    other = signed(target, "other", "cu128-torch28", name="cu128-torch28")
    target.put(image.manifest, "cu128-torch28")
    target.put(other.manifest, "latest")
    short = image.manifest.digest[:19]
    assert told(target, "cu128-torch28", key=key).startswith(f"cu128-torch28 names {NAME} ({short}), whose tags are")
    assert told(target, "latest", key=key).startswith("latest names cu128-torch28 (")


@pytest.mark.parametrize("policy", [POLICY, NO_MATRIX])
def test_an_older_signed_build_of_a_moving_tag_is_told_with_digests(target: Registry, policy: ReleasePolicy) -> None:
    old, new = (signed(target, content, NAME, "latest") for content in ("old", "new"))
    assert [told(target, tag, policy) for tag in (NAME, "latest")] == ["", ""]
    for tag in (NAME, "latest"):
        target.put(old.manifest, tag)
        reason = told(target, tag, policy)
        assert reason.startswith(f"{tag} names {old.manifest.digest[:19]}, signed for it ")
        assert f"the key signed {new.manifest.digest[:19]} for it " in reason
    assert told(target, NAME, key="") == "", "without a key nobody knows"
    attachments.sign_image(target, old.manifest.digest, KEY, KEY, [NAME, "latest"])
    assert told(target, NAME, policy) == "", "an index that lost a platform is one of before"


@pytest.mark.parametrize("policy", [POLICY, NO_MATRIX])
def test_a_tag_that_the_key_did_not_sign_is_told(target: Registry, policy: ReleasePolicy) -> None:
    """One that another key signed, too."""
    image = signed(target, "one", NAME)
    attachments.sign_image(target, image.manifest.digest, "other.key", "other.key", ["latest"])
    target.put(image.manifest, "latest")
    short = image.manifest.digest[:19]
    assert told(target, "latest", policy) == f"latest names {NAME} ({short}), which the key did not sign for it"


def test_what_another_key_signs_later_moves_no_tag(target: Registry) -> None:
    signed(target, "one", NAME)
    other = signed(target, "other", key="other.key")
    attachments.sign_image(target, other.manifest.digest, "other.key", "other.key", [NAME])
    assert told(target, NAME) == ""


def test_without_a_matrix_and_a_key_nothing_says_what_an_image_must_hold(target: Registry) -> None:
    signed(target, "one", NAME)
    by_key, by_nobody = (check(target, NAME, NO_MATRIX, key, "gate") for key in (KEY, ""))
    assert (by_key.status, by_nobody.status) == (Status.PASS, Status.UNPROVEN)
    assert "for which the key stands" in by_key.reason and "no key stands for" in by_nobody.reason


@pytest.fixture
def production(target: Registry) -> Iterator[Registry]:
    with Registry(Repository(target.repository.host, "production")) as found:
        yield found


def dated(image: PublishedImage) -> str:
    return immutable_tag(NAME, version_of(image).created, image.image_id)


def test_a_promotion_moves_no_tag_that_the_key_did_not_sign(target: Registry, production: Registry) -> None:
    """Staging may leave an alias where it is; whoever promotes has the public key alone."""
    image = published(target, "one", date=days_ago(1), key=KEY)
    place = Reference(target.repository, image.manifest.digest)
    attachments.sign_image(target, image.manifest.digest, KEY, KEY, [NAME])
    with pytest.raises(UserError) as refused:
        promote(place, production.repository, POLICY, key=KEY)
    (problem,) = refused.value.problems
    assert problem.where == f"{production.repository}:{dated(image)}" and "the key did not sign" in problem.cause
    assert "publish" in problem.then and "--key cosign.key" in problem.then
    assert production.find(NAME) is None
    attachments.sign_image(target, image.manifest.digest, KEY, KEY, [NAME, dated(image)])
    done = promote(place, production.repository, POLICY, key=KEY)
    assert set(done.tags) == {NAME, dated(image)}
    assert [text.startswith("latest stays: the key did not sign") for text in done.unmoved_aliases] == [True]
    assert not told(production, NAME) and not told(production, dated(image))
    attachments.sign_image(target, image.manifest.digest, KEY, KEY, [NAME, dated(image), "latest"])
    assert "latest" in promote(place, production.repository, POLICY, key=KEY).tags
    assert not told(production, "latest")


def test_an_index_of_production_alone_takes_no_tag_from_a_signed_one(target: Registry, production: Registry) -> None:
    """The platform that joins is there under its own name; the row's name stays."""
    row = ("cu130-torch211", "cu130-torch211-arm64")
    policy = replace(POLICY, row_of=lambda _name: row, claims_of=lambda _labels, run: run.claim_set)
    said = list[str]()
    for name in row:
        image = published(target, name, date=days_ago(1), key=KEY, name=name)
        fixed = immutable_tag(name, version_of(image).created, image.image_id)
        attachments.sign_image(target, image.manifest.digest, KEY, KEY, [name, fixed])
        done = promote(Reference(target.repository, name), production.repository, policy, key=KEY)
        assert set(done.tags) == {fixed, *([name] if name != row[0] else [])}
        said += done.unmoved_aliases
    (of_row,) = [text for text in said if text.startswith(f"{row[0]} stays: the key did not sign")]
    assert f"{target.repository}:{row[0]} --to" in of_row and production.find(row[0]) is None
