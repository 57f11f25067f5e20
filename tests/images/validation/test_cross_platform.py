"""Which probes of another processor's image a Python of this machine runs, and what emulated programs see."""

from images.engine.gpus import NO_GPU
from images.validation.containers import INSIDE, planned
from images.validation.cross_platform import CPU_FOLDER, NativePython, split
from tests.support.claims import bare_claims
from validate.claims import Claim, Tier


def python(*, of_its_release: bool) -> NativePython:
    return NativePython(files={}, architecture="arm64", emulator="qemu-user 7.2", of_its_release=of_its_release)


def test_only_a_python_of_the_same_release_stands_for_the_images_own() -> None:
    """Another one compiles otherwise."""
    probe = "cpu.bytecode"
    claim = Claim(id="T1", subject="a", tier=Tier.CPU, probe=probe, statement="")
    same, other = python(of_its_release=True), python(of_its_release=False)
    assert same.runs(probe) and not other.runs(probe)
    assert (same.emulated([claim])["probes"], other.emulated([claim])["probes"]) == ([], [probe])


def test_every_claim_is_measured_natively_or_emulated_and_never_both() -> None:
    claims = bare_claims("cu126-torch27").of([Tier.STATIC, Tier.CPU]).inside()
    native = python(of_its_release=True)
    plans = list(split(planned("/root", claims, NO_GPU), native, cpus=2))
    measured = [claim for plan in plans for claim in plan.claims.claims]
    assert sorted(f"{one.id} {one.subject}" for one in measured) == sorted(
        f"{one.id} {one.subject}" for one in claims.claims if not one.unproven
    )
    for plan in plans:
        own = plan.python[0] != "python3"
        assert {native.runs(claim.probe) for claim in plan.claims.claims} == {own}
        assert own is ("--emulated" not in plan.arguments) and (INSIDE in plan.files) >= own
        assert ("QEMU_CPU" not in plan.environment) is own
        assert plan.environment["TMPDIR"] if own else CPU_FOLDER in plan.files
