"""What comes of a model: its clipped sum against float64 gradients of each record, and against neighbors."""

import copy
import warnings
from dataclasses import dataclass
from typing import Any

from tests.contracts.network_outcomes import Outcome, Subject, clipped, outcome_of, per_record, sum_of
from tests.models.zoo import Entry
from torch import nn

from sidelight.errors import SidelightError
from sidelight.oracles.network.network_oracle import NetworkOracle

RECORDS, SEED, PUBLIC_SEED = 9, 1, 50
TOLERANCE = 1e-3  # of a float32 model: the oracle rounds norms upwards


@dataclass(frozen=True)
class Row:
    """A line of the page."""

    name: str
    library: str
    trained: int
    parameters: int
    evaluation: Outcome
    training: Outcome
    error: float | None  # relative, of the sum in evaluation mode


def measure(entry: Entry) -> Row:
    model = entry.make()
    trained, parameters = (
        sum(p.numel() for p in model.parameters() if p.requires_grad or every) for every in (False, True)
    )
    evaluation, error = _evaluated(entry, model.eval())
    return Row(entry.name, entry.library, trained, parameters, evaluation, _trained(entry), error)


def _evaluated(entry: Entry, model: nn.Module) -> tuple[Outcome, float | None]:
    """Without random numbers: the sum over passes of a few records, to the last digits of float32."""
    batch = entry.batch(RECORDS, SEED)
    rows = per_record(_plain(model), entry.loss, batch)
    bound = float(rows.norm(dim=1).median())
    want = clipped(rows, bound).sum(0)
    try:
        oracle = NetworkOracle(model, entry.loss, example=entry.batch(8, PUBLIC_SEED), pass_size=4)
        error = float((sum_of(oracle, batch, bound) - want).norm() / want.norm())
    except SidelightError as refused:
        return Outcome("refused", str(refused)), None
    if not error <= TOLERANCE:
        return Outcome("wrong", f"{error:.1g} off"), error
    return Outcome("right"), error


def _trained(entry: Entry) -> Outcome:
    """With dropout and the like: records stay apart, whatever one of them holds."""
    model = entry.make().train()

    def records(n: int) -> Any:
        return entry.batch(n, SEED)

    public = entry.batch(8, PUBLIC_SEED)
    subject = Subject(model, entry.loss, records, public, draws=True, reference=_plain(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # libraries warn of tokens that are out of range
        return outcome_of(subject, copies=8, draws=8)


def _plain(model: nn.Module) -> nn.Module:
    """A copy for float64, for which torch has no grouped products of experts."""
    model = copy.deepcopy(model)
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "eager"
    return model
