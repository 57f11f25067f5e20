"""Signed statements in Debian's registry, read by two releases of cosign: what is accepted, and what is refused."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import ANY

import pytest

from benchmarks import loopback
from images.config.names import ImageName
from images.errors import UserError
from images.planning import plan
from images.publish import admission, signing
from images.publish.admission import AdmissionRule, Reader
from images.publish.attachments import PublishedImage
from images.publish.policy import ReleasePolicy
from images.publish.promote import copy
from images.publish.statements import attest, compose, intoto, store
from images.publish.statements.dsse import BUNDLE
from images.publish.verify import verify
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from tests.support.attested import NAME, PIP
from tests.support.commands import call
from tests.support.debian_tools import unpacked
from tests.support.published import CLAIMS, days_ago, judge_again, published
from tests.support.sources import SOURCES
from validate.claims import Tier
from validate.judging import Status

COSIGNS = {"2.5": "trixie", "3.1": "forky"}
"""Release -> the Debian suite that has it."""
SHORT = {"slsaprovenance1": intoto.PROVENANCE, "cyclonedx": intoto.CYCLONEDX, "spdxjson": intoto.SPDX}
"""What cosign calls a type, where it has a word for it."""
POLICY = ReleasePolicy(
    gate=[Tier.STATIC], alias_gate=[Tier.STATIC], aliases_of=lambda _name: (), claims_of=lambda _labels: CLAIMS
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with loopback.registry(tmp_path_factory.mktemp("registry") / "here") as host:
        yield host


@pytest.fixture
def target(registry: str, request: pytest.FixtureRequest) -> Iterator[Registry]:
    """A repository that no other test uses."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name.lower()).strip("-")
    with Registry(Repository(registry, f"statements/{name[:80].strip('-')}")) as found:
        yield found


@pytest.fixture
def signer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The cosign that the product finds on its PATH."""
    release = str(getattr(request, "param", "3.1"))
    monkeypatch.setenv("PATH", str(program(release).parent), prepend=os.pathsep)
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    return release


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("cosign", "other"):
        command = [str(program("2.5")), "generate-key-pair", "--output-key-prefix", name]
        environment = {**os.environ, "COSIGN_PASSWORD": ""}
        subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
    return folder


def program(release: str) -> Path:
    return unpacked("cosign", "oras", suite=COSIGNS[release]) / "usr" / "bin" / "cosign"


OTHER_KINDS = {
    "Ed25519": """-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEABILye5YAkzOQODdTGUtjPStO4ccoJkq5TBlg9zxIRXM=
-----END PUBLIC KEY-----
""",
    "RSA": """-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAv6CtcrtZCSHZ7jkmL4U3
qWwG0mFwNPN6v4VWpXDxF+O+u6cjfDnzl92LZtKK0iAQnzbeBzDY3wrLd4pGKVzP
HMrXVHBT3+tgxB/AoG4g9yn6Me7RmR5fmXsFPe6W3yWy3Oz6UCfTtZUtDlKk3DNr
KUyywCtpgIQNi+Me3pAOhKU72NQltssvh7QCDM6qkZto3IB/DRf2LOXVEzZs129G
i8kGuZGaqNTCpff8MShiPGjlur49fqzFAWYrBWjAH/PfkUwCcXNsMU69GI35uWk+
u73JFkvhCEbr3hzIsciuPH/As2LlMus6UTqUJBTq6FfddssHuZm+nsdu13JuklH0
4wIDAQAB
-----END PUBLIC KEY-----
""",
}
"""Public keys that are none for ECDSA, which cosign makes."""


def verify_attestation(
    release: str, image: str, keys: Path, *options: str, kind: str = intoto.TEST_RESULT, key: str = "cosign.pub"
) -> subprocess.CompletedProcess[str]:
    """What a reader types who knows the key alone."""
    command = [str(program(release)), "verify-attestation", "--insecure-ignore-tlog=true", "--type", kind]
    command += ["--key", str(keys / key), *options, image]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def rule(keys: Path, target: Registry, tmp_path: Path) -> str:
    """`--policy FILE`: the gpu tier passed within 30 days."""
    text = admission.policy(wanted(target, keys), Reader.COSIGN, datetime.now(UTC))
    (tmp_path / "rule.cue").write_text(text)
    return f"--policy={tmp_path / 'rule.cue'}"


def wanted(target: Registry, keys: Path) -> AdmissionRule:
    key = (keys / "cosign.pub").read_text()
    return AdmissionRule(repositories=[target.repository], key=key, tiers=[Tier.GPU], days=30)


def attested(target: Registry, keys: Path, content: str, *, days: float = 29) -> PublishedImage:
    """An image whose tiers were all judged some days ago, and signed."""
    image = published(target, content, date=days_ago(days))
    assert attest.attest(target, image, str(keys / "cosign.key"), CLAIMS) == ()
    return image


@pytest.mark.parametrize("signer", COSIGNS, indirect=True)
def test_cosign_accepts_each_predicate_and_the_policy(target: Registry, keys: Path, signer: str, rule: str) -> None:
    image = attested(target, keys, "one")
    for reader in COSIGNS:
        for kind in (intoto.TEST_RESULT, *SHORT):
            done = verify_attestation(reader, image.reference, keys, kind=kind)
            assert done.returncode == 0, (signer, reader, kind, done.stderr)
            assert json.loads(done.stdout)["payloadType"] == "application/vnd.in-toto+json"
        done = verify_attestation(reader, image.reference, keys, rule)
        assert done.returncode == 0, done.stderr


def test_five_of_five_are_refused(target: Registry, keys: Path, signer: str, rule: str) -> None:
    good, bare = attested(target, keys, "good"), published(target, "bare", date=days_ago(1))
    expired = attested(target, keys, "expired", days=31)
    public = signing.public_key(str(keys / "cosign.key"))

    def own(image: PublishedImage) -> store.Signed:
        there = store.read(target, image.manifest.digest, public.key_id)
        return next(one for one in there if one.predicate_type == intoto.TEST_RESULT)

    moved, changed = published(target, "moved", date=days_ago(1)), attested(target, keys, "changed")
    store.write(target, moved.manifest.descriptor, public.key_id, [own(good)])
    payload = own(changed).envelope.payload.replace(b"H100", b"H200")
    forged = replace(own(changed), envelope=replace(own(changed).envelope, payload=payload))
    store.write(target, changed.manifest.descriptor, public.key_id, [forged])
    for reader in COSIGNS:
        assert verify_attestation(reader, good.reference, keys, rule).returncode == 0
        for name, done in {
            "a changed byte": verify_attestation(reader, changed.reference, keys, rule),
            "another digest": verify_attestation(reader, moved.reference, keys, rule),
            "another key": verify_attestation(reader, good.reference, keys, rule, key="other.pub"),
            "an expired verdict": verify_attestation(reader, expired.reference, keys, rule),
            "a missing attestation": verify_attestation(reader, bare.reference, keys, rule),
        }.items():
            assert done.returncode != 0 and not done.stdout, (reader, name, done.stdout)
        assert verify_attestation(reader, expired.reference, keys).returncode == 0, "without the policy it is valid"


def test_the_rule_of_the_policy_controller_decides_alike(
    target: Registry, keys: Path, signer: str, rule: str, tmp_path: Path
) -> None:
    """Its Rego, under cosign's name for it, and CUE. Debian's cosign 2.5 is built without an evaluator of Rego."""
    rego = admission.rego_rule(wanted(target, keys), package="signature", name="allow")
    in_policy = admission.rego_rule(wanted(target, keys), package="sigstore", name="isCompliant")
    assert rego == in_policy.replace("sigstore", "signature").replace("isCompliant", "allow")
    (tmp_path / "rule.rego").write_text(rego)
    cpu_only = published(target, "cpu", date=days_ago(1), claims=(PIP,))
    attest.attest(target, cpu_only, str(keys / "cosign.key"), CLAIMS)
    images = {
        attested(target, keys, "lately").reference: 0,
        attested(target, keys, "expired", days=31).reference: 1,
        attested(target, keys, "tomorrow", days=-1).reference: 1,
        cpu_only.reference: 1,
    }
    for image, status in images.items():
        for policy in (rule, f"--policy={tmp_path / 'rule.rego'}"):
            done = verify_attestation("3.1", image, keys, policy)
            assert done.returncode == status, done.stderr


def test_a_newer_verdict_takes_the_place_of_the_older(target: Registry, keys: Path, signer: str, rule: str) -> None:
    """Also in a repository into which the image was promoted before."""
    image = attested(target, keys, "old", days=31)
    production = replace(target.repository, name=target.repository.name.replace("statements", "production"))
    with Registry(production, mount_from=[target.repository]) as promoted:
        copy(target, promoted, image.manifest)
        again = judge_again(target, "old", date=days_ago(2))
        attest.attest(target, again, str(keys / "cosign.key"), CLAIMS)
        copy(target, promoted, image.manifest)
        for place in (target, promoted):
            bundles = [one for one in place.referrers(image.manifest.digest) if one.artifact_type == BUNDLE]
            assert len(bundles) == len(intoto.NAMES)
            for reader in COSIGNS:
                done = verify_attestation(reader, f"{place.repository}@{image.manifest.digest}", keys, rule)
                assert done.returncode == 0, done.stderr


def test_what_is_signed_is_not_signed_again_and_others_stay(target: Registry, keys: Path, signer: str) -> None:
    image = attested(target, keys, "one")
    ours = target.get(store.tag(image.manifest.digest)).digest
    assert attest.attest(target, image, str(keys / "other.key"), CLAIMS) == ()
    both = target.get(store.tag(image.manifest.digest))
    assert len(both.layers) == 2 * len(intoto.NAMES) and both.digest != ours
    assert attest.attest(target, image, str(keys / "cosign.key"), CLAIMS) == ()
    after = target.get(store.tag(image.manifest.digest))
    assert sorted(one.digest for one in after.layers) == sorted(one.digest for one in both.layers)
    for key in ("cosign.pub", "other.pub"):
        assert verify_attestation(signer, image.reference, keys, key=key).returncode == 0


def test_verify_compares_the_statements_with_what_is_attached(target: Registry, keys: Path, signer: str) -> None:
    """A statement is signed by hand that says more than the evidence. cosign 2: test_publish.py."""
    image = attested(target, keys, "one")
    key = str(keys / "cosign.key")
    with pytest.raises(UserError, match="no signature"):
        signing.signed_attachments(image.reference, str(keys / "cosign.pub"))
    signing.sign(image.reference, key, [one.digest for one in image.attachments])

    def told() -> tuple[Status, str]:
        report = verify(Reference(target.repository, "one"), POLICY, key=str(keys / "cosign.pub"))
        return next((one.status, one.reason) for one in report.checks if one.subject == "statements")

    assert told() == (Status.PASS, ANY), told()
    public = signing.public_key(key)
    (true,) = [one for one in compose.statements(image, CLAIMS) if one.predicate_type == intoto.TEST_RESULT]
    said = json.loads(true.payload)
    said["predicate"]["truetagTiers"]["static"]["evidence"] = "sha256:" + "0" * 64
    lie = replace(true, payload=json.dumps(said).encode())
    store.write(target, image.manifest.descriptor, public.key_id, [attest.signed(lie, key, public, [])])
    status, reason = told()
    assert status is Status.FAIL and "the static tier stands on evidence that is not attached" in reason
    bare = published(target, "bare", date=days_ago(1))
    assert len(list(attest.faults(bare, str(keys / "cosign.pub")))) == len(intoto.NAMES)


def test_attest_signs_an_image_that_was_published_before(
    target: Registry, keys: Path, signer: str, tmp_path: Path
) -> None:
    """By the claims that the matrix makes today: an attestation of two claims passes no tier."""
    image = plan.plan_one(ImageName.parse(NAME), SOURCES).image
    assert image is not None
    known = published(target, "known", date=days_ago(1), revision=image.revision)
    assert verify_attestation("3.1", known.reference, keys).returncode != 0
    done = call("attest", known.reference, "--out", str(tmp_path / "statements"))
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert {(kind, reference) for _, kind, reference in rows} == {(kind, known.reference) for kind in intoto.NAMES}
    said = json.loads((tmp_path / "statements" / "test-result.json").read_bytes())
    assert said["result"] == "FAILED" and said["truetagTiers"]["static"]["result"] == "UNPROVEN"
    assert call("attest", known.reference, "--key", str(keys / "cosign.key")).returncode == 0
    assert verify_attestation("3.1", known.reference, keys).returncode == 0
    unknown = published(target, "unknown", date=days_ago(1))
    done = call("attest", unknown.reference, "--key", str(keys / "cosign.key"))
    assert done.returncode == 1 and "matrix.yaml does not know this image" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize("signer", COSIGNS, indirect=True)
def test_a_failure_of_cosign_is_not_taken_for_a_missing_signature(
    keys: Path, signer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, other = (signing.public_key(str(keys / f"{name}.key")) for name in ("cosign", "other"))
    signature = signing.sign_bytes(b"said", str(keys / "cosign.key"))
    assert signing.is_signature(signature, b"said", key)
    assert not signing.is_signature(signature, b"not said", key)
    assert not signing.is_signature("bm8gc2lnbmF0dXJl", b"said", key)
    for wrong in (other, *(replace(key, pem=pem) for pem in OTHER_KINDS.values())):
        assert not signing.is_signature(signature, b"said", wrong)
    with pytest.raises(signing.CosignError, match="public key"):
        signing.is_signature(signature, b"said", replace(key, pem="damaged"))
    with pytest.raises(signing.CosignError, match=r"cosign verify: .*connection refused"):
        signing.sign(f"127.0.0.1:9/some/image@sha256:{'0' * 64}", str(keys / "cosign.key"), [])
    monkeypatch.setenv("PATH", str(keys))
    with pytest.raises(signing.CosignError, match="can't be run"):
        signing.is_signature(signature, b"said", key)
