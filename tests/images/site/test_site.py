"""The site: what was not validated is never green, and nothing recorded can break a page.

Also what it reads from a registry, forged attestations among that, and choosing from its index.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote, urlsplit

import jsonschema_rs
import pytest
from pydantic import ValidationError

from images.config.names import ImageName
from images.nightly import results
from images.nightly.results import BreakageLine, Job, JobLine, Outcome
from images.planning import chooser, plan
from images.planning.plan import Planned
from images.publish.statements import TEST_RESULT
from images.registry.client import Registry
from images.registry.reference import Repository
from images.site import choosing, index, pages, runs, status
from images.site.index import ImageRow, Index, dumps
from images.site.inputs import SiteInputs, make_index
from images.site.status import Validation
from images.validation.rows import tier_counts
from tests.support import debian_tools
from tests.support import site_samples as samples
from tests.support.checkout import ROOT
from tests.support.commands import Called, call
from tests.support.html import Page
from tests.support.published import attach, published
from tests.support.site_samples import (
    ARCH,
    FAILING,
    H100,
    H200,
    NEVER,
    NEW,
    PARTLY,
    REBUILT,
    STALE,
    TODAY,
    UNDATED,
    UNLOCKED,
    VALIDATED,
)
from tests.support.sources import SOURCES
from validate.claims import Claim, Tier
from validate.judging import Status

SCHEMA_FILE = ROOT / "docs" / "schema" / "index.schema.json"


# The sites are made once, and only by the worker that tests them: not where tests are collected.


@cache
def site_of_samples() -> Mapping[str, bytes]:
    return pages.render_files(samples.inputs_with())


@cache
def site_of_recorded_runs() -> Mapping[str, bytes]:
    """The site of results/ in this repository."""
    recorded = runs.recorded_runs([ROOT / "results"])
    nightly = results.read(ROOT / "results" / "nightly")
    return pages.render_files(
        SiteInputs(sources=SOURCES, today=TODAY, runs=recorded, nightly=nightly)
    )


@cache
def html_of_samples() -> Mapping[str, str]:
    """Path -> text of each page of the samples."""
    texts = {}
    for path, content in site_of_samples().items():
        if path.endswith(".html"):
            texts[path] = content.decode()
    return texts


@cache
def parsed_page(path: str) -> Page:
    """A page of the samples, parsed."""
    return Page(html_of_samples()[path])


@cache
def index_of_samples() -> Index:
    return make_index(samples.inputs_with())


@cache
def rows_of_samples() -> Mapping[str, ImageRow]:
    return {image.name: image for image in index_of_samples().images}


def page_of(name: str) -> str:
    """The text of an image's page among the samples."""
    return html_of_samples()[f"images/{name}.html"]


def index_row(name: str, site_inputs: SiteInputs) -> ImageRow:
    """What index.json says of an image, made from these inputs."""
    (row,) = [image for image in make_index(site_inputs).images if image.name == name]
    return row


def table_row(name: str, text: str = "") -> str:
    """The row of an image in the table on the front page; by default that of the samples."""
    front_page = text or html_of_samples()["index.html"]
    (row,) = re.findall(rf'<tr id="{name}".*?</tr>', front_page, re.DOTALL)
    return row


def digest_of(number: int) -> str:
    return f"sha256:{number:064x}"


# --- the files ------------------------------------------------------------------------------------


def test_the_same_inputs_and_date_give_the_same_bytes() -> None:
    assert pages.render_files(samples.inputs_with()) == site_of_samples()


def test_another_date_gives_the_same_files_with_other_bytes() -> None:
    a_day_later = pages.render_files(samples.inputs_with(today=TODAY + timedelta(days=1)))

    assert a_day_later.keys() == site_of_samples().keys()
    assert a_day_later["index.json"] != site_of_samples()["index.json"]


@pytest.mark.parametrize(
    "make_site", [site_of_samples, site_of_recorded_runs], ids=["samples", "recorded runs"]
)
def test_the_index_fits_its_published_schema_and_is_read_back_unchanged(
    make_site: Callable[[], Mapping[str, bytes]],
) -> None:
    files = make_site()
    data = json.loads(files["index.json"])

    jsonschema_rs.validate(json.loads(SCHEMA_FILE.read_text()), data)
    assert index.dumps(Index.model_validate(data)) == files["index.json"]
    assert files["index.schema.json"] == SCHEMA_FILE.read_bytes()


def test_the_schema_allows_no_further_field() -> None:
    data = {**json.loads(site_of_samples()["index.json"]), "more": 1}

    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(json.loads(SCHEMA_FILE.read_text()), data)


# --- which verdict an image has -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "validation"),
    [
        (VALIDATED, Validation.VALIDATED),
        (STALE, Validation.STALE),
        (UNDATED, Validation.VALIDATED),
        (FAILING, Validation.FAILED),
        (PARTLY, Validation.PARTLY),
        (ARCH, Validation.PARTLY),
        (REBUILT, Validation.NEVER),
        (NEVER, Validation.NEVER),
    ],
)
def test_an_image_is_validated_by_the_runs_of_its_digest(name: str, validation: Validation) -> None:
    assert rows_of_samples()[name].validation == validation


def test_what_was_not_validated_is_never_green() -> None:
    row, page = table_row(NEVER), page_of(NEVER)

    assert row.count('class="cell never"') == row.count('<td class="cell')
    assert "PASS" not in row
    assert "Not validated" in page
    assert "PASS" not in page.split("<main")[1]


def test_a_gpu_tier_without_a_gpu_was_not_validated() -> None:
    run_without_gpu = samples.run(NEVER, *samples.STATIC_CPU, samples.gpu(Status.UNPROVEN))
    site_inputs = samples.inputs_with(runs=[run_without_gpu])

    image = index_row(NEVER, site_inputs)

    assert {run.tier for run in image.runs} == {Tier.STATIC, Tier.CPU}
    page = pages.render_files(site_inputs)[image.page].decode()
    assert "not validated on a GPU" in page


def test_a_published_image_has_only_the_verdicts_of_the_digest_that_its_tag_means() -> None:
    image = rows_of_samples()[REBUILT]

    assert image.digest == NEW
    assert image.runs and not any(run.current for run in image.runs)
    assert image.get == f"docker pull registry.example/images:{REBUILT}"
    assert image.published.endswith(samples.OTHER)
    gpu_static_and_cpu = 3
    assert table_row(REBUILT).count("other build") == gpu_static_and_cpu
    assert "No run is of the digest that the tag means today." in page_of(REBUILT)


def test_an_image_that_is_not_published_has_the_verdicts_of_its_last_build() -> None:
    image = index_row(REBUILT, samples.inputs_with(published={}))

    assert image.validation is Validation.VALIDATED


def test_a_verdict_without_a_digest_validates_no_image() -> None:
    """An image that judges itself does not know its own digest."""
    image = index_row(NEVER, samples.inputs_with(runs=[samples.run(NEVER, digest="")]))

    assert image.validation is Validation.NEVER
    assert image.runs and not any(run.current for run in image.runs)


def test_a_failure_on_one_gpu_is_not_outvoted_by_another() -> None:
    passed = samples.run(NEVER, *samples.STATIC_CPU, samples.gpu(), gpus=(H100,))
    failed = samples.run(NEVER, samples.gpu(Status.FAIL), gpus=(H200,))

    image = index_row(NEVER, samples.inputs_with(runs=[passed, failed]))

    assert image.validation is Validation.FAILED


def test_an_image_did_not_pass_on_a_gpu_with_other_versions_than_its_pins() -> None:
    run_of_older_pins = samples.run(
        NEVER, *samples.STATIC_CPU, samples.gpu(), gpus=(H100,), packages={"torch": "2.0"}
    )

    image = index_row(NEVER, samples.inputs_with(runs=[run_of_older_pins]))

    assert not image.passed_on
    assert "stale: torch 2.0 where the pin is 2.15.0 now" in image.status
    assert "; stale: torch 2.0 where" in image.status


REQUIRED = samples.claim(Tier.STATIC)
REQUIRED_UNPROVEN = samples.claim(Tier.STATIC, Status.UNPROVEN)
OPTIONAL = samples.claim(Tier.STATIC, required=False)
OPTIONAL_FAILED = samples.claim(Tier.STATIC, Status.FAIL, required=False)


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        pytest.param([REQUIRED, OPTIONAL_FAILED], Status.PASS, id="an optional claim failed"),
        pytest.param([OPTIONAL], Status.UNPROVEN, id="no claim is required"),
        pytest.param([REQUIRED, REQUIRED_UNPROVEN], Status.UNPROVEN, id="one is unproven"),
    ],
)
def test_only_required_claims_decide_the_verdict_of_a_tier(
    claims: list[samples.ClaimRow], verdict: Status
) -> None:
    assert tier_counts(claims)[Tier.STATIC].verdict is verdict


# --- old runs -------------------------------------------------------------------------------------


def test_a_verdict_whose_layers_have_moved_is_shown_as_stale() -> None:
    row = table_row(STALE)

    assert '<span class="word">stale</span>' in row
    static_cpu_and_gpu = 3
    assert row.count('<span class="note">stale') == static_cpu_and_gpu


@pytest.mark.parametrize("name", [VALIDATED, UNDATED])
def test_a_verdict_of_todays_layers_is_not_stale(name: str) -> None:
    assert "stale" not in table_row(name)


def test_a_year_of_nightly_runs_keeps_pages_small_and_the_runs_that_decide() -> None:
    nights = 365
    nightly: list[JobLine | BreakageLine] = []
    for night in range(nights):
        nightly += lines_of_a_bad_night(night)
    # Of the last digest; undated, so it counts as older than any night.
    measured_first = samples.run(
        PARTLY,
        *samples.STATIC_CPU,
        samples.gpu(),
        gpus=(H100,),
        digest=digest_of(nights - 1),
        day=None,
    )
    site_inputs = samples.inputs_with(
        nightly=nightly, runs=[measured_first, *runs.nightly_runs(nightly)]
    )

    files = pages.render_files(site_inputs)
    image = index_row(PARTLY, site_inputs)

    sizes = [len(content) for path, content in files.items() if path.endswith(".html")]
    assert max(sizes) < 250_000
    assert len(image.runs) < 20
    assert image.newest(Tier.GPU, "H100")
    assert image.newest(Tier.CPU)


def lines_of_a_bad_night(night: int) -> list[JobLine | BreakageLine]:
    """The lines of a night with a control of its own digest, a failed canary and a breakage."""
    moment = datetime(2025, 11, 22, 5, tzinfo=UTC) + timedelta(days=night)
    control = samples.job(
        PARTLY,
        Job.CONTROL,
        Outcome.PASS,
        date=moment,
        digest=digest_of(night),
        bytes=7_000_000_000 + night,
    )
    changes = []
    for number in range(20):
        changes.append(samples.MOVE.model_copy(update={"name": f"package-{number}"}))
    canary = samples.job(
        PARTLY,
        Job.CANARY,
        Outcome.FAIL,
        date=moment,
        failing=[samples.FAILED] * 5,
        changes=changes,
    )
    return [control, canary, samples.breakage(date=moment, key=f"{night}")]


def test_the_runs_that_decide_the_validation_are_shown_however_old() -> None:
    first_day = date(2026, 11, 1)
    claims = (*samples.STATIC_CPU, samples.gpu())
    run_of_tag = samples.run(NEVER, *claims, gpus=(H100,), digest=NEW, day=first_day)
    newer_runs_of_other_builds = []
    for day in range(2, 20):
        newer_run = samples.run(
            NEVER, *claims, gpus=(H100,), digest=digest_of(day), day=date(2026, 11, day)
        )
        newer_runs_of_other_builds.append(newer_run)
    tag = replace(samples.TAG, digest=NEW)

    image = index_row(
        NEVER,
        samples.inputs_with(runs=[run_of_tag, *newer_runs_of_other_builds], published={NEVER: tag}),
    )

    assert image.validation is Validation.VALIDATED
    assert [run.date for run in image.runs if run.current] == [first_day] * len(claims)
    assert image.status.startswith("Its tiers: static passed the 1 claim")
    newest = image.newest(Tier.GPU, "H100")
    assert newest and newest.current


# --- claims that are newer than the runs ----------------------------------------------------------


def claim_of_today(check: str, subject: str, tier: Tier, *, required: bool = True) -> Claim:
    return Claim(
        check=check,
        subject=subject,
        tier=tier,
        probe="x.y",
        statement="x",
        expect={},
        required=required,
    )


JUDGED_CLAIMS = [
    claim_of_today("pins", "torch", Tier.STATIC),
    claim_of_today("imports", "torch", Tier.CPU),
    claim_of_today("device", "visible", Tier.GPU),
]
NEWER_CLAIMS = [
    claim_of_today("cpu-examples", "", Tier.CPU),
    claim_of_today("instructions", "optional", Tier.CPU, required=False),
    claim_of_today("collectives", "exact", Tier.MULTIGPU),
]


def test_an_image_whose_runs_judged_every_claim_of_today_is_validated() -> None:
    image = index_row(VALIDATED, samples.inputs_with(claims={VALIDATED: JUDGED_CLAIMS}))

    assert image.validation is Validation.VALIDATED


def test_a_claim_that_is_newer_than_the_run_changes_no_verdict() -> None:
    site_inputs = samples.inputs_with(claims={VALIDATED: [*JUDGED_CLAIMS, *NEWER_CLAIMS]})

    image = index_row(VALIDATED, site_inputs)

    cpu, static = image.newest(Tier.CPU), image.newest(Tier.STATIC)
    assert cpu and static
    assert (cpu.verdict, cpu.newer) == (Status.PASS, 1)
    assert static.newer == 0
    assert image.validation is Validation.VALIDATED


def test_a_page_names_the_claims_that_are_newer_than_its_runs() -> None:
    site_inputs = samples.inputs_with(claims={VALIDATED: [*JUDGED_CLAIMS, *NEWER_CLAIMS]})
    image = index_row(VALIDATED, site_inputs)

    files = pages.render_files(site_inputs)

    page, front_page = files[image.page].decode(), files["index.html"].decode()
    assert (
        "cpu passed the 1 claim of its run of 2026-11-21; 1 claim added since and not measured"
        in image.status
    )
    assert "Claims of the cpu tier that are newer than its runs: cpu-examples/." in page
    assert "instructions/optional" not in page
    assert '<span class="note">1 newer</span>' in front_page


def test_without_new_claims_the_front_page_says_of_none_that_it_is_newer() -> None:
    assert '<span class="note">1 newer</span>' not in html_of_samples()["index.html"]


@pytest.mark.parametrize(
    ("claims", "newer"),
    [
        pytest.param(JUDGED_CLAIMS, 0, id="as many as were judged"),
        # Numbers do not tell an optional claim from a required one.
        pytest.param([*JUDGED_CLAIMS, *NEWER_CLAIMS], 2, id="two more"),
    ],
)
def test_the_claims_of_a_nightly_run_are_counted_because_they_have_no_names(
    claims: list[Claim], newer: int
) -> None:
    nightly_run = replace(samples.run(VALIDATED), claims=())

    image = index_row(
        VALIDATED, samples.inputs_with(runs=(nightly_run,), claims={VALIDATED: claims})
    )

    cpu = image.newest(Tier.CPU)
    assert cpu and cpu.newer == newer


# --- GPUs, nightly runs, locks --------------------------------------------------------------------


def test_every_gpu_has_its_column() -> None:
    assert index_of_samples().columns(Tier.GPU) == ("H100", "H200")
    assert index_of_samples().columns(Tier.MULTIGPU) == ("2 x H200",)
    assert '<th class="tier" scope="col">2 x H200</th>' in html_of_samples()["index.html"]


def test_without_runs_the_gpu_tier_has_one_column_without_a_name() -> None:
    index_without_runs = make_index(samples.inputs_with(runs=(), nightly=()))

    assert index_without_runs.columns(Tier.GPU) == ("",)


def test_an_unknown_gpu_keeps_the_name_that_its_driver_gives_it() -> None:
    name = "NVIDIA Something New"

    assert status.describe_gpus(Tier.GPU, [name]) == name


def test_a_control_job_is_a_run_of_the_image_and_a_canary_is_not() -> None:
    not_built = samples.job(PARTLY, Job.CONTROL, Outcome.NOT_BUILT, digest="", tiers={})

    nightly_runs = list(runs.nightly_runs([*samples.NIGHTLY, not_built]))

    assert [run.image for run in nightly_runs] == [PARTLY, "cu999-torch27", "cu128-torch27"]


def test_the_front_page_shows_a_current_breakage_once_and_no_old_one() -> None:
    long_ago = datetime(2026, 11, 1, tzinfo=UTC)
    old = samples.breakage(key="old", sentence="an old one broke", date=long_ago)

    files = pages.render_files(
        samples.inputs_with(nightly=[old, samples.breakage(), samples.breakage()])
    )

    assert files["index.html"].count(b"breaks symbols/resolved") == 1
    assert b" broke" not in files["index.html"]


def test_the_page_of_an_image_has_the_claims_that_its_nightly_runs_failed() -> None:
    assert "<p><b>symbols/resolved</b>" in page_of("cu128-torch27")


def test_an_image_for_one_architecture_shows_the_lock_of_its_parent() -> None:
    assert ARCH.removesuffix("-sm90") == PARTLY
    assert "The lock: 2 distributions" in page_of(ARCH)


def test_an_image_without_a_lock_has_a_command_that_locks_it_first() -> None:
    row = rows_of_samples()[UNLOCKED]

    assert row.get == f"nox -s lock -- {UNLOCKED} && nox -s build -- {UNLOCKED}"
    assert row.blocked.startswith("no lock: can't be built here; `nox -s lock -- ")
    assert not rows_of_samples()[NEVER].blocked


def test_an_image_without_a_lock_is_marked_on_every_page() -> None:
    page = page_of(UNLOCKED)

    assert "No lock is committed" in page
    assert "no lock: can&#39;t be built here; <code>nox -s lock -- " in page
    assert f"<code>nox -s build -- {UNLOCKED}</code>" not in page
    assert ">no lock</span>" in table_row(UNLOCKED)
    assert ">no lock</span>" not in table_row(NEVER)


def test_an_image_without_a_lock_is_not_offered_by_the_choose_page() -> None:
    page = html_of_samples()["choose.html"]

    assert f">{NEVER}</a>" in page
    assert f">{UNLOCKED}</a>" not in page


def test_the_totals_of_the_front_page_add_up() -> None:
    front_page = html_of_samples()["index.html"]
    totals = re.findall(r"<li><b>(\d+)</b> [^<]*</li>", front_page)

    images, validated, partly, stale, failed, never, unlocked, _refused = map(int, totals)

    assert images == len(index_of_samples().images)
    assert validated + stale + partly + failed + never == images
    assert unlocked == 1


def test_every_image_with_a_validation_run_shows_a_size() -> None:
    """Of its digest, or of another build that was measured."""
    files = site_of_recorded_runs()
    images = json.loads(files["index.json"])["images"]
    measured = [image for image in images if image["bytes"]]

    assert len(measured) > 20
    assert [image["name"] for image in measured if b" unpacked" not in files[image["page"]]] == []


# --- pages ----------------------------------------------------------------------------------------


def test_nothing_recorded_becomes_markup() -> None:
    """The samples have HTML in every text that a run, a nightly line or a lock may have."""
    planted = ("<img src=x", "alert(1)</script>")
    for path, text in html_of_samples().items():
        page = parsed_page(path)
        attributes = {name for _tag, attrs in page.elements for name in attrs}

        assert page.open == [], f"every element of {path} is closed"
        assert not [tag for tag, _attrs in page.elements if tag == "script"], path
        assert not [markup for markup in planted if markup in text], path
        scripting = [name for name in attributes if name.startswith("on") or name == "style"]
        assert not scripting, path
        assert len(page.ids) == len(set(page.ids)), path


ISSUE = r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+"


def test_links_lead_somewhere_and_nothing_is_fetched_from_elsewhere() -> None:
    for path in html_of_samples():
        for tag, attributes in parsed_page(path).elements:
            for name in ("href", "src", "action"):
                if name not in attributes:
                    continue
                # A reader may follow a link to an issue. It is fetched only then.
                if tag == "a" and re.fullmatch(ISSUE, attributes[name]):
                    continue
                require_link_within_site(attributes[name], path, f"{path}: {tag}")


def require_link_within_site(link: str, path: str, where: str) -> None:
    """Assert that a link on the page `path` leads to a file of the site, and to an ID there."""
    parts = urlsplit(link)
    assert not parts.scheme and not parts.netloc, f"{where} {link}"

    target = normpath(join(dirname(path), unquote(parts.path))) if parts.path else path
    assert target in site_of_samples(), f"{where} {link}"
    assert not parts.fragment or parts.fragment in parsed_page(target).ids, f"{where} {link}"


@pytest.mark.parametrize(
    "make_site", [site_of_samples, site_of_recorded_runs], ids=["samples", "recorded runs"]
)
def test_no_page_is_over_300_kb_with_all_that_it_loads(
    make_site: Callable[[], Mapping[str, bytes]],
) -> None:
    files = make_site()
    assets = sum(len(content) for path, content in files.items() if path.startswith("assets/"))

    sizes = {}
    for path, content in files.items():
        if path.endswith(".html"):
            sizes[path] = len(content) + assets

    assert max(sizes.values()) < 300_000, max(sizes, key=lambda path: sizes[path])


# --- refused images -------------------------------------------------------------------------------


def test_every_refused_row_of_the_matrix_has_its_reasons_and_the_nearest() -> None:
    assert index_of_samples().refused
    for row in index_of_samples().refused:
        assert row.reasons and row.nearest
        assert f">{row.name}</th>" in html_of_samples()["index.html"]
        assert set(row.nearest) <= set(rows_of_samples())


def test_a_refused_image_for_another_platform_is_listed_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "cu130-torch211-arm64"
    refused = Planned(image_name=ImageName.parse(name), reasons=("no wheel of torch",))
    monkeypatch.setattr(plan, "plan", lambda _sources: (refused,))

    site_index = make_index(samples.inputs_with(runs=(), nightly=()))

    assert [(row.name, row.reasons) for row in site_index.refused] == [
        (name, ["no wheel of torch"])
    ]


def test_what_was_validated_once_and_is_refused_today_is_no_row_of_the_matrix() -> None:
    name = "cu130-torch211-nothing"

    files = pages.render_files(samples.inputs_with(runs=[samples.run(name)]))

    assert name not in files["index.html"].decode()


# --- choosing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gpu", ["RTX 4090", "H100", "GTX 980", "B300", "GH200", "Jetson AGX Thor", "V100"]
)
def test_the_choose_page_has_the_answers_of_the_command_line(gpu: str) -> None:
    images = index_of_samples().images
    profiles = (None, "axolotl")
    model, _facts = chooser.find_model(gpu)
    machine = chooser.machine_from_options([gpu], [], "")

    table = table_of(model, choosing.gpu_tables(images, profiles))

    for drivers, answers in table.rows:
        # The oldest driver of the range: `550.54 or newer, ...`, `older than 450`.
        driver = "1.0" if drivers.startswith("older") else drivers.split()[0]
        # `570 or newer` begins with the first release of the branch.
        driver = driver if "." in driver else f"{driver}.0"
        for profile, name in zip(profiles, answers.images, strict=True):
            choice = chooser.choose(
                images, replace(machine, driver=driver), chooser.Options(profile=profile)
            )
            expected = choice.fitting[0].name if choice.fitting else ""
            assert name == expected, (driver, profile)
        assert bool(answers.why_none) == (not answers.images[0])


def table_of(model: str, tables: Sequence[choosing.GpuTable]) -> choosing.GpuTable:
    (table,) = [table for table in tables if model in table.models]
    return table


def test_the_choose_page_has_every_gpu_model() -> None:
    models = set()
    for table in choosing.gpu_tables(index_of_samples().images, [None]):
        models.update(table.models)

    assert models == chooser.models().keys()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("get", "docker pull x\x1b[2J", id="a control character"),
        pytest.param("archs", ["ninety"], id="an unknown architecture"),
        pytest.param("name", "../x", id="a path as a name"),
        pytest.param("min_driver", "new", id="a word as a driver"),
    ],
)
def test_an_index_with_a_field_that_could_harm_its_reader_is_refused(
    field: str, value: object
) -> None:
    data = json.loads(dumps(make_index(samples.inputs_with())))
    data["images"] = [{**data["images"][0], field: value}]

    with pytest.raises(ValidationError, match=field):
        Index.model_validate(data)


# --- a site from a registry -----------------------------------------------------------------------

NAME = "cu130-torch211"
MEASURED_ON = "2026-11-20T12:00:00+00:00"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`HOST:PORT/images` of Debian's docker-registry on loopback."""
    with debian_tools.registry(tmp_path_factory.mktemp("registry") / "here") as host:
        yield f"{host}/images"


def make_site_from(repository: str, out: Path) -> Called:
    """Call `site` for a registry, without any recorded runs."""
    no_results = ("--results", str(out.parent))
    return call(
        "site", "--from", repository, "--out", str(out), "--date", "2026-11-21", *no_results
    )


def test_tags_digests_and_attestations_come_from_the_registry(
    repository: str, tmp_path: Path
) -> None:
    with Registry(Repository.parse(repository)) as registry:
        stored = published(
            registry, NAME, date=MEASURED_ON, name=NAME, created="2026-11-20T10:00:00Z"
        )
        dated_tag = f"{NAME}-20261120-{stored.image_id[7:19]}"
        registry.put(stored.manifest, dated_tag)
        tag_of_no_image_in_the_matrix = "cu999-torch99"
        registry.put(stored.manifest, tag_of_no_image_in_the_matrix)

    result = make_site_from(repository, tmp_path)

    assert result.returncode == 0, result.stderr
    images = {}
    for entry in json.loads((tmp_path / "index.json").read_text())["images"]:
        images[entry["name"]] = entry
    image = images[NAME]
    assert image["digest"] == stored.image_id
    assert image["published"] == f"{repository}@{stored.manifest.digest}"
    assert image["tags"] == [NAME, dated_tag]
    assert image["get"] == f"docker pull {repository}:{NAME}"
    assert image["validation"] == "partly"
    assert (tmp_path / image["page"]).is_file()
    (static_run,) = [run for run in image["runs"] if run["tier"] == "static"]
    assert static_run["verdict"] == "PASS"
    assert static_run["date"] == "2026-11-20"
    assert static_run["current"] is True
    assert [name for name, entry in images.items() if entry["published"]] == [NAME]


def test_an_attestation_that_its_evidence_contradicts_stops_the_site(
    repository: str, tmp_path: Path
) -> None:
    with Registry(Repository.parse(f"{repository}/lying")) as registry:
        image = published(registry, NAME, date=MEASURED_ON, name=NAME)
        truth = image.statements_of(TEST_RESULT)[0].predicate
        lie = {**truth, "passedTests": [*truth["passedTests"], "gpu/numerics/gemm"]}
        attach(registry, NAME, TEST_RESULT, lie)

    result = make_site_from(f"{repository}/lying", tmp_path)

    assert result.returncode == 1
    assert "not what the evidence says" in result.stderr
    assert not list(tmp_path.iterdir()), "files are written last"


def test_a_tag_that_names_another_image_stops_the_site(repository: str, tmp_path: Path) -> None:
    with Registry(Repository.parse(f"{repository}/mistaken")) as registry:
        published(registry, NAME, date=MEASURED_ON, name="cu126-torch27")

    result = make_site_from(f"{repository}/mistaken", tmp_path)

    assert result.returncode == 1
    assert f"its attestation is of cu126-torch27, the tag says {NAME}" in result.stderr
