"""Correct models are exact, by the route that the page names; mistakes are caught or computed correctly."""

import copy
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.mistakes.mistake_list import CAPTURED, COUNTER, Keeps, Model
from tests.mistakes.more_mistakes import ELSEWHERE, MISTAKES
from tests.mistakes.page import PAGE, page
from tests.mistakes.tools import clipped_one_by_one
from tests.mistakes.zoo import CASES, Case
from tests.private_values import value_of
from torch import Tensor, nn

from sidelight.errors import AssumptionError
from sidelight.methods.parts import Flat
from sidelight.oracles.network.batches import Batch, take, tensors
from sidelight.oracles.network.network_oracle import NetworkOracle

CLIP, COUNT = 0.5, 8
pytestmark = pytest.mark.filterwarnings("ignore:.*enable_nested_tensor", "ignore:There is a performance drop")


@pytest.fixture(autouse=True)
def _quiet_routes() -> Iterator[None]:
    log = logging.getLogger("sidelight")
    level = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(level)


def test_the_list_has_at_least_150_correct_models() -> None:
    assert len(CASES) >= 150


@pytest.mark.parametrize("name", CASES)
def test_a_correct_model_is_exact_and_takes_its_route(name: str) -> None:
    _computed_correctly(CASES[name])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_by_name_or_computed_correctly(name: str) -> None:
    made = MISTAKES[name]
    if not made.keyword:
        _computed_correctly(made.case)
        return
    before = dict(COUNTER), len(CAPTURED), Model.shared, Keeps.kept
    with pytest.raises(AssumptionError, match=made.keyword) as refused:
        _oracle(made.case).check(made.case.batch(COUNT, 1))
    assert "\n" not in str(refused.value)
    assert (dict(COUNTER), len(CAPTURED), Model.shared, Keeps.kept) == before


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.mistakes.page`"


def test_tests_that_the_page_names_exist() -> None:
    assert all((PAGE.parents[1] / where).exists() for _, where in ELSEWHERE.values())


def _oracle(case: Case) -> NetworkOracle:
    torch.manual_seed(0)
    model = case.make()
    return NetworkOracle(model, case.loss, example=case.batch(8, 2), pass_size=COUNT, draw_seed=lambda: 5)


def _computed_correctly(case: Case) -> None:
    oracle, batch = _oracle(case), case.batch(COUNT, 1)
    oracle.check(batch)  # in training mode, with dropout
    assert (oracle.route.kind, case.why in oracle.route.reason) == (case.route, True), oracle.route
    assert bool(oracle.route.reason) == (case.route != "layers")
    _moves_at_most_its_bound(oracle, batch)
    if not case.random:
        if any(getattr(m, "dropout", 0.0) or isinstance(m, nn.Dropout) for m in oracle.model.modules()):
            oracle.model.eval()
        _is_exact(oracle, case, batch)


def _is_exact(oracle: NetworkOracle, case: Case, batch: Batch) -> None:
    """Compared with gradients of single records: in float64, unless the model itself asks for float32."""
    model, loss = _double(oracle.model), case.loss
    loss = _double(loss) if isinstance(loss, nn.Module) else loss
    wide = torch.utils._pytree.tree_map(lambda x: x.double() if x.is_floating_point() else x, batch)
    try:
        want = clipped_one_by_one(model, loss, wide, CLIP)
    except RuntimeError:
        want = clipped_one_by_one(oracle.model, case.loss, batch, CLIP)
    got = _total(oracle, batch)
    off = float((got.double() - want.double()).norm()) / float(want.norm())
    assert off <= 1e-4, f"the sum is off by {off:.3g} of its length, by route {oracle.route.kind}"


def _double(model: Any) -> Any:
    return copy.deepcopy(model).double()


def _moves_at_most_its_bound(oracle: NetworkOracle, batch: Batch) -> None:
    """From one seed, a record more moves the sum by C at most, and another one by 2 C."""
    whole = _total(oracle, batch)
    fewer = _total(oracle, take(batch, slice(0, COUNT - 1)))
    assert float((whole - fewer).norm()) <= CLIP * (1 + 1e-5)
    far = torch.utils._pytree.tree_map(torch.clone, batch)
    for part in tensors(far):
        if part.is_floating_point():
            part[-1] = 1e6
    assert float((_total(oracle, far) - whole).norm()) <= 2 * CLIP * (1 + 1e-5)


def _total(oracle: NetworkOracle, batch: Batch) -> Tensor:
    found = oracle.clipped_sum(batch, clip=Flat(CLIP), relation="add-or-remove-one")
    return value_of(found).clone()
