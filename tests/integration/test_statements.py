"""Signed statements in Debian's registry: two releases of cosign accept or refuse them."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from images.publish import attachments, signing
from images.publish.attachments import attached_tag
from images.publish.gate import ReleasePolicy
from images.publish.release import copy_image
from images.publish.statements import CYCLONEDX, NAMES, PROVENANCE, TEST_RESULT
from images.publish.verify import verify
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from tests.support.checkout import ROOT
from tests.support.debian_tools import unpacked
from tests.support.published import CLAIMS, attach, days_ago, judge_again, published
from validate.claims import Tier
from validate.judging import Status

COSIGNS = {"2.5": "trixie", "3.1": "forky"}
"""Release -> the Debian suite that has it."""
SHORT = {"slsaprovenance1": PROVENANCE, "cyclonedx": CYCLONEDX}
"""What cosign calls a type, where it has a word for it."""
POLICY = ReleasePolicy(
    gate=[Tier.STATIC],
    alias_gate=[Tier.STATIC],
    aliases_of=lambda _name: (),
    claims_of=lambda _labels, _run: CLAIMS,
)
RULE = """\
predicateType: "https://in-toto.io/attestation/test-result/v0.1"
predicate!: truetagTiers!: gpu!: result!: "PASSED"
"""
"""A policy for `--policy`: the gpu tier passed."""
OTHER_KINDS = sorted((ROOT / "tests" / "support" / "other_keys").iterdir())
"""Public keys that are none for ECDSA, which cosign makes."""


@pytest.fixture
def target(registry: str, place: str) -> Iterator[Registry]:
    with Registry(Repository(registry, f"statements/{place}")) as found:
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
    (folder / "rule.cue").write_text(RULE)
    return folder


def program(release: str) -> Path:
    return unpacked("cosign", "oras", suite=COSIGNS[release]) / "usr" / "bin" / "cosign"


def cosign(release: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a reader types."""
    return subprocess.run(
        [str(program(release)), *arguments], capture_output=True, text=True, check=False
    )


def verify_attestation(
    release: str,
    image: str,
    keys: Path,
    *options: str,
    kind: str = TEST_RESULT,
    key: str = "cosign.pub",
) -> subprocess.CompletedProcess[str]:
    """By who knows the key alone."""
    known = ("--insecure-ignore-tlog=true", "--type", kind, "--key", str(keys / key))
    return cosign(release, "verify-attestation", *known, *options, image)


@pytest.mark.parametrize("signer", COSIGNS, indirect=True)
def test_cosign_accepts_the_image_each_predicate_and_a_policy(
    target: Registry, keys: Path, signer: str
) -> None:
    key = str(keys / "cosign.key")
    image = published(target, "one", date=days_ago(1), key=key)
    for _ in range(2):
        attachments.sign_image(target, image.manifest.digest, key, str(keys / "cosign.pub"))
    assert len(target.get(attachments.attached_tag(image.manifest.digest, "sig")).layers) == 1, (
        "signed twice"
    )
    for reader in COSIGNS:
        known = ("--insecure-ignore-tlog=true", "--key", str(keys / "cosign.pub"))
        assert cosign(reader, "verify", *known, image.reference).returncode == 0
        for kind in (TEST_RESULT, *SHORT):
            done = verify_attestation(reader, image.reference, keys, kind=kind)
            assert done.returncode == 0, (signer, reader, kind, done.stderr)
            assert json.loads(done.stdout)["payloadType"] == "application/vnd.in-toto+json"
        done = verify_attestation(reader, image.reference, keys, f"--policy={keys / 'rule.cue'}")
        assert done.returncode == 0, done.stderr


def test_what_cosign_fetches_is_input_of_scanners_and_of_validate(
    target: Registry, keys: Path, signer: str
) -> None:
    """The documentation has the commands: for Grype and Trivy, and for `validate --evidence`."""
    image = published(target, "one", date=days_ago(1), key=str(keys / "cosign.key"))
    done = verify_attestation("2.5", image.reference, keys, kind="cyclonedx")
    bom = json.loads(base64.b64decode(json.loads(done.stdout)["payload"]))["predicate"]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bom)) is None
    assert {"pkg:pypi/pip@26.3"} < {row["purl"] for row in bom["components"]}
    script = (
        "jq -r .payload | base64 -d | jq -r '.predicate.configuration[0].content'"
        " | base64 -d | xz -d > evidence.json"
    )
    said = verify_attestation("2.5", image.reference, keys).stdout
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], input=said, text=True, cwd=keys, check=True
    )
    assert (keys / "evidence.json").read_bytes() == image.attestations[0].evidence_file


def test_five_of_five_are_refused(target: Registry, keys: Path, signer: str) -> None:
    key = str(keys / "cosign.key")
    good, changed = (
        published(target, name, date=days_ago(1), key=key) for name in ("good", "changed")
    )
    bare, moved = (published(target, name, date=days_ago(1)) for name in ("bare", "moved"))
    expected = verify_attestation("3.1", good.reference, keys, f"--policy={keys / 'rule.cue'}")
    assert expected.returncode == 0, expected.stderr
    (own,) = changed.statements_of(TEST_RESULT)
    forged = replace(own, payload=own.payload.replace(b"H100", b"H200"))
    for image, wrong, old in (
        (moved, good.statements_of(TEST_RESULT)[0], None),
        (changed, forged, own),
    ):
        target.put_blob(wrong.envelope)
        layers = [attachments.statement_layer(one) for one in (wrong, old) if one]
        attachments.update_layers(
            target, attached_tag(image.manifest.digest, "att"), layers[:1], layers[1:]
        )
    cpu_only = published(target, "cpu", date=days_ago(1), claims=CLAIMS.claims[:1], key=key)
    for reader in COSIGNS:
        rule = f"--policy={keys / 'rule.cue'}"
        for name, done in {
            "a changed byte": verify_attestation(reader, changed.reference, keys),
            "another digest": verify_attestation(reader, moved.reference, keys),
            "another key": verify_attestation(reader, good.reference, keys, key="other.pub"),
            "a tier that was not judged": verify_attestation(
                reader, cpu_only.reference, keys, rule
            ),
            "a statement that nobody signed": verify_attestation(reader, bare.reference, keys),
        }.items():
            assert done.returncode != 0 and not done.stdout, (reader, name, done.stdout)
    for image in (changed, moved, bare):
        reference = Reference(target.repository, image.manifest.digest)
        _, (signed, *_) = verify(reference, POLICY, key=str(keys / "cosign.pub"))
        assert signed.status is Status.FAIL and "the key signed no test result" in signed.reason


def test_a_newer_verdict_takes_the_place_of_the_older(
    target: Registry, keys: Path, signer: str
) -> None:
    """Also in a repository into which the image was promoted before.

    cosign wants every statement of a type to fit.
    """
    key, public = str(keys / "cosign.key"), str(keys / "cosign.pub")
    image = published(target, "old", date=days_ago(31), claims=CLAIMS.claims[:1], key=key)
    production = replace(
        target.repository, name=target.repository.name.replace("statements", "production")
    )
    with Registry(production, mount_from=[target.repository]) as promoted:
        copy_image(target, promoted, image.manifest, public)
        judge_again(target, "old", date=days_ago(2), key=key)
        copy_image(target, promoted, image.manifest, public)
        for place in (target, promoted):
            assert len(place.get(attached_tag(image.manifest.digest, "att")).layers) == len(NAMES)
            for reader in COSIGNS:
                reference = f"{place.repository}@{image.manifest.digest}"
                done = verify_attestation(reader, reference, keys, f"--policy={keys / 'rule.cue'}")
                assert done.returncode == 0, done.stderr


def test_what_other_keys_signed_stays(target: Registry, keys: Path, signer: str) -> None:
    image = published(target, "one", date=days_ago(1), key=str(keys / "cosign.key"))
    ours = target.get(attached_tag(image.manifest.digest, "att")).layers
    for kind in NAMES:
        attach(target, "one", kind, image.statements_of(kind)[0].predicate, str(keys / "other.key"))
    both = target.get(attached_tag(image.manifest.digest, "att")).layers
    assert both[: len(ours)] == ours and len(both) == 2 * len(NAMES)
    for key in ("cosign.pub", "other.pub"):
        assert verify_attestation(signer, image.reference, keys, key=key).returncode == 0


@pytest.mark.parametrize("signer", COSIGNS, indirect=True)
def test_a_failure_of_cosign_is_not_taken_for_a_missing_signature(
    keys: Path, signer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = str(keys / "cosign.pub")
    signature = signing.sign_bytes(b"said", str(keys / "cosign.key"))
    assert signing.is_signature(signature, b"said", public)
    for wrong in ("bm8gc2lnbmF0dXJl", "no base64", ""):
        assert not signing.is_signature(wrong, b"said", public)
    assert not signing.is_signature(signature, b"not said", public)
    for other in (keys / "other.pub", *OTHER_KINDS):
        assert not signing.is_signature(signature, b"said", str(other))
    (tmp_path / "damaged").write_text("damaged")
    with pytest.raises(signing.CosignError, match="public key"):
        signing.is_signature(signature, b"said", str(tmp_path / "damaged"))
    monkeypatch.setenv("PATH", str(keys))
    with pytest.raises(signing.CosignError, match="can't be run"):
        signing.is_signature(signature, b"said", public)
