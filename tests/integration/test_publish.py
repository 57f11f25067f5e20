"""Publishing to Debian's registry: pushed by one engine, pulled by others, signed, promoted.

The registry asks for a login.
"""

import base64
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from packaging.version import Version

from images.building import validating
from images.commands import publish
from images.config.names import ImageName
from images.config.platforms import Platform
from images.context.labels import BaseContext
from images.engine import Engine, EngineError, classic_store, connect, exported, private_engine
from images.engine.stored_layer import UnreadableLayersError
from images.fleet import worker
from images.host.hashing import oci_digest
from images.planning import expectations
from images.publish import attachments, sbom
from images.publish import publish as release
from images.publish.gate import ReleasePolicy
from images.publish.publish import PublishOptions
from images.publish.release import PublishResult, promote
from images.publish.statements import CYCLONEDX, NAMES, TEST_RESULT
from images.publish.verify import Check, verify
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from tests.support import debian_tools
from tests.support import thin as thin_images
from tests.support.checkout import ROOT
from tests.support.commands import call
from tests.support.cosign_keys import cosign_verifies, key_pairs
from tests.support.other_engine import Other
from tests.support.small_base import python_base
from tests.support.thin import EINOPS, EINOPS_CLAIM, Thin
from validate.claims import Claim, ClaimSet, Tier
from validate.judging import Status

pytestmark = pytest.mark.engine
NAME = "cu126-torch27"
USER, PASSWORD = "somebody", os.urandom(8).hex()
SETTINGS = {"TRUETAG_TEST": "1"}
EXPECT = {
    "required": SETTINGS,
    "denied": expectations.DENIED_VARIABLES,
    "start_files": expectations.START_FILES,
}
ENVIRONMENT = Claim(
    check="environment",
    subject="variables",
    tier=Tier.STATIC,
    probe="static.environment",
    statement="-",
    expect=EXPECT,
)
CLAIMS = ClaimSet(image=NAME, claims=(EINOPS_CLAIM, ENVIRONMENT))


# --- a registry -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's docker-registry on loopback, with a login: `HOST:PORT`."""
    folder = tmp_path_factory.mktemp("registry")
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (folder / "htpasswd").write_text(f"{USER}:{hashed}\n")
    login = {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}
    with debian_tools.registry(folder / "here", login) as host:
        yield host


@pytest.fixture
def login(registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `docker login` leaves it."""
    pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    config = {"auths": {registry: {"auth": pair}}}
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


@pytest.fixture
def publisher(login: None) -> Iterator[Engine]:
    """The engine, by a connection that knows the login."""
    with private_engine.open_engine(None, on_progress=lambda _text: None) as found:
        yield found


# --- thin images, really validated ----------------------------------------------------------


@pytest.fixture(scope="module")
def with_python(engine: Engine, base: BaseContext) -> Iterator[str]:
    with python_base(engine, base) as found:
        yield found


@pytest.fixture(scope="module")
def make(
    engine: Engine, base: BaseContext, with_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Thin]]:
    """Builds an image with a Python and one distribution, and validates its claims."""
    made: list[str] = []

    def one(**settings: str) -> Thin:
        labels = {
            "image": NAME,
            "torch": "2.7.1",
            "pins": '{"einops":"0.8.2"}',
            "matrix-revision": "0123456789ab",
        }
        labels |= {"base-digest": base.digest, "serial": str(len(made))}
        dockerfile = "\n".join(
            (
                f"FROM {with_python}",
                "COPY site /usr/local/lib/python3.11/dist-packages",
                *(f"ENV {key}={value}" for key, value in {**SETTINGS, **settings}.items()),
                *(f"LABEL dev.truetag.{key}={json.dumps(value)}" for key, value in labels.items()),
                "USER 1001",
            )
        )
        # An image is as old as its newest layer. Without a file of its own, each would be as old as
        # the first.
        files = {f"site/{path}": content for path, content in EINOPS.items()} | {
            "site/serial": str(len(made)).encode()
        }
        tag = f"truetag-test-publish:{len(made)}"
        made.append(tag)
        engine.build({"Dockerfile": dockerfile.encode(), **files}, tag)
        made_from = {"reference": base.reference, "origin": str(base.origin), "digest": base.digest}
        folder = tmp_path_factory.mktemp("attestation")
        return thin_images.validated(engine, tag, folder, CLAIMS, (Tier.STATIC,), made_from)

    yield one
    for tag in made:
        engine.remove(tag, force=True)


@pytest.fixture(scope="module")
def first(make: Callable[..., Thin]) -> Thin:
    return make()


@pytest.fixture
def options(registry: str, place: str, cache: Path) -> PublishOptions:
    return PublishOptions(
        repository=Repository(registry, f"staging/{place}"),
        policy=policy(aliases=("latest", "cu126")),
        cache=cache,
    )


def policy(
    gate: Sequence[Tier] = (Tier.STATIC,),
    alias_gate: Sequence[Tier] = (Tier.STATIC,),
    aliases: Sequence[str] = (),
    claims: ClaimSet = CLAIMS,
) -> ReleasePolicy:
    return ReleasePolicy(
        gate=gate,
        alias_gate=alias_gate,
        aliases_of=lambda _name: aliases,
        claims_of=lambda _labels, _run: claims,
    )


def checked(
    reference: Reference, by: ReleasePolicy | None = None, **more: Any
) -> tuple[str, list[Check]]:
    """What `verify` says of an image."""
    return verify(reference, by or policy(aliases=("latest", "cu126")), **more)


def passes(reference: Reference, by: ReleasePolicy | None = None, **more: Any) -> None:
    """Assert that `verify` accepts an image."""
    _, found = checked(reference, by, **more)
    assert {check.status for check in found} == {Status.PASS}, found


def publish_it(engine: Engine, thin: Thin, options: PublishOptions) -> PublishResult:
    image = release.read_local_image(engine, thin.info.digest, ImageName.parse(NAME), thin.folder)
    return release.publish(engine, image, options)


def names(repository: Repository) -> dict[str, str]:
    """Every moving tag of a repository, and what it names."""
    with Registry(repository) as found:
        return {
            tag: found.get(tag).digest for tag in found.tags() if tag in (NAME, "latest", "cu126")
        }


# --- publish --------------------------------------------------------------------------------


def test_a_validated_image_is_published_with_all_that_belongs_to_it(
    publisher: Engine, first: Thin, options: PublishOptions
) -> None:
    done = publish_it(publisher, first, options)
    digest = done.images[0].reference.partition("@")[2]
    fixed = done.tags[0]
    assert re.fullmatch(rf"{NAME}-\d{{8}}-{first.info.digest[7:19]}", fixed)
    assert done.tags == (fixed, NAME, "latest", "cu126") and not done.unmoved_tags
    assert names(options.repository) == dict.fromkeys((NAME, "latest", "cu126"), digest)
    with Registry(options.repository) as source:
        remote = attachments.load(source, source.get(NAME))
    assert remote.image_id == first.info.digest
    assert sorted(one.predicate_type for one in remote.statements) == sorted(NAMES)
    (found,) = remote.statements_of(CYCLONEDX)
    assert sbom.read_versions(found.predicate)["einops"] == "0.8.2"
    assert remote.statements_of(TEST_RESULT)[0].evidence == [
        (first.folder / "evidence.json").read_bytes()
    ]
    assert not [
        tag for tag in publisher.inspect(first.info.digest).tags if tag.startswith("127.0.0.1")
    ]
    debian = [
        row
        for row in found.predicate["components"]
        if row["purl"].startswith("pkg:deb/debian/libc6@")
    ]
    assert len(debian) == 1 and "distro=debian-12" in debian[0]["purl"]
    reference = Reference(options.repository, NAME)
    _, verified = checked(reference, unsigned=True)
    assert {check.subject: check.status for check in verified} == dict.fromkeys(
        ("attachments", "attestation", "SBOM", "provenance", "gate static", "tag"), Status.PASS
    ), verified
    _, verified = checked(reference, policy(gate=(Tier.STATIC, Tier.GPU)))
    states = {check.subject: check.status for check in verified}
    assert (states["signature"], states["gate static,gpu"]) == (Status.UNPROVEN, Status.FAIL)


def test_what_a_fleet_pushed_by_digest_is_published_from_there(
    publisher: Engine, make: Callable[..., Thin], options: PublishOptions, tmp_path: Path
) -> None:
    """By a machine that has neither the image nor a record of its layers.

    The layers are pulled, and none is sent.
    """
    thin = make()
    sent = worker.push_by_digest(publisher, thin.info, str(options.repository))
    for tag in publisher.inspect(thin.info.digest).tags:
        publisher.remove(tag, force=True)
    assert publisher.find(sent) is None
    publish.pull_if_missing(publisher, sent, Platform.AMD64)
    elsewhere = replace(options, cache=tmp_path / "another machine")
    try:
        if skips_layers(publisher):
            with pytest.raises(EngineError, match=r"did not fetch all layers.*Docker 29\.9"):
                publish_it(publisher, thin, elsewhere)
            return
        done = publish_it(publisher, thin, elsewhere)
    finally:
        publisher.remove(sent, force=True)
    with Registry(options.repository) as target:
        ours, theirs = (
            target.get(name.partition("@")[2]) for name in (done.images[0].reference, sent)
        )
    assert (ours.config, ours.layers) == (theirs.config, theirs.layers), "but for the date"
    assert set(names(options.repository)) == {NAME, "latest", "cu126"}
    passes(Reference(options.repository, NAME), unsigned=True)


def skips_layers(engine: Engine) -> bool:
    """Return whether an engine does not fetch a layer that it has unpacked from another image.

    (github.com/moby/moby/issues/49784)
    """
    return engine.facts.containerd_images and Version(engine.facts.version) < Version("29.9")


def test_the_image_of_an_own_matrix_is_looked_for_by_its_prefix(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "matrix.yaml").write_text('prefix: "mine-"\n' + (ROOT / "matrix.yaml").read_text())
    (tmp_path / "locks").symlink_to(ROOT / "locks")
    own = ("--matrix", str(tmp_path / "matrix.yaml"), "--engine", engine.facts.url)
    done = call("publish", "cu126-torch25", "--to", "registry.invalid/x", *own)
    assert "error mine-cu126-torch25: the engine has no such image" in done.stderr


def test_an_export_gives_the_same_layers_as_the_engines_store(
    publisher: Engine,
    first: Thin,
    options: PublishOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine on another machine gives exports only."""
    assert publisher.facts.local
    stored = publish_it(publisher, first, options)
    monkeypatch.setattr(publisher, "facts", replace(publisher.facts, local=False))
    elsewhere = Repository(options.repository.host, f"{options.repository.name}-exported")
    exported = publish_it(
        publisher, first, replace(options, repository=elsewhere, cache=tmp_path / "other")
    )
    assert (
        exported.images[0].reference.partition("@")[2]
        == stored.images[0].reference.partition("@")[2]
    )


def test_a_layer_comes_out_of_the_store_as_its_very_tar(
    publisher: Engine, base: BaseContext
) -> None:
    """Also with names that are no UTF-8.

    If one layer of an image can't be read in the store, none of its layers is read there.
    """
    tag = "truetag-test-publish:names"
    step = (
        "RUN mkdir /d && head -c 3000 /dev/zero >/d/zeros"
        " && echo latin >\"/d/$(printf 'caf\\351')\" && : >/d/empty"
    )
    publisher.build(
        {"Dockerfile": f"FROM {base.reference}\n{step}\n".encode()}, tag, network="none"
    )
    try:
        info, root = publisher.inspect(tag), Path(publisher.facts.data_root)
        _, layer = exported.parts(publisher, info, info.layers[-1:])
        assert oci_digest(b"".join(layer.chunks)) == layer.digest == info.layers[-1]
        if not publisher.facts.containerd_images:
            with pytest.raises(UnreadableLayersError):
                classic_store.find_layers(root, [*info.layers, layer.digest])
    finally:
        publisher.remove(tag, force=True)


# --- signatures, and other people's clients -------------------------------------------------


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """cosign on the PATH: Debian's own, where the machine has none."""
    if not shutil.which("cosign"):
        monkeypatch.setenv(
            "PATH", f"{debian_tools.unpacked('cosign', 'oras')}/usr/bin", prepend=os.pathsep
        )


@pytest.fixture
def keys(clients: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return key_pairs(tmp_path, monkeypatch)


def test_a_whole_round_into_an_empty_engine_and_on_to_production(
    publisher: Engine, make: Callable[..., Thin], options: PublishOptions, keys: Path, trixie: Other
) -> None:
    """An image is built, validated, pushed and signed, then pulled by its tags and promoted.

    The engine that pulls and validates it is another one (26.1).
    """
    thin = make()
    staged = publish_it(publisher, thin, replace(options, key=str(keys / "cosign.key")))
    assert staged.signed and cosign_verifies(staged.images[0].reference, keys / "cosign.pub")
    host, _, port = options.repository.host.partition(":")
    assert host == "127.0.0.1"
    with trixie.lend(int(port)), connect(trixie.url) as other:
        assert other.find(thin.info.digest) is None
        pulled = other.pull(f"{options.repository}:{NAME}")
        try:
            assert (
                pulled.digest == thin.info.digest and other.facts.version != publisher.facts.version
            )
            _, verdict = validating.measure_and_judge(other, pulled.handle, CLAIMS, (Tier.STATIC,))
            assert (verdict.overall, verdict.digest) == (Status.PASS, thin.info.digest)
        finally:
            other.remove(f"{options.repository}:{NAME}", force=True)
    key = str(keys / "cosign.pub")
    passes(Reference(options.repository, NAME), key=key)
    production = thin_images.production(options.repository)
    done = promote(
        Reference(options.repository, NAME), production, policy(aliases=("latest",)), key=key
    )
    assert (
        done.images[0].reference.partition("@")[2] == staged.images[0].reference.partition("@")[2]
    )
    passes(Reference(production, "latest"), key=key)
