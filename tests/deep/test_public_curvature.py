"""Noise that the curvature of public records shapes, on a network: public records alone decide the bands."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deep.networks import blobs, loss, mlp, vector
from tests.deep.test_checkpoints import Cut, cut_after, make

from sidelight.clipping import Diagonal
from sidelight.deep import Checkpoints, PrivateStep, PublicTraining, Trainer
from sidelight.errors import InputError
from sidelight.methods import BandedNoise, adadps, coupling, dp_sgd
from sidelight.privacy.ledger import Ledger
from sidelight.problems.network_public import NetworkGuide

PRIVATE, PUBLIC = blobs(200, 1), blobs(60, 2)
SHAPED = BandedNoise(bands=4, cycle=4, sampled=False, curvature="public")


def planned(private: Any = PRIVATE, public: Any = PUBLIC, noise: BandedNoise = SHAPED) -> Any:
    """What was charged."""
    trainer = make(mlp(), None, method=dp_sgd(noise=noise, step_size=2.0))
    return trainer.fit(private, public).privacy_.plan


def test_public_records_alone_decide_the_bands() -> None:
    plan = planned()
    assert plan == planned(private=(PRIVATE[0] * 9, PRIVATE[1] * 0))
    assert plan != planned(public=(PUBLIC[0] * 9, PUBLIC[1]))
    assert plan != planned(noise=BandedNoise(bands=4, cycle=4, sampled=False))


def test_the_curvatures_are_those_of_the_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    x = blobs(50, 3, torch.float64)[0] * torch.tensor([3.0, 1.0, 0.5, 0.1])
    model = torch.nn.Linear(4, 1, bias=False).double()
    trainer = Trainer(
        model, lambda outputs, y: (outputs[:, 0] - y) ** 2 / 2, method=dp_sgd(noise=SHAPED), epsilon=3,
        delta=1e-4, expected_batch_size=20, steps=4, random_state=1,
    )  # fmt: skip
    guides = list[NetworkGuide]()
    honest = NetworkGuide.spectrum
    monkeypatch.setattr(
        NetworkGuide, "spectrum", lambda self, metric=None: guides.append(self) or honest(self)
    )
    trainer.fit((x + 1, x.sum(1)), (x, x.sum(1)))
    assert guides
    public = guides[0].batch[0]
    values, shares = guides[0].spectrum()
    assert values == pytest.approx(torch.linalg.eigvalsh(public.T @ public / len(public)), rel=1e-4)
    assert shares.sum() == pytest.approx(1)


def test_the_curvatures_under_a_metric_are_those_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdaDPS multiplies an error by I − ηSH, which has the eigenvalues of √S·H·√S."""
    x = blobs(50, 3, torch.float64)[0] * torch.tensor([3.0, 1.0, 0.5, 0.1])
    model, seen = torch.nn.Linear(4, 1, bias=False).double(), list[Any]()
    trainer = Trainer(
        model, lambda outputs, y: (outputs[:, 0] - y) ** 2 / 2, method=adadps().with_parts(noise=SHAPED),
        epsilon=3, delta=1e-4, expected_batch_size=20, steps=4, random_state=1,
    )  # fmt: skip
    honest = NetworkGuide.spectrum
    monkeypatch.setattr(
        NetworkGuide, "spectrum", lambda self, metric: seen.append((self, metric)) or honest(self, metric)
    )
    trainer.fit((x + 1, x.sum(1)), (x, x.sum(1)))
    guide, metric = seen[0]
    assert isinstance(metric, Diagonal)
    (public, _), root = guide.batch, torch.as_tensor(metric.scale).sqrt()
    values, shares = guide.spectrum(metric)
    hessian = root[:, None] * (public.T @ public / len(public)) * root
    assert np.sort(values) == pytest.approx(torch.linalg.eigvalsh(hessian).numpy(), rel=1e-3)
    assert shares.sum() == pytest.approx(1)


def test_the_step_of_an_optimizer_decides_how_fast_noise_is_forgotten() -> None:
    plans = [
        make(mlp(), None, method=dp_sgd(noise=SHAPED), optimizer=lambda p, lr=lr: torch.optim.SGD(p, lr=lr))
        .fit(PRIVATE, PUBLIC)
        .privacy_.plan
        for lr in (0.01, 10.0)
    ]
    assert plans[0] != plans[1]


def test_a_resumed_run_has_the_curvature_that_it_began_with(tmp_path: Path) -> None:
    """Measured before the warm start, from a batch that was augmented by chance."""
    options: dict[str, Any] = {
        "method": coupling().with_parts(noise=SHAPED), "warm_up": PublicTraining(steps=3),
        "public_batch_size": 20, "public_augment": lambda x: x + torch.randn_like(x) / 10,
    }  # fmt: skip
    whole = make(mlp(), tmp_path / "whole", **options).fit(PRIVATE, PUBLIC)
    with pytest.raises(Cut):
        make(mlp(), tmp_path / "cut", optimizer=cut_after(4), **options).fit(PRIVATE, PUBLIC)
    saved = Checkpoints(tmp_path / "cut").read()
    assert saved is not None and saved["curvatures"] is not None
    again = make(mlp(), tmp_path / "cut", **options).fit(PRIVATE, PUBLIC, resume=True)
    assert torch.equal(vector(again.model), vector(whole.model))
    assert again.privacy_.plan == whole.privacy_.plan


def test_without_public_records_nothing_is_charged(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger") as ledger:
        ledger.register("people", relation="add-or-remove-one", epsilon=5, delta=1e-4)
    options: dict[str, Any] = {"method": dp_sgd(noise=SHAPED), "ledger": str(tmp_path / "ledger")}
    with pytest.raises(InputError, match="public"):
        make(mlp(), None, **options).fit(PRIVATE)
    with pytest.raises(InputError, match="Trainer"):
        PrivateStep(
            mlp(), loss, n_private=200, n_public=60, expected_batch_size=20, epsilon=3, steps=6, **options
        )
    with Ledger.open(tmp_path / "ledger") as ledger:
        assert not ledger.charges("people")
