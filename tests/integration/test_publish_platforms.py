"""Images of two platforms under one tag, in a real registry.

Two engines pull them, and one digest promotes both.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from images.config.names import ImageName
from images.config.platforms import Platform
from images.engine import Engine, connect
from images.errors import UserError
from images.publish import attachments, signing, tags
from images.publish import publish as release
from images.publish.gate import ReleasePolicy
from images.publish.publish import PublishOptions
from images.publish.release import PublishResult, promote
from images.publish.statements import NAMES
from images.publish.verify import Check, verify
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from tests.support import thin
from tests.support.cosign_keys import cosign_verifies, key_pairs
from tests.support.debian_tools import unpacked
from tests.support.other_engine import Other
from tests.support.published import days_ago, published
from tests.support.thin import EINOPS, EINOPS_CLAIM, Thin
from validate.claims import Claim, ClaimSet, Tier
from validate.judging import Status

pytestmark = pytest.mark.engine
ROW = ("cu130-torch211", "cu130-torch211-arm64")
AMD64, ARM64 = ROW
PACKAGES = (
    *(
        "libbz2-1.0",
        "libc6",
        "libexpat1",
        "liblzma5",
        "libpython3.11-minimal",
        "libpython3.11-stdlib",
    ),
    *("libssl3", "python3-minimal", "python3.11-minimal", "zlib1g"),
)
SITE = "usr/local/lib/python3.11/dist-packages"
MODULES = {"torch.py": b"", **EINOPS}


def claims(name: str) -> ClaimSet:
    """Claim that einops is installed, by its files, and that the image's own Python imports it."""
    platform = ImageName.parse(name).platform
    machine = {} if platform is Platform.AMD64 else {"machine": platform.machine}
    installed = replace(EINOPS_CLAIM, expect={**EINOPS_CLAIM.expect, **machine})
    expect = {"modules": ["einops"], "first": True, "after": True, "complaints": [], "harmless": {}}
    imports = Claim(
        check="imports",
        subject="einops",
        tier=Tier.CPU,
        probe="cpu.imports",
        statement="-",
        expect=expect,
    )
    return ClaimSet(image=name, claims=(installed, imports))


def policy(*gate: Tier, aliases: tuple[str, ...] = ()) -> ReleasePolicy:
    return ReleasePolicy(
        gate=gate or (Tier.STATIC,),
        alias_gate=gate or (Tier.STATIC,),
        aliases_of=lambda name: aliases if name == AMD64 else (),
        claims_of=lambda labels, _run: claims(labels["dev.truetag.image"]),
        row_of=lambda name: ROW if name in ROW else (name,),
    )


@pytest.fixture(scope="module")
def pair(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Thin]]:
    """Yield an image for each platform: Debian's Python with one package, really validated.

    Of arm64, only the files are.
    """
    images = {}
    for name in ROW:
        platform = ImageName.parse(name).platform
        tag = f"truetag-test-platforms:{platform.architecture}"
        engine.build(_context(name, platform), tag, platform=platform)
        base = {"reference": "debian", "origin": "made", "digest": ""}
        folder = tmp_path_factory.mktemp("attestation")
        tiers = (Tier.STATIC, Tier.CPU)
        images[name] = thin.validated(engine, tag, folder, claims(name), tiers, base)
        status = Status.PASS if platform is Platform.AMD64 else Status.UNPROVEN
        assert thin.verdict_of(images[name]) is status, (folder / "verdict.json").read_text()
    yield images
    for name in ROW:
        architecture = ImageName.parse(name).platform.architecture
        engine.remove(f"truetag-test-platforms:{architecture}", force=True)


def _context(name: str, platform: Platform) -> dict[str, bytes]:
    """Return the build context of an image: Debian's Python with one package."""
    root = unpacked(*PACKAGES, suite="bookworm", architecture=platform.architecture)
    left_out = ("./dev/", "./usr/share/", f"./usr/lib/{platform.machine}-linux-gnu/gconv/")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(root, ".", filter=lambda file: None if file.name.startswith(left_out) else file)
    labels = {
        "image": name,
        "torch": "2.11.0",
        "pins": '{"einops":"0.8.2"}',
        "matrix-revision": "0123456789ab",
    }
    # No step runs a program of arm64: this machine is an x86-64 one.
    compiled = f'RUN ["python3", "-B", "-m", "compileall", "-q", "/{SITE}"]'
    lines = (
        *("FROM scratch", "ADD root.tar /", f"COPY site /{SITE}", 'ENV PATH="/usr/bin:/bin"'),
        *([compiled] if platform is Platform.AMD64 else []),
        "USER 1001",
    )
    label_lines = [f"LABEL dev.truetag.{key}={json.dumps(value)}" for key, value in labels.items()]
    files = {f"site/{path}": content for path, content in MODULES.items()}
    return {
        "Dockerfile": "\n".join((*lines, *label_lines)).encode(),
        "root.tar": packed.getvalue(),
        **files,
    }


@pytest.fixture
def repository(registry: str, place: str) -> Repository:
    return Repository(registry, f"staging/{place}")


def publish(
    engine: Engine, pair: Mapping[str, Thin], options: PublishOptions, name: str
) -> PublishResult:
    local = release.read_local_image(
        engine, pair[name].info.digest, ImageName.parse(name), pair[name].folder
    )
    return release.publish(engine, local, options, say=print)


@pytest.fixture
def options(repository: Repository, cache: Path) -> PublishOptions:
    return PublishOptions(repository=repository, policy=policy(aliases=("latest",)), cache=cache)


def named(repository: Repository, *tags: str) -> list[str | None]:
    """Return the digests that tags name; None for a tag that is not there."""
    digests = []
    with Registry(repository) as registry:
        for tag in tags:
            manifest = registry.find(tag)
            digests.append(manifest.digest if manifest else None)
    return digests


def passed(checks: list[Check]) -> bool:
    """Return whether all checks of `verify` passed."""
    return all(check.status is Status.PASS for check in checks)


def test_both_platforms_go_under_one_tag_and_each_machine_gets_its_own(
    engine: Engine, pair: Mapping[str, Thin], options: PublishOptions, trixie: Other
) -> None:
    first = publish(engine, pair, options, AMD64)
    second = publish(engine, pair, options, ARM64)
    reference = second.indexes[AMD64]
    index_digest = reference.partition("@")[2]

    assert named(options.repository, AMD64, "latest") == [index_digest, index_digest]
    assert [image.name for image in second.images] == [ARM64]
    assert not second.left_out
    with Registry(options.repository) as source:
        images = attachments.load_all(source, source.get(AMD64))
        assert named(options.repository, ARM64) == [images[1].manifest.digest]
    assert [(image.platform, image.image_id) for image in images] == [
        (str(ImageName.parse(name).platform), pair[name].info.digest) for name in ROW
    ]
    for image in images:
        types = [statement.predicate_type for statement in image.statements]
        assert sorted(types) == sorted(NAMES)

    digest, checks = verify(Reference(options.repository, AMD64), policy(), unsigned=True)
    assert digest == reference and passed(checks)
    gates = [check.subject for check in checks if "gate" in check.subject]
    assert gates == ["linux/amd64 gate static", "linux/arm64 gate static"]

    tag = f"{options.repository}:{AMD64}"
    with trixie.lend(int(options.repository.host.rpartition(":")[2])), connect(trixie.url) as other:
        for puller, name in ((engine, AMD64), (other, ARM64)):
            platform = ImageName.parse(name).platform
            pulled = puller.pull(tag, platform=platform)
            puller.untag(tag)
            assert pulled.digest == pair[name].info.digest
            assert pulled.architecture == platform.architecture

    production = thin.production(options.repository)
    promoted = promote(Reference(options.repository, index_digest), production, options.policy)
    digests = named(production, AMD64, "latest", ARM64)
    assert digests == [index_digest, index_digest, images[1].manifest.digest]
    dated = {tag for tag in first.tags if tag.endswith(pair[AMD64].info.digest[7:19])}
    assert set(promoted.tags) == {*second.tags, *dated}
    assert passed(verify(Reference(production, "latest"), options.policy, unsigned=True)[1])


def test_what_another_processor_could_not_run_opens_no_index_that_asks_for_the_cpu_tier(
    engine: Engine, pair: Mapping[str, Thin], options: PublishOptions
) -> None:
    """The cpu tier of the image for arm64 is UNPROVEN: its programs do not run here."""
    strict = replace(options, policy=policy(Tier.STATIC, Tier.CPU))
    refusal = r"imports/einops \(cpu\) is UNPROVEN: programs for arm64 do not run"

    with pytest.raises(UserError, match=refusal):
        publish(engine, pair, strict, ARM64)
    assert named(options.repository, *ROW) == [None, None]

    publish(engine, pair, options, ARM64)
    (reason,) = publish(engine, pair, strict, AMD64).left_out
    lacking = f"{AMD64} lacks linux/arm64: imports/einops (cpu) is UNPROVEN: programs for arm64"
    assert reason.startswith(lacking)
    with pytest.raises(UserError, match="no matching manifest for linux/arm64"):
        engine.pull(f"{options.repository}:{AMD64}", platform=Platform.ARM64)


def test_an_image_joins_only_what_the_same_key_signed(
    engine: Engine,
    pair: Mapping[str, Thin],
    options: PublishOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", f"{unpacked('cosign', 'oras')}/usr/bin", prepend=os.pathsep)
    key_pairs(tmp_path, monkeypatch)
    our_key = replace(options, key=str(tmp_path / "cosign.key"))
    other_key = replace(options, key=str(tmp_path / "other.key"))

    publish(engine, pair, other_key, ARM64)
    (reason,) = publish(engine, pair, our_key, AMD64).left_out
    assert reason.startswith(
        f"{AMD64} lacks linux/arm64: nothing that is attached to this image is signed"
    )

    second = publish(engine, pair, our_key, ARM64)
    key, reference = str(tmp_path / "cosign.pub"), Reference(options.repository, AMD64)
    assert not second.left_out
    assert cosign_verifies(second.indexes[AMD64], key), "the index is signed"
    _, checks = verify(reference, policy(), key=key)
    assert passed(checks), checks
    signatures = [check.subject for check in checks if "signature" in check.subject]
    assert signatures == ["linux/amd64 signature", "linux/arm64 signature"]
    assert not passed(verify(reference, policy(), key=str(tmp_path / "other.pub"))[1])
    production = thin.production(options.repository)
    moved = promote(reference, production, options.policy, key=key)
    assert cosign_verifies(moved.indexes[AMD64], key)
    assert passed(verify(Reference(production, AMD64), policy(), key=key)[1])


@pytest.fixture
def staging(repository: Repository) -> Iterator[Registry]:
    with Registry(repository) as registry:
        yield registry


def rules() -> ReleasePolicy:
    return replace(policy(aliases=("latest",)), claims_of=lambda _labels, run: run.claim_set)


@pytest.fixture
def keys(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two pairs of keys, and put cosign 3.1 on the PATH.

    A test may ask for the cosign of another suite of Debian.
    """
    programs = unpacked("cosign", "oras", suite=str(getattr(request, "param", "forky")))
    monkeypatch.setenv("PATH", f"{programs}/usr/bin", prepend=os.pathsep)
    return key_pairs(tmp_path, monkeypatch)


def test_an_index_that_cosign_3_signed_is_promoted_with_its_signature(
    staging: Registry, keys: Path
) -> None:
    key, public = str(keys / "cosign.key"), str(keys / "cosign.pub")
    index = attachments.make_index(
        [published(staging, name, date=days_ago(1), name=name, key=key) for name in ROW]
    )
    staging.put(index)
    days = []
    for manifest, name in zip(index.manifests, ROW, strict=True):
        image = attachments.load(staging, staging.get(manifest.digest))
        day = tags.version_of(image).created
        days.append(day)
        names = [tags.immutable_tag(name, day, image.image_id)]
        if name != AMD64:
            names.append(name)
        attachments.sign_image(staging, image.manifest.digest, key, public, names)
    dated = tags.immutable_tag(AMD64, max(days), index.digest)
    attachments.sign_image(staging, index.digest, key, public, [AMD64, dated, "latest"])
    source = Reference(staging.repository, index.digest)
    production = thin.production(staging.repository)

    promote(source, production, rules(), key=public)

    assert named(production, AMD64, "latest") == [index.digest, index.digest]
    assert cosign_verifies(f"{production}@{index.digest}", public)
    assert passed(verify(Reference(production, "latest"), rules(), key=public)[1])
    with pytest.raises(
        UserError, match="nothing that is attached to this image is signed"
    ) as refused:
        promote(source, production, rules(), key=str(keys / "other.pub"))
    assert not isinstance(refused.value, signing.CosignError), "cosign could tell"
