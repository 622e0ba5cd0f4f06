"""Peers, each in an environment of its own: arrays go there and come back as .npz files.

`make peers-env` sets the environments up, at the versions of ebm.txt, diffprivlib.txt and
xgboost.txt.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.peers.splits import Array, Split, scaled

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEERS = {"DP-EBM": "ebm", "diffprivlib": "diffprivlib", "DP-XGBoost": "xgboost"}
MANY_CLASSES = ("diffprivlib",)  # the others have two
DELTA = 1e-6


def interpreter(peer: str) -> Path:
    return ROOT / f".venv-peers-{PEERS[peer]}" / "bin" / "python"


def installed(peer: str) -> bool:
    return interpreter(peer).exists()


def missing() -> str:
    """What to do about the peers that are not there; nothing if all are."""
    gone = [peer for peer in PEERS if not installed(peer)]
    return f"not installed, and left out: {', '.join(gone)} (make peers-env)" if gone else ""


def predict(peer: str, data: Split, *, epsilon: float, seed: int) -> tuple[Array, float]:
    """A peer's prediction for the test rows, and the CPU seconds of its fit."""
    public = data.target(data.public)
    settings = {
        "y": data.target(data.private), "target_bounds": np.array([public.min(), public.max()], dtype=float),
        "regression": data.regression, "epsilon": epsilon, "delta": DELTA, "seed": seed,
    }  # fmt: skip
    rows = _columns(data) if peer == "DP-EBM" else _matrices(data)
    return _call(peer, {**settings, **rows})


def _columns(data: Split) -> dict[str, Any]:
    """Columns as they are; the range of each number in the public rows."""
    found = data.features(data.public)
    texts = set(data.texts)
    rows: dict[str, Any] = {}
    for part, frame in (("train", data.private), ("test", data.test)):
        for k, name in enumerate(found):
            column = frame[name].to_numpy()
            rows[f"{part}_{k}"] = column.astype(str if name in texts else float)
    # A range of no length is refused: such a column is all zeros, say, in the public rows.
    lows = [np.nan if name in texts else float(found[name].min()) for name in found]
    highs = [np.nan if name in texts else float(found[name].max()) for name in found]
    wide = [high if not high <= low else low + 1.0 for low, high in zip(lows, highs, strict=True)]
    return {**rows, "low": np.array(lows), "high": np.array(wide)}


def _matrices(data: Split) -> dict[str, Any]:
    public, private, test = scaled(data)
    return {"train": private, "test": test, "norm": float(np.linalg.norm(public, axis=1).max())}


def _call(peer: str, arrays: Mapping[str, Any]) -> tuple[Array, float]:
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name) / "in.npz", Path(name) / "out.npz"
        np.savez(source, **arrays)
        script = HERE / f"run_{PEERS[peer]}.py"
        done = subprocess.run(
            [interpreter(peer), "-W", "ignore", script, source, target],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{peer} failed:\n{done.stderr}")
        with np.load(target, allow_pickle=False) as made:
            return made["prediction"].astype(float), float(made["seconds"])
