"""A trained network gets the same report."""

import functools
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_page import Page

from sidelight.errors import NotPrivateWarning
from sidelight.report import Card, card_of, html
from sidelight.report.figures import training_charts, training_constants
from sidelight.report.guarantee import guarantee

pytest.importorskip("torch")


@functools.cache
def trained(method: str) -> Any:
    from tests.deep.networks import blobs, loss, mlp

    from sidelight.deep import Trainer

    trainer = Trainer(
        mlp(), loss, method=method, epsilon=2.0, delta=1e-5, expected_batch_size=40, steps=12, validation=0.3,
        random_state=1, progress=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotPrivateWarning)
        return trainer.fit(blobs(400, 0), blobs(60, 1))


@pytest.mark.parametrize("method", ["dope_sgd", "ppsgd", "only_public", "non_private"])
def test_a_trainer_has_a_card_and_a_page(method: str, tmp_path: Path) -> None:
    card = card_of(trained(method), title="Three blobs")
    card.write(tmp_path / "privacy.json")
    assert Card.read(tmp_path / "privacy.json") == card
    page = Page(html(card))
    kinds = {"only_public": "unused", "non_private": "none"}
    assert guarantee(card).kind == kinds.get(method, "private")
    assert "Three blobs" in page.words and "torch" in card.versions
    if method == "non_private":
        assert "No guarantee" in page.words and "Nothing of this is protected" in page.words


def test_the_route_of_gradients_and_its_reason_are_shown() -> None:
    card = card_of(trained("dope_sgd"))
    assert "Per-record gradients were taken by layer, many records at a time." in Page(html(card)).words
    card.history[0] |= {"route": "loop", "route_reason": "it decides by values"}
    assert "taken by one call per record: it decides by values." in Page(html(card)).words
    del card.history[0]["route"]
    assert "Per-record gradients" not in Page(html(card)).words


def test_public_validation_is_shown_over_steps_and_as_the_score() -> None:
    card = card_of(trained("dope_sgd"))
    keys = {chart.key for chart in training_charts(card)}
    assert keys >= {"budget", "public-gradient-norm", "validation-loss"}
    assert {"noise multiplier", "clip norm"} <= {name for name, _ in training_constants(card)}
    assert card.scores["name"] == "accuracy"
    assert card.scores["public_validation"] == trained("dope_sgd").history_[-1]["validation_accuracy"]
    assert "on public validation records" in Page(html(card)).words
