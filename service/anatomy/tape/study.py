"""Study of the tape: of an expression or the model's block, with what it and each mode's step save."""

from __future__ import annotations

import msgspec
import torch

from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_bucket, resolve_case, resolve_modes
from service.anatomy.tape.computations import choose_computation
from service.anatomy.tape.graph import BackwardNode, ForwardOperator, Leaf, hooked, record
from service.anatomy.tape.steps import TapeOfStep, tape_of_step
from service.anatomy.tape.storages import Held, Storages, held
from service.anatomy.tape.untaped import OFF, UntapedRun, run_untaped
from service.measure.cases import Bench
from service.protocol.messages import Phase


class TapeArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`expression` is `block`, `step` or a key of `protocol.expressions.TAPE_EXPRESSIONS`.

    `mode` None is every configured one.

    Where `computations.own_expressions` is set, it may also be any expression over x, w, b and F.
    """

    expression: str = "block"
    batch_size: int = 1
    phase: Phase = "decode"
    mode: str | None = None


class TapeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A tape. `backward` is in the order in which autograd's engine would run it.

    `held` sums the nodes' saved tensors, `hooked` those that saved-tensor hooks saw in a second run. They
    differ by results that were dropped meanwhile and by Python numbers, which hooks do not see.
    `grad_bytes` is the size of `.grad` of the parameters among `leaves` after a backward: an input is a leaf
    here only because it stands for an activation. `untaped` is the same computation with grad mode off.
    `steps` has each mode's step.
    """

    expression: str
    source: str
    device: str
    batch_bucket: int
    phase: Phase
    forward: list[ForwardOperator]
    backward: list[BackwardNode]
    leaves: list[Leaf]
    held: Held
    hooked: Held
    grad_bytes: int
    untaped: list[UntapedRun]
    steps: list[TapeOfStep]


def read_tape(bench: Bench, arguments: TapeArguments, report: Report) -> TapeFinding:
    """Record and read the tape. Raises StudyError for arguments that cannot work."""
    modes = resolve_modes(bench, arguments.mode)
    bucket = resolve_bucket(bench, arguments.batch_size)
    computation = choose_computation(bench, arguments.expression, bucket, arguments.phase)
    report(f"recording the tape of {computation.source}")
    tape = record(computation.run, Storages(computation.owned), computation.owner_of)
    with torch.enable_grad():
        seen = hooked(computation.run, Storages(computation.owned))
    untaped = [run_untaped(computation.run, computation.owned, grad) for grad in OFF]
    steps = []
    for mode in modes:
        case = resolve_case(bench, mode, bucket, arguments.phase, report)
        report(f"one step of {mode}")
        steps.append(tape_of_step(bench, case))
    return TapeFinding(
        expression=computation.name,
        source=computation.source,
        device=bench.device.type,
        batch_bucket=bucket,
        phase=arguments.phase,
        forward=tape.forward,
        backward=tape.nodes,
        leaves=tape.leaves,
        held=held(tensor for node in tape.nodes for tensor in node.saved),
        hooked=held(seen),
        grad_bytes=sum(leaf.grad_bytes for leaf in tape.leaves if leaf.kind == "parameter"),
        untaped=untaped,
        steps=steps,
    )
