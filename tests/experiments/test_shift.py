"""Public rows of another kind."""

import numpy as np
from experiments.shift import shifts


def test_public_rows_are_of_the_kind_and_private_ones_of_all_kinds() -> None:
    data = shifts.split(shifts.TOY["toy, job"], 0, shifted=True)
    assert set(data.public.job) == {"nurse"}
    assert set(data.private.job) == set(data.test.job) == {"nurse", "smith", "clerk"}
    assert not set(data.public.index) & set(data.private.index)


def test_labels_are_turned() -> None:
    rows = shifts.split(shifts.Shift("toy", ""), 0, shifted=False).public
    turned = shifts._turned(rows, np.array([True] * len(rows)))
    assert (turned["target"] != rows["target"]).all()
