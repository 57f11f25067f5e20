"""What is under cosign's tags: beside what others left there, and while others write, too."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema_rs import validator_for

from images.errors import UserError
from images.host.hashing import oci_digest
from images.publish import attachments
from images.publish.attachments import PublishedImage, attached_tag
from images.publish.statements import CYCLONEDX, TEST_RESULT
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from tests.support.attested import DIGEST
from tests.support.blob_registry import BlobRegistry
from tests.support.checkout import ROOT
from tests.support.http_server import Reply, Server, serving
from tests.support.published import (
    attach,
    days_ago,
    judge_again,
    pretend_cosign,
    published,
    result_of,
    statement_about,
    validated,
)

TAG = "sha256-0.sig"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as http_server:
        http_server.answer = BlobRegistry().answer
        yield http_server


@pytest.fixture
def target(server: Server) -> Iterator[Registry]:
    with Registry(Repository(server.host, "x"), credentials=lambda _: None) as registry:
        yield registry


# --- the layers under a tag -----------------------------------------------------------------------


def layer_of(content: bytes, signature: str = "") -> Descriptor:
    return Descriptor.of("application/x", content, annotations={"signature": signature})


OURS_OF_JANUARY = layer_of(b"ours of January")
OURS_OF_MARCH = layer_of(b"ours of March")
THEIRS = layer_of(b"theirs")
SIGNED_BY_A, SIGNED_BY_B = layer_of(b"x", "a"), layer_of(b"x", "b")


@pytest.mark.parametrize(
    ("before", "add", "remove", "after"),
    [
        pytest.param([], [OURS_OF_MARCH], [], [OURS_OF_MARCH], id="no tag yet"),
        pytest.param([THEIRS], [OURS_OF_MARCH], [], [THEIRS, OURS_OF_MARCH], id="beside another's"),
        pytest.param(
            [OURS_OF_JANUARY, THEIRS],
            [OURS_OF_MARCH],
            [OURS_OF_JANUARY],
            [THEIRS, OURS_OF_MARCH],
            id="in place of an older one of ours",
        ),
        pytest.param(
            [SIGNED_BY_A],
            [SIGNED_BY_B],
            [],
            [SIGNED_BY_A, SIGNED_BY_B],
            id="the same content with another signature",
        ),
        pytest.param([SIGNED_BY_A], [SIGNED_BY_A], [], [SIGNED_BY_A], id="what is there already"),
    ],
)
def test_only_the_named_layers_are_added_and_removed(
    target: Registry,
    before: list[Descriptor],
    add: list[Descriptor],
    remove: list[Descriptor],
    after: list[Descriptor],
) -> None:
    for content in (b"{}", b"x", b"theirs", b"ours of January", b"ours of March"):
        target.put_blob(content)
    if before:
        target.put(image_manifest(Descriptor.of(OCI_CONFIG, b"{}"), before), TAG)

    attachments.update_layers(target, TAG, add, remove)
    assert list(target.get(TAG).layers) == after

    attachments.update_layers(target, TAG, add, remove)
    assert list(target.get(TAG).layers) == after, "the same again changes nothing"


def lose_writes(server: Server, count: int) -> None:
    """Let another machine overwrite TAG right after each of our first writes of it."""
    answer = server.answer
    lost = [TAG] * count

    def answer_or_lose(
        method: str, path: str, headers: dict[str, str], body: bytes
    ) -> Reply | None:
        if method == "PUT" and path.endswith(TAG) and lost:
            lost.pop()
            return 201, {}, b""
        return answer(method, path, headers, body)

    server.answer = answer_or_lose


def test_a_tag_that_others_overwrite_is_written_up_to_five_times(
    target: Registry, server: Server
) -> None:
    """Registries have no conditional write."""
    lose_writes(server, 4)
    target.put_blob(b"theirs")

    attachments.update_layers(target, TAG, [THEIRS])

    assert target.get(TAG).layers == (THEIRS,)
    assert server.count("PUT", TAG) == 5


def test_a_tag_that_others_overwrite_five_times_is_an_error(
    target: Registry, server: Server
) -> None:
    lose_writes(server, 5)
    target.put_blob(b"theirs")

    with pytest.raises(RegistryError, match="other machines keep overwriting this tag"):
        attachments.update_layers(target, TAG, [THEIRS])

    assert server.count("PUT", TAG) == 5


# --- which statements count -----------------------------------------------------------------------

ENVELOPE = "application/vnd.dsse.envelope.v1+json"


def test_layers_that_are_no_statements_of_ours_count_for_nothing(target: Registry) -> None:
    image = published(target, "one", date=days_ago(1))
    no_envelope = b"[]"
    target.put_blob(no_envelope)
    foreign_layers = []
    for media_type, predicate_type in (
        (ENVELOPE, CYCLONEDX),
        ("application/x", CYCLONEDX),
        (ENVELOPE, "https://x.org"),
    ):
        layer = Descriptor.of(
            media_type, no_envelope, annotations={"predicateType": predicate_type}
        )
        foreign_layers.append(layer)

    tag = attached_tag(image.manifest.digest, "att")
    attachments.update_layers(target, tag, foreign_layers)

    assert attachments.load(target, image.manifest) == image


def test_a_run_of_another_image_is_refused(target: Registry) -> None:
    image = published(target, "one", date=days_ago(1))
    run_of_another_image = validated(oci_digest(b"another"), days_ago(1))
    attach(target, "one", TEST_RESULT, result_of([run_of_another_image]))

    with pytest.raises(UserError, match="its attestation is of the image sha256:"):
        _ = attachments.load(target, image.manifest).attestations


@pytest.fixture
def image_with_foreign_statements(
    target: Registry, monkeypatch: pytest.MonkeyPatch
) -> tuple[PublishedImage, PublishedImage]:
    """An image as the key `ours` published it, and with what others attached to it since.

    These are an unsigned SBOM, one that the key `theirs` signed, and a test result of another
    image, with a valid signature of our key.
    """
    pretend_cosign(monkeypatch)
    image = published(target, "one", date=days_ago(1), key="ours")
    other_image = published(target, "two", date=days_ago(1), key="ours")
    for key in ("", "theirs"):
        attach(target, "one", CYCLONEDX, {"components": []}, key)
    (replayed,) = other_image.statements_of(TEST_RESULT)
    target.put_blob(replayed.envelope)
    attachments.update_layers(
        target,
        attached_tag(image.manifest.digest, "att"),
        [attachments.statement_layer(replayed)],
    )
    return image, attachments.load(target, image.manifest)


def test_without_a_key_every_statement_counts(
    image_with_foreign_statements: tuple[PublishedImage, PublishedImage],
) -> None:
    _as_published, now = image_with_foreign_statements

    assert len(now.statements) == 6
    assert attachments.drop_untrusted(now, "") == now


def test_with_a_key_only_what_it_signed_of_this_image_counts(
    image_with_foreign_statements: tuple[PublishedImage, PublishedImage],
) -> None:
    as_published, now = image_with_foreign_statements

    of_theirs = attachments.drop_untrusted(now, "theirs").statements
    assert attachments.drop_untrusted(now, "ours").statements == as_published.statements
    assert [statement.predicate for statement in of_theirs] == [{"components": []}]
    assert attachments.drop_untrusted(now, "nobody's").statements == ()


# --- copying to another repository ----------------------------------------------------------------


@pytest.fixture
def production(target: Registry, server: Server) -> Iterator[Registry]:
    """Another repository, which may link blobs of the first one."""
    repository = Repository(server.host, "y")
    with Registry(
        repository, credentials=lambda _: None, mount_from=[target.repository]
    ) as registry:
        yield registry


def copy_to(production: Registry, target: Registry, image: PublishedImage) -> None:
    attachments.mount_blobs(target, production, image.manifest)
    production.put(image.manifest, "one")
    attachments.copy_attachments(target, production, image.manifest.digest, "")


def test_a_test_result_that_a_copied_one_supersedes_goes(
    target: Registry, production: Registry
) -> None:
    image = published(target, "one", date=days_ago(9))
    copy_to(production, target, image)

    judge_again(target, "one", date=days_ago(1))
    copy_to(production, target, image)

    in_production = attachments.load(production, image.manifest)
    assert in_production.statements == attachments.load(target, image.manifest).statements


def test_a_test_result_that_is_only_in_the_other_repository_stays(
    target: Registry, production: Registry
) -> None:
    image = published(target, "one", date=days_ago(9))
    copy_to(production, target, image)
    run_in_production = validated(image.image_id, days_ago(0))
    own_result = statement_about(image, TEST_RESULT, result_of([run_in_production]))
    without_statements = PublishedImage(
        repository=production.repository, manifest=image.manifest, config={}, statements=()
    )
    attachments.attach(production, without_statements, [own_result], "")

    copy_to(production, target, image)

    assert own_result in attachments.load(production, image.manifest).statements


# --- the example of an admission policy -----------------------------------------------------------

POLICY = yaml.safe_load((ROOT / "examples" / "kubernetes" / "admission-policy.yaml").read_text())


def test_the_example_policy_fits_the_schema_of_kyverno() -> None:
    schema_file = ROOT / "tests" / "support" / "crds" / "clusterpolicies.json"
    validator = validator_for(json.loads(schema_file.read_text()))

    assert [str(error.instance_path) for error in validator.iter_errors(POLICY)] == []


def test_the_example_policy_asks_for_what_a_test_result_says() -> None:
    predicate = result_of([validated(DIGEST, days_ago(1))])

    ((images,),) = [rule["verifyImages"] for rule in POLICY["spec"]["rules"]]
    (attestation,) = images["attestations"]
    assert attestation["type"] == TEST_RESULT
    conditions = attestation["conditions"][0]["all"]
    assert len(conditions) == 3
    for condition in conditions:
        # `{{ truetagTiers.gpu.result }}`
        (path,) = re.findall(r"truetagTiers[.\w]+", condition["key"])
        value: Any = predicate
        for key in path.split("."):
            value = value[key]
        # A date is compared with the clock of the cluster.
        assert value == condition["value"] or path.endswith("measuredOn")
