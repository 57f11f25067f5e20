"""two-nodes/checkpoint: one process must read a sharded checkpoint that two nodes wrote.

A run of two nodes is often evaluated, exported or continued on one GPU. The checkpoint lies in a
folder that both nodes share, as on a cluster.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from validate.checks.multigpu import fsdp
from validate.checks.multigpu._ranks import (
    ADAMW_TOLERANCE,
    SEED,
    STEPS,
    ComputingRank,
    Rank,
    RanksExpect,
    Requirements,
    Worker,
    compare_tensors,
    describe_unmet_requirements,
    gather_weights,
    judge_ranks,
    train,
)
from validate.checks.multinode import _nodes
from validate.claims import Claim
from validate.harness.forked import attempt
from validate.judging import Finding, Status, cause, failed, joined
from validate.next_steps import REPORT, pin

_CHECKPOINT = "checkpoint"
_EXPECTED = "expected.pt"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the claim's subject, what the ranks of both nodes wrote, and what one process reads."""
    for subject, evidence in _nodes.measure(__name__, claims):
        ranks = evidence["ranks"]
        reader: Mapping[str, Any] = {}
        # A rank that failed has reported no folder.
        if "folder" in ranks[0]:
            folder, device_type = Path(ranks[0]["folder"]), claims[0].expect["device"]
            reader = attempt(partial(read_checkpoint, folder, len(ranks), device_type))
        yield subject, {**evidence, "reader": reader}


def rank(worker: Worker, _claim: Claim) -> dict[str, Any]:
    """Train a sharded model for two steps, save it with all ranks, and train a third step.

    Each rank, a process with one GPU, holds a part of every tensor, and saves its parts. The first
    rank also saves whole tensors, for a comparison later: those that the checkpoint must have, and
    the weights after the third step. Returns the folder, and how many files the checkpoint has.
    """
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    batches = [worker.make_batch(worker.rank, step) for step in range(STEPS)]
    model, optimizer = fsdp.make_sharded_trainee(worker, SEED)
    train(model, optimizer, batches[:2])
    folder = worker.folder / _CHECKPOINT
    checkpoint.save(fsdp.collect_state(model, optimizer), checkpoint_id=str(folder))

    # All ranks gather: each holds a part of every tensor.
    expected = {"weights": gather_weights(model), "moments": fsdp.gather_moments(optimizer)}
    train(model, optimizer, batches[2:])
    expected["third step"] = gather_weights(model)
    if worker.rank == 0:
        worker.torch.save(expected, worker.folder / _EXPECTED)
    return {"folder": str(worker.folder), "files": len(list(folder.glob("*.distcp")))}


def read_checkpoint(folder: Path, rank_count: int, device_type: str) -> ComputingRank:
    """Load the checkpoint of several ranks into a model that is not sharded, in this process.

    The model begins with other weights ("differed before" is the control). It must get the saved
    bits. Its third step, on the data of all ranks, must be theirs.
    """
    torch = importlib.import_module("torch")
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    state_dict = importlib.import_module("torch.distributed.checkpoint.state_dict")
    worker = Worker(
        torch=torch,
        rank=0,
        world_size=rank_count,
        device=torch.device(device_type),
        folder=folder,
    )
    torch.backends.cuda.matmul.allow_tf32 = False
    expected = torch.load(folder / _EXPECTED, map_location=worker.device, weights_only=True)
    third_batch = worker.make_batch_of_all_ranks(STEPS - 1)

    # Train the model once, so that its optimizer has moments for loading to overwrite.
    model = worker.make_model(SEED + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=fsdp.LEARNING_RATE)
    train(model, optimizer, [third_batch])
    differed_before = not fsdp.are_equal(gather_weights(model), expected["weights"])

    state = fsdp.collect_state(model, optimizer)
    checkpoint.load(state, checkpoint_id=str(folder / _CHECKPOINT))
    state_dict.set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    has_same_weights = fsdp.are_equal(gather_weights(model), expected["weights"])
    has_same_moments = fsdp.are_equal(fsdp.gather_moments(optimizer), expected["moments"])

    train(model, optimizer, [third_batch])
    third_step = compare_tensors(
        gather_weights(model), expected["third step"], {"not trained on": expected["weights"]}
    )
    return {
        "comparisons": {"third step": third_step},
        "facts": {
            "differed before": differed_before,
            "same weights": has_same_weights,
            "same moments": has_same_moments,
            "moments": len(expected["moments"]),
        },
    }


REQUIREMENTS = Requirements(
    tolerance={"third step": ADAMW_TOLERANCE},
    facts={"differed before": True, "same weights": True, "same moments": True, "moments": 24},
)


class WritingRank(Rank):
    """What a rank reports that wrote a part of the checkpoint."""

    files: int  # how many files of parts the folder had at the end


class CheckpointEvidence(TypedDict):
    """The reports of all ranks, and of the process that read what they wrote."""

    ranks: Sequence[WritingRank]
    reader: ComputingRank


def judge(_subject: str, expect: RanksExpect, evidence: CheckpointEvidence) -> Finding:
    """Judge that each rank wrote its part, and that one process reads the whole exactly."""
    rank_count = len(evidence["ranks"])

    def find_problems(rank: WritingRank) -> Iterator[str]:
        """Yield a problem if there is not a file of each rank."""
        if rank["files"] != rank_count:
            yield f"{rank['files']} files of parts, {rank_count} ranks wrote"

    finding = judge_ranks(
        expect,
        evidence["ranks"],
        find_problems,
        lambda ranks: f"{len(ranks)} ranks of two nodes wrote {ranks[0]['files']} parts",
    )
    if finding.status is not Status.PASS:
        return finding
    reader = evidence["reader"]
    if "error" in reader:
        return failed(f"a single process that reads the checkpoint fails: {cause(reader['error'])}")
    problems = list(describe_unmet_requirements(REQUIREMENTS, reader))
    if problems:
        return failed(
            "a single process that read the checkpoint did not get what the two nodes had written: "
            f"{joined(problems)}"
        )
    error = reader["comparisons"]["third step"]["error"]
    return finding._replace(
        reason=f"{finding.reason}, one process reads them exactly and goes on within {error:.1e}"
    )


CLAIMS = {"two-nodes/checkpoint": judge}
NEXT_STEPS = {
    "two-nodes/checkpoint": f"{pin('another release of torch')}; until then, read checkpoints of "
    "this image only with as many ranks as wrote them; if other releases fail as well, "
    f"{REPORT}"
}
