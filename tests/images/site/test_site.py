"""The site: what was not validated is never green, nothing recorded can break a page, the bytes are fixed;
also of what a registry has, with forged attestations. And choosing from the index that it publishes.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote, urlsplit

import jsonschema_rs
import pytest
from pydantic import ValidationError

from images.nightly import results
from images.nightly.results import BreakageLine, Job, JobLine, Outcome
from images.planning import chooser
from images.publish.statements import TEST_RESULT
from images.registry.client import Registry
from images.registry.reference import Repository
from images.site import choosing, index, inputs, pages, runs
from images.site.index import ImageRow, Index, Validation, dumps
from images.site.inputs import SiteInputs, make_index
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


@cache
def of_samples() -> Mapping[str, bytes]:
    """The site of the samples: made by the worker that tests it, and not wherever tests are collected."""
    return pages.render_files(samples.known())


@cache
def html() -> Mapping[str, str]:
    return {
        path: content.decode() for path, content in of_samples().items() if path.endswith(".html")
    }


@cache
def indexed() -> Index:
    return make_index(samples.known())


@cache
def by_name() -> Mapping[str, ImageRow]:
    return {image.name: image for image in indexed().images}


@cache
def of_the_repository() -> Mapping[str, bytes]:
    """The site of the runs that are recorded: only the worker that tests it makes it."""
    recorded, nightly = (
        runs.recorded_runs([ROOT / "results"]),
        results.read(ROOT / "results" / "nightly"),
    )
    return pages.render_files(
        SiteInputs(sources=SOURCES, today=TODAY, runs=recorded, nightly=nightly)
    )


@cache
def parsed(path: str) -> Page:
    """A page of the samples: each is read once, and only by the worker that looks at it."""
    return Page(html()[path])


def row_of(name: str, known: SiteInputs) -> ImageRow:
    """An image of the index that is made of these inputs."""
    return next(one for one in make_index(known).images if one.name == name)


def cells(name: str) -> str:
    """The row of an image in the matrix."""
    (row,) = re.findall(rf'<tr id="{name}".*?</tr>', html()["index.html"], re.DOTALL)
    return row


def test_the_same_inputs_and_date_give_the_same_bytes() -> None:
    assert pages.render_files(samples.known()) == of_samples()
    later = pages.render_files(samples.known(today=date(2026, 11, 22)))
    assert later.keys() == of_samples().keys() and later["index.json"] != of_samples()["index.json"]


def test_the_index_is_as_its_published_schema_says_and_is_read_back() -> None:
    schema = json.loads((ROOT / "docs" / "schema" / "index.schema.json").read_text())
    for files in (of_samples(), of_the_repository()):
        data = json.loads(files["index.json"])
        jsonschema_rs.validate(schema, data)
        assert index.dumps(Index.model_validate(data)) == files["index.json"]
        assert (
            files["index.schema.json"]
            == (ROOT / "docs" / "schema" / "index.schema.json").read_bytes()
        )
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {**json.loads(of_samples()["index.json"]), "more": 1})


def test_an_image_is_validated_by_the_runs_of_its_digest() -> None:
    expected = dict.fromkeys((VALIDATED, STALE, UNDATED), Validation.VALIDATED) | {
        FAILING: Validation.FAILED
    }
    expected |= dict.fromkeys((PARTLY, ARCH), Validation.PARTLY) | dict.fromkeys(
        (REBUILT, NEVER), Validation.NEVER
    )
    assert {name: by_name()[name].validation for name in expected} == expected


def test_what_was_not_validated_is_never_green() -> None:
    row, page = cells(NEVER), html()[f"images/{NEVER}.html"]
    assert row.count('class="cell never"') == row.count('<td class="cell') and "PASS" not in row
    assert "Not validated" in page and "PASS" not in page.split("<main")[1]


def test_a_gpu_tier_without_a_gpu_was_not_validated() -> None:
    blind = samples.run(NEVER, *samples.STATIC_CPU, samples.gpu(Status.UNPROVEN))
    image = row_of(NEVER, samples.known(runs=[blind]))
    assert {one.tier for one in image.runs} == {Tier.STATIC, Tier.CPU}
    assert (
        "not validated on a GPU"
        in pages.render_files(samples.known(runs=[blind]))[image.page].decode()
    )


def test_a_verdict_is_of_the_digest_that_the_tag_means() -> None:
    image = by_name()[REBUILT]
    assert image.digest == NEW and image.runs and not any(run.current for run in image.runs)
    assert cells(REBUILT).count("other build") == 3
    assert "No run is of the digest that the tag means today." in html()[image.page]
    assert (
        image.get == f"docker pull registry.example/images:{REBUILT}"
        and image.published.endswith(samples.OTHER)
    )
    assert row_of(REBUILT, samples.known(published=())).validation is Validation.VALIDATED


def test_a_verdict_without_a_digest_validates_no_image() -> None:
    """An image that judges itself does not know its own digest."""
    image = row_of(NEVER, samples.known(runs=[samples.run(NEVER, digest="")]))
    assert (
        image.validation is Validation.NEVER
        and image.runs
        and not any(one.current for one in image.runs)
    )


def test_a_failure_on_one_gpu_is_not_outvoted_by_another() -> None:
    both = [samples.run(NEVER, *samples.STATIC_CPU, samples.gpu(), gpus=(H100,))]
    moved = row_of(NEVER, samples.known(runs=[replace(both[0], packages={"torch": "2.0"})]))
    assert not moved.passed_on
    assert moved.sentence.startswith("Validated with torch 2.0 where the pin is 2.15.0 now")
    both.append(samples.run(NEVER, samples.gpu(Status.FAIL), gpus=("NVIDIA H200",)))
    assert row_of(NEVER, samples.known(runs=both)).validation is Validation.FAILED


def test_required_claims_make_a_tier_and_nothing_else() -> None:
    optional = samples.claim(Tier.STATIC, Status.FAIL, required=False)
    assert tier_counts([samples.claim(Tier.STATIC), optional])[Tier.STATIC].verdict is Status.PASS
    assert (
        tier_counts([samples.claim(Tier.STATIC, required=False)])[Tier.STATIC].verdict
        is Status.UNPROVEN
    )
    unproven = samples.claim(Tier.STATIC, Status.UNPROVEN)
    assert (
        tier_counts([samples.claim(Tier.STATIC), unproven])[Tier.STATIC].verdict is Status.UNPROVEN
    )


def test_what_is_older_than_the_limit_is_stale() -> None:
    """An old verdict is never shown as a new one."""
    assert "stale" not in cells(VALIDATED)
    for name in (STALE, UNDATED):
        assert (
            "validated, stale" in cells(name) and cells(name).count('<span class="note">stale') == 3
        )
    on_its_last_day = pages.render_files(samples.known(today=date(2026, 11, 20)))[
        "index.html"
    ].decode()
    (row,) = re.findall(rf'<tr id="{STALE}".*?</tr>', on_its_last_day, re.DOTALL)
    assert "stale" not in row, "14 days old"


def test_every_gpu_has_its_column() -> None:
    assert indexed().columns(Tier.GPU) == ("H100", "H200")
    assert indexed().columns(Tier.MULTIGPU) == ("2 x H200",)
    assert '<th scope="col">2 x H200</th>' in html()["index.html"]
    alone = make_index(samples.known(runs=(), nightly=()))
    assert alone.columns(Tier.GPU) == ("",)
    assert inputs.describe_gpus(Tier.GPU, ["NVIDIA Something New"]) == "NVIDIA Something New"


def test_a_control_job_is_a_run_of_the_image_and_a_canary_is_not() -> None:
    failed = samples.job(PARTLY, Job.CONTROL, Outcome.NOT_BUILT, digest="", tiers={})
    found = list(runs.nightly_runs([*samples.NIGHTLY, failed]))
    assert [one.image for one in found] == [PARTLY, "cu999-torch27", "cu128-torch27"]


def test_the_front_page_shows_current_breakages_once() -> None:
    old = samples.breakage(
        key="old", sentence="an old one broke", date=datetime(2026, 11, 1, tzinfo=UTC)
    )
    lines = [old, samples.breakage(), samples.breakage()]
    files = pages.render_files(samples.known(nightly=lines))
    assert files["index.html"].count(b"breaks symbols/resolved") == 1
    assert b" broke" not in files["index.html"]
    page = html()["images/cu128-torch27.html"]
    assert "<p><b>symbols/resolved</b>" in page


def test_an_arch_image_shows_its_parent_s_lock() -> None:
    assert (
        "The lock: 2 distributions" in html()[f"images/{ARCH}.html"]
        and ARCH.removesuffix("-sm90") == PARTLY
    )
    assert "No lock is committed" in html()[f"images/{UNLOCKED}.html"]


def test_an_image_without_a_lock_is_said_everywhere_and_counted_as_none() -> None:
    """Nobody can have it: neither the totals nor the chooser offer it, and its command begins with the lock."""
    row = by_name()[UNLOCKED]
    command = f"nox -s lock -- {UNLOCKED} && nox -s build -- {UNLOCKED}"
    assert row.get == command and row.blocked.startswith(
        "no lock: can't be built here; `nox -s lock -- "
    )
    page = html()[f"images/{UNLOCKED}.html"]
    assert "no lock: can&#39;t be built here; `nox -s lock -- " in page
    assert f"<code>nox -s build -- {UNLOCKED}</code>" not in page
    assert ">no lock</span>" in cells(UNLOCKED) and ">no lock</span>" not in cells(NEVER)
    totals = {
        words: int(count)
        for count, words in re.findall(r"<li><b>(\d+)</b> ([^<]*)</li>", html()["index.html"])
    }
    images, validated, stale, partly, failed, never, unlocked, _refused = totals.values()
    assert validated + stale + partly + failed + never == images == len(indexed().images)
    assert unlocked == 1
    page = html()["choose.html"]
    assert f">{NEVER}</a>" in page and f">{UNLOCKED}</a>" not in page
    assert row.blocked and not by_name()[NEVER].blocked


def test_every_image_with_a_validation_run_shows_a_size() -> None:
    """Of its digest, or of another build that was measured."""
    made = of_the_repository()
    rows = [one for one in json.loads(made["index.json"])["images"] if one["bytes"]]
    assert len(rows) > 20
    assert [row["name"] for row in rows if b" unpacked" not in made[row["page"]]] == []


def test_nothing_recorded_becomes_markup() -> None:
    for path, text in html().items():
        page = parsed(path)
        assert page.open == [], f"every element of {path} is closed"
        assert not [tag for tag, _ in page.elements if tag == "script"], path
        planted = ("<img src=x", "alert(1)</script>")
        assert not [word for word in planted if word in text], path
        named = {name for _, attrs in page.elements for name in attrs}
        assert not [name for name in named if name.startswith("on") or name == "style"], path
        assert len(page.ids) == len(set(page.ids)), path


def test_links_lead_somewhere_and_nothing_is_fetched_from_elsewhere() -> None:
    every = ((path, tag, attrs) for path in html() for tag, attrs in parsed(path).elements)
    for path, tag, attrs in every:
        for target in (attrs[name] for name in ("href", "src", "action") if name in attrs):
            parts = urlsplit(target)
            assert not parts.scheme and not parts.netloc, f"{path}: {tag} {target}"
            found = normpath(join(dirname(path), unquote(parts.path))) if parts.path else path
            assert found in of_samples(), f"{path}: {target}"
            assert not parts.fragment or parts.fragment in parsed(found).ids, f"{path}: {target}"


@pytest.mark.parametrize("make", [of_samples, of_the_repository], ids=["samples", "repository"])
def test_no_page_is_over_300_kb_with_all_that_it_loads(
    make: Callable[[], Mapping[str, bytes]],
) -> None:
    files = make()
    assets = sum(len(content) for path, content in files.items() if path.startswith("assets/"))
    sizes = {
        path: len(content) + assets for path, content in files.items() if path.endswith(".html")
    }
    assert max(sizes.values()) < 300_000, max(sizes, key=lambda path: sizes[path])


def test_a_year_of_nightly_runs_keeps_pages_small_and_the_runs_that_decide() -> None:
    def lines_of(day: int) -> list[JobLine | BreakageLine]:
        date = datetime(2025, 11, 22, 5, tzinfo=UTC) + timedelta(days=day)
        digest = "sha256:" + f"{day:064x}"
        control = samples.job(
            PARTLY, Job.CONTROL, Outcome.PASS, date=date, digest=digest, bytes=7_000_000_000 + day
        )
        changes = [
            samples.MOVE.model_copy(update={"name": f"package-{number}"}) for number in range(20)
        ]
        canary = samples.job(
            PARTLY,
            Job.CANARY,
            Outcome.FAIL,
            date=date,
            failing=[samples.FAILED] * 5,
            changes=changes,
        )
        return [control, canary, samples.breakage(date=date, key=f"{day}")]

    lines = [line for day in range(365) for line in lines_of(day)]
    first = samples.run(
        PARTLY,
        *samples.STATIC_CPU,
        samples.gpu(),
        gpus=(H100,),
        digest="sha256:" + f"{364:064x}",
        day=None,
    )
    known = samples.known(nightly=lines, runs=[first, *runs.nightly_runs(lines)])
    files = pages.render_files(known)
    sizes = {path: len(content) for path, content in files.items() if path.endswith(".html")}
    assert max(sizes.values()) < 250_000
    image = row_of(PARTLY, known)
    assert len(image.runs) < 20
    assert image.newest(Tier.GPU, "H100") and image.newest(Tier.CPU), (
        "undated, and older than any night: but of its digest"
    )


def test_what_decides_the_validation_is_kept_however_old() -> None:
    tag = replace(samples.TAG, image=NEVER, digest=NEW)
    old = samples.run(
        NEVER, *samples.STATIC_CPU, samples.gpu(), gpus=(H100,), day=date(2026, 11, 1)
    )
    claims = (*samples.STATIC_CPU, samples.gpu())
    days = {f"sha256:{day:064x}": date(2026, 11, day) for day in range(2, 20)}
    others = [
        samples.run(NEVER, *claims, gpus=(H100,), digest=digest, day=day)
        for digest, day in days.items()
    ]
    image = row_of(NEVER, samples.known(runs=[old, *others], published=(tag,)))
    assert image.validation is Validation.VALIDATED and image.validated_on == date(2026, 11, 1)
    assert [one.date for one in image.runs if one.current] == [date(2026, 11, 1)] * 3
    assert image.sentence.startswith("Validated: ") and image.newest(Tier.GPU, "H100").current  # type: ignore[union-attr]


def test_every_refused_row_of_the_matrix_has_its_reasons_and_the_nearest() -> None:
    assert indexed().refused
    for row in indexed().refused:
        assert row.reasons and row.nearest and f">{row.name}</th>" in html()["index.html"]
        assert set(row.nearest) <= set(by_name())


def test_what_was_validated_once_and_is_refused_today_is_no_row_of_the_matrix() -> None:
    known = samples.known(runs=[samples.run("cu130-torch211-nothing")])
    assert "cu130-torch211-nothing" not in pages.render_files(known)["index.html"].decode()


GPUS_TO_COMPARE = ("RTX 4090", "H100", "GTX 980", "B300", "GH200", "Jetson AGX Thor", "V100")


def test_the_choose_page_has_the_answers_of_the_command_line() -> None:
    images = indexed().images
    tables = choosing.gpu_tables(images, [None, "axolotl"])
    by_model = {model: table for table in tables for model in table.models}
    assert by_model.keys() == chooser.models().keys()
    for gpu in GPUS_TO_COMPARE:
        model, _row = chooser.find_model(gpu)
        # A driver that is the newest bound of its range, for each row of the table.
        for drivers, answers in by_model[model].rows:
            driver = "1" if drivers.startswith("older") else drivers.split()[0]
            machine = chooser.Machine(
                **{**vars(chooser.machine_from_options(gpu, "", "")), "driver": driver}
            )
            for profile, name in zip((None, "axolotl"), answers.images, strict=True):
                fitting = chooser.rank(images, machine, chooser.Options(profile=profile)).fitting
                assert name == (fitting[0].name if fitting else ""), (gpu, driver, profile)
            assert bool(answers.why_none) == (not answers.images[0])


def claimed(number: str, subject: str, tier: Tier, *, required: bool = True) -> Claim:
    return Claim(
        check=number,
        subject=subject,
        tier=tier,
        probe="x.y",
        statement="x",
        expect={},
        required=required,
    )


OLD_CLAIMS = [
    claimed("pins", "torch", Tier.STATIC),
    claimed("imports", "torch", Tier.CPU),
    claimed("numerics", "device", Tier.GPU),
]
NEWER = [
    claimed("cpu-examples", "", Tier.CPU),
    claimed("instructions", "optional", Tier.CPU, required=False),
    claimed("collectives", "exact", Tier.MULTIGPU),
]


def test_a_claim_that_was_never_run_is_open() -> None:
    known = samples.known(claims={VALIDATED: OLD_CLAIMS})
    assert row_of(VALIDATED, known).validation is Validation.VALIDATED
    known = samples.known(claims={VALIDATED: [*OLD_CLAIMS, *NEWER]})
    row = row_of(VALIDATED, known)
    cpu, static = row.newest(Tier.CPU), row.newest(Tier.STATIC)
    assert cpu and static
    assert (cpu.verdict, cpu.never_run, cpu.standing) == (Status.PASS, 1, Status.UNPROVEN)
    assert (static.never_run, static.standing) == (0, Status.PASS)
    assert row.validation is (
        Validation.PARTLY if Tier.CPU in known.sources.matrix.gate else Validation.VALIDATED
    )
    assert "cpu PASS but for 1 claims never run" in row.sentence
    made = pages.render_files(known)
    page, matrix_page = (made[path].decode() for path in (row.page, "index.html"))
    assert (
        "Claims of the cpu tier that were never run: cpu-examples/." in page
        and "instructions/optional" not in page
    )
    assert "1 never run" in matrix_page and "never run" not in of_samples()[
        "index.html"
    ].decode().replace("or was never run", "")


def test_of_a_nightly_run_claims_are_counted_where_they_have_no_names() -> None:
    bare = replace(samples.run(VALIDATED), claims=())
    for claims, open_ones in ((OLD_CLAIMS, 0), ([*OLD_CLAIMS, *NEWER], 1)):
        known = samples.known(runs=(bare,), claims={VALIDATED: claims})
        cpu = row_of(VALIDATED, known).newest(Tier.CPU)
        assert cpu and cpu.never_run == open_ones


NAME = "cu130-torch211"
DAY = "2026-11-20T12:00:00+00:00"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`HOST:PORT/images` of Debian's docker-registry on loopback."""
    with debian_tools.registry(tmp_path_factory.mktemp("registry") / "here") as host:
        yield f"{host}/images"


def site(repository: str, out: Path) -> Called:
    folders = ("--results", str(out / "none"))
    return call("site", "--from", repository, "--out", str(out), "--date", "2026-11-21", *folders)


def test_tags_digests_and_attestations_come_from_the_registry(
    repository: str, tmp_path: Path
) -> None:
    with Registry(Repository.parse(repository)) as registry:
        kept = published(registry, NAME, date=DAY, name=NAME, created="2026-11-20T10:00:00Z")
        fixed = f"{NAME}-20261120-{kept.image_id[7:19]}"
        registry.put(kept.manifest, fixed)
        registry.put(kept.manifest, "cu999-torch99")
    done = site(repository, tmp_path)
    assert done.returncode == 0, done.stderr
    images = {
        one["name"]: one for one in json.loads((tmp_path / "index.json").read_text())["images"]
    }
    image = images[NAME]
    assert (image["digest"], image["published"]) == (
        kept.image_id,
        f"{repository}@{kept.manifest.digest}",
    )
    assert image["tags"] == [NAME, fixed] and image["get"] == f"docker pull {repository}:{NAME}"
    row = next(one for one in image["runs"] if one["tier"] == "static")
    assert (row["verdict"], row["date"], row["current"]) == ("PASS", "2026-11-20", True)
    assert image["validation"] == "partly" and (tmp_path / image["page"]).is_file()
    assert not [one for one in images.values() if one["published"] and one["name"] != NAME]


def test_an_attestation_that_its_evidence_contradicts_stops_the_site(
    repository: str, tmp_path: Path
) -> None:
    with Registry(Repository.parse(f"{repository}/lying")) as registry:
        said = (
            published(registry, NAME, date=DAY, name=NAME).statements_of(TEST_RESULT)[0].predicate
        )
        attach(
            registry,
            NAME,
            TEST_RESULT,
            {**said, "passedTests": [*said["passedTests"], "gpu/numerics/gemm"]},
        )
    done = site(f"{repository}/lying", tmp_path)
    assert done.returncode == 1 and "not what the evidence says" in done.stderr
    assert not list(tmp_path.iterdir()), "written last"


def test_a_tag_that_names_another_image_stops_the_site(repository: str, tmp_path: Path) -> None:
    with Registry(Repository.parse(f"{repository}/mistaken")) as registry:
        published(registry, NAME, date=DAY, name="cu126-torch27")
    done = site(f"{repository}/mistaken", tmp_path)
    assert (
        done.returncode == 1
        and f"its attestation is of cu126-torch27, the tag says {NAME}" in done.stderr
    )


def test_an_index_with_control_characters_or_unknown_archs_is_refused() -> None:
    data = json.loads(dumps(make_index(samples.known())))
    for key, value in (
        ("get", "docker pull x\x1b[2J"),
        ("archs", ["ninety"]),
        ("name", "../x"),
        ("min_driver", "new"),
    ):
        bent = {**data, "images": [{**data["images"][0], key: value}]}
        with pytest.raises(ValidationError, match=key):
            Index.model_validate(bent)
