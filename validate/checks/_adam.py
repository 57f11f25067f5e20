"""Judge an optimiser that a package compiles: it must take the steps of torch's AdamW."""

from validate.checks._behaviour import judge_figures
from validate.harness.adam import LARGEST_DEVIATION, LEAST_CONTROL, LEAST_MOVE, CompiledDeviations
from validate.judging import Finding
from validate.next_steps import COMPILE_EXTENSIONS, pin


def judge_adam(_subject: str, _expect: object, evidence: CompiledDeviations) -> Finding:
    """Pass if a package's compiled Adam gives torch's weights after four steps.

    It must be compiled ahead, not when it is first called. The evidence has these figures:
    "deviation" is how far the weights are from torch's, "moved" how far the four steps took them
    from the start. The controls lack a part of AdamW (`control_adam` its decoupled weight decay,
    `control_fewer` a step), so their weights must differ.
    """
    return judge_figures(
        evidence,
        equal={"compiled_ahead": True},
        at_most={"deviation": LARGEST_DEVIATION},
        at_least={
            "moved": LEAST_MOVE,
            "control_adam": LEAST_CONTROL,
            "control_fewer": LEAST_CONTROL,
        },
    )


_UNTIL_THEN = (
    "until then, use torch's own AdamW (torch.optim.AdamW) in programs that run in this image"
)
NEXT_STEP = {
    "compiled_ahead": f"{COMPILE_EXTENSIONS} and build the image again; {_UNTIL_THEN}",
    "": f"{pin('another release of the package')}; {_UNTIL_THEN}",
}
