"""validate.derived: the claims of an image that stands on ours, and what it may declare."""

import pytest

from tests.support.sources import SOURCES, image
from validate.claims import Claim, ClaimSet, Tier
from validate.derived import (
    Command,
    Declaration,
    DerivedRules,
    base_versions,
    derived_claims,
    parse_declaration,
)

RULES: DerivedRules = {
    "failing": [],
    "conflicts": [],
    "state": {"torch.is_grad_enabled()": [True]},
    "allowed_variables": ["HF_HOME"],
    "harmless_variables": ["TZ"],
    "folder_variables": ["HOME", "HF_HOME"],
}


def make_claim(key: str, probe: str, **expect: object) -> Claim:
    """Return a required claim of the static tier."""
    check, _, subject = key.partition("/")
    return Claim(
        check=check, subject=subject, tier=Tier.STATIC, probe=probe, statement="", expect=expect
    )


BASE = ClaimSet(
    image="cu126-torch25",
    claims=(
        make_claim("pins/transformers", "static.pins", version="4.50.3", locals=[""]),
        make_claim(
            "pins/lock",
            "static.pins",
            versions={"transformers": "4.50.3", "numpy": "2.2.6"},
            closed=True,
        ),
        make_claim(
            "environment/variables", "static.environment", required={}, denied={"OMP_*": ""}
        ),
        make_claim("hygiene/home", "static.hygiene", leftovers={}),
        make_claim("lookup/paths", "static.lookup", path=["/usr/bin"], image_kind="ours"),
    ),
)


def claim_of(declared: Declaration, key: str) -> Claim:
    """Return one claim of an image on BASE that declares this."""
    (claim,) = [one for one in derived_claims(BASE, RULES, declared).claims if one.key == key]
    return claim


def test_a_derived_image_is_never_called_by_the_name_of_its_base() -> None:
    assert derived_claims(BASE, RULES).image == "an image on cu126-torch25"


def test_a_replaced_package_is_held_to_the_declared_version() -> None:
    declared = Declaration(replaces={"transformers": "4.57.6"})

    assert claim_of(declared, "pins/transformers").expect["version"] == "4.57.6"
    versions = claim_of(declared, "pins/lock").expect["versions"]
    assert versions == {"transformers": "4.57.6", "numpy": "2.2.6"}


def test_a_package_that_is_not_declared_is_held_to_the_version_of_the_base() -> None:
    claim = claim_of(Declaration(), "pins/transformers")

    assert claim.required
    assert claim.expect["version"] == "4.50.3"


def test_what_was_added_is_compared_with_the_base_image_whatever_is_declared() -> None:
    """A replaced package is imported and its requirements are checked like an added one's."""
    declared = Declaration(replaces={"transformers": "4.57.6"})

    for subject in ("imports", "requirements"):
        base = claim_of(declared, f"added/{subject}").expect["base"]
        assert base == {"transformers": "4.50.3", "numpy": "2.2.6"}


def test_packages_without_a_known_version_have_an_empty_one() -> None:
    optional = make_claim("pins/flash-attn", "static.pins", locals=[""])
    base = ClaimSet(image="a", claims=(*BASE.claims, optional))

    assert base_versions(base)["flash-attn"] == ""


def test_the_home_need_not_be_for_everybody() -> None:
    keys = [claim.key for claim in derived_claims(BASE, RULES).claims]

    assert "hygiene/home" not in keys
    assert "added/folders" in keys


def test_each_command_is_a_claim_of_its_tier() -> None:
    declared = Declaration(
        commands={"smoke": Command(run="true"), "train": Command(run="python a.py", tier=Tier.GPU)}
    )

    smoke, train = claim_of(declared, "command/smoke"), claim_of(declared, "command/train")
    assert (smoke.tier, smoke.probe, smoke.required) == (Tier.CPU, "cpu.command", True)
    assert (train.tier, train.probe) == (Tier.GPU, "gpu.command")
    assert train.expect == {"run": "python a.py", "seconds": 600}


def test_a_real_image_has_the_same_claims_but_for_those_of_additions() -> None:
    from images.validation import derived_image
    from images.validation.claims import image_claims
    from images.validation.claims.context import ClaimContext

    base = image_claims(ClaimContext(image=image("cu126-torch25"), facts=SOURCES.facts))
    rules = derived_image.derived_rules(image("cu126-torch25"), SOURCES)

    before = {claim.key for claim in base.claims}
    after = {claim.key for claim in derived_claims(base, rules).claims}
    assert before - after == {"hygiene/home"}
    assert after - before == {
        "pins/additions",
        "added/folders",
        "added/imports",
        "added/requirements",
        "state/after-import",
    }


def test_an_empty_file_declares_nothing() -> None:
    assert parse_declaration("") == Declaration()


def test_a_file_declares_packages_variables_and_commands() -> None:
    declared = parse_declaration(
        """
        [replaces]
        transformers = "5.24.0"
        [variables]
        HF_ENDPOINT = "https://hf.example.com"
        [commands.smoke]
        run = "python smoke.py"
        tier = "gpu"
        seconds = 60
        """
    )

    assert declared.replaces == {"transformers": "5.24.0"}
    assert declared.variables == {"HF_ENDPOINT": "https://hf.example.com"}
    assert declared.commands == {"smoke": Command(run="python smoke.py", tier=Tier.GPU, seconds=60)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("replaces = 1", "[replaces] must be a table"),
        ("[replaces]\na = 5", '[replaces] a must be a text: a = "5"'),
        ("[replace]\na = '5'", "'replace' is no table of this file"),
        ("[commands]\na = 'true'", '[commands.a] needs a line `run = "COMMAND"`'),
        ("[commands.a]\nrun = 'true'\nuser = 'root'", "[commands.a] has no key 'user'"),
        ("[commands.a]\nrun = 'true'\ntier = 'static'", 'it must be "cpu" or "gpu"'),
        ("[commands.a]\nrun = 'true'\nseconds = true", "must be a whole number above 0"),
        ("[replaces", "at end of document"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse_declaration(text)

    assert reason in str(refusal.value)
