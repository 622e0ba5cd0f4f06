"""experiments.coupling_text on invented states: every way of training runs, and the table is made."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from experiments.coupling_text import __main__ as command  # noqa: E402
from experiments.coupling_text import linear, report, tuning  # noqa: E402
from experiments.coupling_text.encoding import Dataset, Encoded  # noqa: E402
from experiments.sweep import read  # noqa: E402

ROOT = Path(__file__).parents[2]
WIDTH, HEADS, ROWS = 8, 2, 240


def invented() -> tuple[Dataset, Encoded]:
    """The label is the sign of a token's first number."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 6, ROWS)
    ends = np.cumsum(lengths)
    y = rng.integers(0, 2, ROWS)
    states = rng.normal(size=(int(ends[-1]), WIDTH))
    states[:, 0] += np.repeat(4.0 * y - 2, lengths)
    means = np.add.reduceat(states, np.concatenate([[0], ends[:-1]])) / lengths[:, None]
    features = (means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)
    places = np.arange(ROWS)
    data = Dataset(["…"] * ROWS, y.astype(np.int64), places[:180], places[180:])
    return data, Encoded(features, states.astype(np.float16), ends.astype(np.int64), 1.0)


def blocks(depth: int) -> tuning.Top:
    torch.manual_seed(0)
    shapes = {name: (WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
    shapes |= {"up": (2 * WIDTH, WIDTH), "down": (WIDTH, 2 * WIDTH), "norm1": (WIDTH,), "norm2": (WIDTH,)}
    return tuning.Top([tuning.Block(_weights(shapes), HEADS, 1e-12) for _ in range(depth)], WIDTH)


def _weights(shapes: dict[str, Any]) -> dict[str, Any]:
    weights: dict[str, Any] = {}
    for mine, theirs in tuning._NAMES.items():
        norm = mine.startswith("norm")
        weights[f"{theirs}.weight"] = torch.ones(WIDTH) if norm else 0.3 * torch.randn(shapes[mine])
        weights[f"{theirs}.bias"] = torch.zeros(shapes[mine][0])
    return weights


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    made = invented()
    monkeypatch.setattr(command, "prepared", lambda name, cache: made)
    monkeypatch.setattr(command, "states_of", lambda kind, name, cache: made[1])
    monkeypatch.setattr(command, "pretrained", lambda depth: blocks(1 + depth // 6))
    monkeypatch.setattr(tuning, "with_lora", lambda model: model)  # peft is not there
    short = tuning.PlainTraining((1e-4, 3e-4), tried=3, free=12, epochs=5)
    monkeypatch.setattr(tuning, "PLAIN", {1: short, 6: short})
    monkeypatch.setattr(tuning, "STEP_SIZES", (0.1, 0.3))
    monkeypatch.setattr(linear, "STEPS", 5)
    for cached in (command.rate_of, command.step_size, command.tuned_features):
        cached.cache_clear()


@pytest.mark.usefixtures("small")
def test_every_way_of_training_gives_a_line(tmp_path: Path) -> None:
    tried = {
        "features": ("FullPriv", "OnlyPub", "Coupling", "Ours", "Opacus", "NonPriv"),
        "tuned": ("OnlyPub", "Ours"),
        "tuned_all": ("Ours",),
        "lora": ("FullPriv", "DP-SGD, warm"),
        "lora_all": ("OnlyPub", "Coupling", "DOPE", "Opacus", "NonPriv"),
        "full": ("OnlyPriv", "OnlyPub", "AdaMix", "DPMD", "Ours"),
    }
    runs = []
    for kind, columns in tried.items():
        for column in columns:
            job = {"dataset": "sst2", "kind": kind, "column": column, "r_pub": 0.4, "epsilon": 8.0, "seed": 0}
            found = command.run(job, tmp_path)
            spent = float(found["spent"])
            known = {"OnlyPub": 0.0, "NonPriv": np.inf}
            assert spent == known[column] if column in known else 0 <= spent <= 8.0
            runs.append({name: str(value) for name, value in (job | found).items()})
    scores = {(row["kind"], row["column"]): float(row["accuracy"]) for row in runs}
    assert scores["features", "Ours"] > 0.8 and scores["features", "NonPriv"] > 0.8
    text = report.table(runs)
    assert "91.17" in text and "features, linear model | 0.4 | 8" in text


def test_a_text_is_its_own_padding() -> None:
    """Zeros behind a text change nothing: padded records of a batch and texts of one length agree."""
    data, made = invented()
    model = blocks(2)
    model.in_half = False
    rows = tuning.features(model, made)
    texts = tuning.Texts(made, data.y, np.arange(20))
    with torch.inference_mode():
        padded = model.pooled(torch.stack([texts[k][0] for k in range(20)]))
    expected = torch.nn.functional.normalize(padded).numpy()
    assert rows[:20] == pytest.approx(expected, abs=1e-5)


def test_public_texts_that_tune_the_encoder_do_not_guide() -> None:
    seen, rest = command.shared(np.arange(30, 60))
    assert len(seen) == 20 and set(seen) | set(rest) == set(range(30, 60)) and not set(seen) & set(rest)


def test_the_page_is_that_of_the_committed_runs() -> None:
    page = (ROOT / "docs" / "reproductions" / "coupling_text.md").read_text()
    written = re.sub(r"(<!-- verdicts -->).*<!-- end of verdicts -->", r"\1", page, flags=re.S)
    assert written == report.page(read(ROOT / "experiments" / "coupling_text" / "runs.csv")), (
        "--docs makes it anew"
    )
