"""The benchmark of language models runs, on a model of a moment, and its page says what it found."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("opacus")

from benchmarks.language import MODELS, SMALL, memory_of, steps_of, table, times_of


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.filterwarnings("ignore")  # of Opacus' hooks
def test_a_model_is_measured_and_its_table_written() -> None:
    found = times_of(SMALL, 1)
    assert not found["refused"] and set(found["ms"]) == set(steps_of(SMALL))
    text = table(SMALL, found, {name: memory_of(SMALL, name) for name in found["ms"]})
    assert text.count("sidelight / plain") == 2 and text.count("sidelight / Opacus") == 2
    assert "the examination of the model, once" in text


def test_goals_are_missed_where_they_are() -> None:
    found = {"ms": {"plain": 10.0, "sidelight": 13.1, "Opacus, ghost": 13.1}, "refused": {}, "first": 40.0}
    memory = {"plain": [10.0, 0.0], "sidelight": [12.0, 2.0], "Opacus, ghost": [11.0, 0.0]}
    lines = table(MODELS[0], found, memory).splitlines()
    assert [line for line in lines if line.startswith("- MISSED")] == [
        "- MISSED: time, sidelight / plain = 1.31 (goal 1.3)",
        "- MISSED: memory, sidelight / Opacus = 1.09 (goal 1.0)",
    ]
    assert "- met: memory of a step alone, sidelight / Opacus = 0.91 (goal 1.0)" in lines
