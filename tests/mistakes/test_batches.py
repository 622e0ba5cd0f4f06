"""Mistakes by which one record changes what another contributes: refused, or each record is taken alone."""

from typing import Any

import torch
from tests.mistakes.tools import entropy, labeled
from tests.private_values import value_of
from torch import Tensor, nn

from sidelight.methods.parts import Flat
from sidelight.oracles.network.network_oracle import NetworkOracle

CLIP = 0.1


def _total(oracle: NetworkOracle, batch: Any) -> Tensor:
    return value_of(oracle.clipped_sum(batch, clip=Flat(CLIP), relation="add-or-remove-one")).clone()


def test_a_flattened_gather_with_an_index_out_of_range_reads_no_other_record() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor, place: Tensor) -> Tensor:
            words = self.embed(x.view(-1, 2))
            return self.head(words[torch.arange(len(x)) * 3 + place].tanh())

    torch.manual_seed(0)
    (x, y), place = labeled(12), torch.arange(12) % 3
    oracle = NetworkOracle(Picks(), entropy, example=((x[:6], place[:6]), y[:6]))
    bad = place.clone()
    bad[3] = 5  # a word of the next record
    other = x.clone()
    other[4] = 100.0
    moved = float((_total(oracle, ((other, bad), y)) - _total(oracle, ((x, bad), y))).norm())
    assert moved <= 2 * CLIP * (1 + 1e-6)
