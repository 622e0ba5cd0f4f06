"""The language experiment on an invented text: everything runs, and no private word decides what is known."""

from pathlib import Path

import pytest
import torch
from experiments.dope_wikitext import __main__ as command
from experiments.dope_wikitext import corpus, starts
from experiments.dope_wikitext.report import fine_tuning, page


def invented(part: str, *, private: str = "") -> list[str]:
    """Four thousand words in a pattern; `private` is put into a sequence that is not public."""
    words = [f"w{(7 * i + i // 35) % 40}" for i in range(4200 if part == "train" else 700)]
    if private and part == "train":
        words[PRIVATE * 35 : PRIVATE * 35 + 35] = [private] * 35
    return words


PRIVATE = 4  # with seed 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(corpus, "_text", invented)
    monkeypatch.setattr(corpus, "_sentences", lambda: invented("films"))
    monkeypatch.setattr(corpus, "WORDS", 60)
    monkeypatch.setattr(corpus, "PUBLIC_SHARE", 0.4)
    monkeypatch.setattr(corpus, "TEST_EVERY", 1)
    monkeypatch.setattr(starts, "WARM_STEPS", 6)
    monkeypatch.setattr(command, "BATCH", 12)
    monkeypatch.setattr(command, "WARM_STARTS", tmp_path)
    for one in (command._data, command._warm, command._rehearsal, command._chosen):
        one.cache_clear()


def test_a_private_word_changes_neither_the_vocabulary_nor_the_public_records(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = corpus.split(0)
    monkeypatch.setattr(corpus, "_text", lambda part: invented(part, private="secret"))
    after = corpus.split(0)
    changed = (before.private[1] != after.private[1]).any(1)
    assert int(changed.sum()) == 1  # it is private with this seed
    assert bool((after.private[1][changed] == corpus.UNKNOWN).all())
    for name in ("public", "test"):
        one, other = getattr(before, name), getattr(after, name)
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_a_record_is_alone(small: None) -> None:
    inputs, targets = corpus.split(0).private
    assert bool((inputs[:, 0] == corpus.BEGIN).all())
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_command_runs_what_is_missing_and_writes_the_page(small: None, tmp_path: Path) -> None:
    page_file = tmp_path / "page.md"
    options = ["--seeds", "0", "--out", str(tmp_path), "--cache", str(tmp_path)]
    command.main(["--only", "only_public", *options, "--docs", str(page_file)])
    assert "{" not in page_file.read_text()
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 2
    for method in ("dp_sgd, cold", "dope_sgd"):
        found = command.run({"public": "wikitext", "method": method, "epsilon": 1.0, "seed": 0})
        assert set(found) == set(command.RESULTS)
        assert 0 < float(found["spent"]) <= 1 and float(found["perplexity"]) > 1


def test_the_order_is_told_from_the_runs() -> None:
    def row(method: str, perplexity: float, seed: int) -> dict[str, str]:
        return {
            "public": "wikitext", "method": method, "epsilon": "1.0", "seed": str(seed), "seconds": "1",
            "perplexity": str(perplexity), **dict.fromkeys((*command.DIAGNOSED, "rehearsed", "unknown"), ""),
        }  # fmt: skip

    found = {"dp_sgd, cold": 9, "dp_sgd, warm": 7, "dope_sgd": 8}
    runs = [row(method, value, seed) for seed in (0, 1) for method, value in found.items()]
    text = page(runs)
    assert "ε = 1 (2 seeds): warm below cold: as in the paper; DOPE-SGD below DP-SGD, warm: **not**" in text


def test_fine_tuning_is_told_by_budget_and_split() -> None:
    def row(kind: str, column: str, epsilon: str, seed: int, accuracy: float) -> dict[str, str]:
        return {
            "dataset": "sst2", "kind": kind, "column": column, "r_pub": "0.05", "epsilon": epsilon,
            "seed": str(seed), "accuracy": str(accuracy),
        }  # fmt: skip

    runs = [row("lora", "OnlyPub", "2.0", 0, 0.7), row("lora", "DOPE", "0.5", 1, 0.8125)]
    runs += [row("lora", "DP-SGD, warm", "0.5", seed, 0.8 + 0.01 * seed) for seed in (0, 1)]
    lines = fine_tuning(runs).splitlines()
    assert lines[3] == "| 0.5 | 70.0 | 80.5 (80.0, 81.0) | 81.2 | not run | not run | 21.29 | 19.14 |"
    assert lines[2].count("not run") == 4
