"""Every method on a network keeps the promises of the linear models, and known faults are seen red."""

from typing import Any

import pytest
import torch
from tests.contracts.network_scenes import (
    ADD_REMOVE,
    CASES,
    CLIP,
    FULL,
    Case,
    Recorded,
    contract,
    every,
    neighboring,
    null,
    record,
)
from tests.deep.networks import blobs, loss, mlp
from tests.oracles.networks import squared_error
from tests.private_values import value_of
from torch import Tensor, nn

from sidelight.deep import Loading, Trainer
from sidelight.methods.adadps import adadps
from sidelight.methods.adamix import adamix
from sidelight.methods.declare import METHODS
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd
from sidelight.methods.recipe import Loop
from sidelight.oracles.network import network_oracle as network
from sidelight.oracles.network.flat import RunningSum, _Norms
from sidelight.oracles.network.network_oracle import NetworkOracle
from sidelight.oracles.network.pieces import Squares
from sidelight.oracles.network.shared_pieces import Tied
from sidelight.privacy import accountants, events
from sidelight.privacy.events import Relation
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.release import BoundedSum

# Two runs are compared number by number: they must draw the same noise.
pytestmark = pytest.mark.usefixtures("same_noise")

honest_sum = NetworkOracle.clipped_sum


@pytest.fixture(scope="module", params=every())
def run(request: pytest.FixtureRequest) -> tuple[Case, Relation, Recorded]:
    """A method under a relation, recorded once for all promises."""
    case, relation = request.param
    return case, relation, record(case, neighboring(relation)[0], relation)


def test_neighboring_data_moves_the_sum_at_most_by_its_sensitivity(
    run: tuple[Case, Relation, Recorded],
) -> None:
    assert contract(*run) > 0.05, "no neighbor moved anything: a fault would go unnoticed"


def test_what_was_released_is_within_the_budget(run: tuple[Case, Relation, Recorded]) -> None:
    _, relation, recorded = run
    released, statement = events.compose(*recorded.tape.events), recorded.trainer.privacy_
    assert recorded.tape.events, "nothing was released"
    assert statement.epsilon <= 3 * (1 + 1e-6) and statement.relation == relation
    if "filter" in str(statement.details["accounting"]):
        assert accountants.epsilon(released, delta=1e-4, relation=relation) <= statement.epsilon
    else:
        assert events.elementary(released) == events.elementary(statement.plan)


def test_every_private_method_of_the_registry_that_networks_take_is_here() -> None:
    """A method that is new in the registry, and that a network accepts, has to appear in CASES."""
    recipes = {name for name, make in METHODS.items() if hasattr(make(), "with_parts")}
    linear_only = {"precision_weighting", "public_whitening", "sgd_adv"}
    assert recipes - linear_only == {case.make().name for case in CASES.values()}


def test_only_public_is_the_same_whatever_the_private_records_are() -> None:
    found = []
    for data in (null(), *neighboring(ADD_REMOVE)[1]):
        model = mlp(dtype=torch.float64)
        Trainer(model, loss, method="only_public", epsilon=1, steps=3, random_state=1).fit(
            data, blobs(30, 2, torch.float64)
        )
        found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_a_ledger_holds_what_was_released() -> None:
    ledger = Ledger.in_memory()
    ledger.register("people", relation=ADD_REMOVE, epsilon=5, delta=1e-4)
    run = record(Case(lambda: dope_sgd(clip_norm=CLIP), {"ledger": ledger}), null(), ADD_REMOVE)
    (charge,) = ledger.charges("people")
    assert events.elementary(charge.event) == events.elementary(events.compose(*run.tape.events))


# ---------------------------------------------------------------------------------------------------
# planted faults


DOPE = CASES["dope_sgd"]


def with_sum(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Replace the value of what the oracle answers by change(oracle, batch, options)."""

    def faulty(self: NetworkOracle, batch: Any, **options: Any) -> BoundedSum:
        total = honest_sum(self, batch, **options)
        value = change(self, batch, options, value_of(total))
        return BoundedSum(value, sensitivity=total.sensitivity, relation=total.relation)

    monkeypatch.setattr(NetworkOracle, "clipped_sum", faulty)


def live(batch: Any) -> int:
    """Records that can be used."""
    return int((batch[0].isfinite().all(1) & (batch[1] < 3)).sum())


def test_contract_catches_an_origin_inside_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """DOPE-SGD as published releases |B_t|·o + Σ clip(g − o): one record moves it by ‖o‖ more."""
    with_sum(monkeypatch, lambda oracle, batch, options, value: value + live(batch) * options["origin"])
    with pytest.raises(AssertionError, match="sensitivity"):
        contract(DOPE)


def test_contract_catches_a_realised_batch_size_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    with_sum(monkeypatch, lambda oracle, batch, options, value: value * 24 / max(1, live(batch) - 15))
    with pytest.raises(AssertionError, match="sensitivity"):
        contract(CASES["dp_sgd"])


def test_contract_catches_a_transform_after_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdaDPS the wrong way round: clip(g)/A in place of clip(g/A)."""

    def after(oracle: Any, batch: Any, options: dict[str, Any], _: Tensor) -> Tensor:
        metric = options.pop("metric")
        return metric.apply(value_of(honest_sum(oracle, batch, **options)))

    with_sum(monkeypatch, after)
    with pytest.raises(AssertionError, match="sensitivity"):
        contract(Case(lambda: adadps(clip_norm=CLIP, start="cold")))


def test_contract_catches_a_projection_that_is_not_orthonormal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms of the gradient in place of norms of its coordinates: a long basis stretches them."""

    def lengthened(oracle: Any, batch: Any, options: dict[str, Any], _: Tensor) -> Tensor:
        metric = options.pop("metric")
        return 2 * metric.apply(value_of(honest_sum(oracle, batch, **options)))

    with_sum(monkeypatch, lengthened)
    with pytest.raises(AssertionError, match="sensitivity"):
        contract(Case(lambda: adamix(rank=25), CASES["adamix"].options))


def test_contract_catches_a_replaced_record_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: NetworkOracle, batch: Any, **options: Any) -> BoundedSum:
        total = honest_sum(self, batch, **options)
        return BoundedSum(value_of(total), sensitivity=total.sensitivity / 2, relation=total.relation)

    monkeypatch.setattr(NetworkOracle, "clipped_sum", half)
    with pytest.raises(AssertionError, match="sensitivity"):
        contract(Case(lambda: dp_sgd(clip_norm=CLIP), FULL), "replace-one")


def test_contract_catches_copies_of_a_record_that_are_clipped_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def separate(oracle: Any, batch: Any, options: dict[str, Any], _: Tensor) -> Tensor:
        value: Tensor = value_of(honest_sum(oracle, batch, **(options | {"augmentations": 1})))
        return value

    with_sum(monkeypatch, separate)
    with pytest.raises(AssertionError, match="sensitivity"):
        contract(CASES["dope_sgd, augmented"])


def test_contract_catches_an_error_about_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the care for failing records, a class that does not exist ends the run and is quoted."""
    monkeypatch.setattr(network, "is_record_dependent", lambda error: False)
    with pytest.raises(IndexError, match="17"):
        contract(DOPE)


def test_contract_catches_a_batch_size_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, sizes = Loop._record, list[int]()

    def counting(oracle: Any, batch: Any, options: Any, value: Tensor) -> Tensor:
        sizes.append(live(batch))
        return value

    def chatty(self: Loop, *given: Any) -> None:
        honest(self, *given)
        self.history[-1]["batch_size"] = sizes[-1]

    with_sum(monkeypatch, counting)
    monkeypatch.setattr(Loop, "_record", chatty)
    with pytest.raises(AssertionError, match="depends"):
        contract(DOPE)


# ---------------------------------------------------------------------------------------------------
# two faults that need a model, or an order of records, of their own


class Language(nn.Module):
    """Tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(60, 4), nn.Linear(4, 60, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x)))  # type: ignore[no-any-return]


def removed(
    monkeypatch: pytest.MonkeyPatch, model: Any, data: Any, public: Any, places: list[int], **options: Any
) -> float:
    """The largest move of a sum, in units of its sensitivity, when the first of these records is left out."""
    from tests.deep.networks import Tape

    tapes: list[Tape] = []
    for batch in (places, places[1:]):
        tape = Tape(tapes[0] if tapes else None)
        monkeypatch.setattr("sidelight.methods.part_kinds.release", tape)
        monkeypatch.setattr(
            "sidelight.privacy.events.Poisson.indices", lambda *_, batch=batch: torch.tensor(batch).numpy()
        )
        trainer = Trainer(
            model(), squared_error, method=dope_sgd(clip_norm=0.05, origin_limit=0.01), epsilon=3, delta=1e-4,
            expected_batch_size=8, steps=2, random_state=1, **options,
        )  # fmt: skip
        trainer.fit(data, public)
        tapes.append(tape)
    return tapes[0].largest_share(tapes[1])


def tied(monkeypatch: pytest.MonkeyPatch) -> float:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return Language().double()

    generator = torch.Generator().manual_seed(3)
    data, public = (
        (torch.randint(0, 60, (n, 3), generator=generator), torch.randn(n, generator=generator).double())
        for n in (20, 10)
    )
    return max(
        removed(monkeypatch, model, data, public, [i, *(j for j in range(8) if j != i)]) for i in range(8)
    )


def test_a_tied_table_keeps_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.5 < tied(monkeypatch) <= 1 + 1e-9


def test_contract_catches_a_tied_weight_whose_cross_term_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    none = torch.zeros((), dtype=torch.float64)
    monkeypatch.setattr(Tied, "cross", lambda self: Squares(none, none))
    assert tied(monkeypatch) > 1.001


def pairs(monkeypatch: pytest.MonkeyPatch) -> float:
    """Records in two directions, in pairs: without the first, every micro-batch of two is made up anew."""
    directions = torch.eye(2, dtype=torch.float64)
    x = torch.cat([directions[[0, 0, 1, 1]] for _ in range(6)])
    data, public = (x, torch.full((24,), 9.0).double()), (0.01 * x[:4], torch.zeros(4).double())

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(2, 1, bias=False).double()

    return removed(monkeypatch, model, data, public, list(range(24)), loading=Loading(micro_batch=2))


def test_micro_batches_keep_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.5 < pairs(monkeypatch) <= 1 + 1e-9


def test_contract_catches_a_micro_batch_that_clips_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each record, and then the sum of each micro-batch: a record moves all that come after it."""
    right = _Norms.add

    def twice(self: _Norms, factors: Tensor, total: RunningSum) -> None:
        before, weight = total.value.clone(), total.weight.clone()
        right(self, factors, total)
        origin = self._question.origin
        moved = total.value - before - (total.weight - weight) * (0 if origin is None else origin)
        shorter = (0.05 / moved.norm()).clamp(max=1)
        total.value = before + shorter * (total.value - before)
        total.weight = weight + shorter * (total.weight - weight)

    monkeypatch.setattr(_Norms, "add", twice)
    assert pairs(monkeypatch) > 1.001
