"""This tree against another revision of it, in one run: is anything slower?

    python -m benchmarks.against REV [--rounds 7] [--cells TEXT ...] [--markdown FILE]

Each tree has a process of its own, which sets every cell up once. Cells are then timed in turns (theirs,
ours, theirs, ours, …), so that other load on the machine affects both alike. A time is processor time,
of one thread, and the least of all rounds: other work only ever adds. Cells use what both trees have:
estimators by a method with its number of steps fixed, and the steps of `benchmarks.steps`.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
import importlib  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from dataclasses import replace  # noqa: E402
from functools import cache, partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import scipy.sparse as sp  # noqa: E402

ROOT = Path(__file__).parents[1]
ROWS, FEATURES, PUBLIC = 32_561, 123, 256  # the shape and the density of a9a
LIMIT = 1.05
Cell = Callable[[], object]


@cache
def table(sparse: bool) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = (rng.random((ROWS, FEATURES)) < 0.113).astype(np.float64)
    y = X @ rng.standard_normal(FEATURES) + rng.standard_normal(ROWS) > 0
    return (sp.csr_array(X) if sparse else X), y


def fit(name: str, sparse: bool = False, **settings: Any) -> Cell:
    """A fit of a linear classifier: bounding, planning, training, statement."""
    from sidelight import PrivateClassifier

    X, y = table(sparse)
    method = getattr(importlib.import_module("sidelight"), name)(**settings)
    model = PrivateClassifier(method, epsilon=0.5, delta=1e-8, loss="logistic")
    return lambda: model.fit(X[PUBLIC:], y[PUBLIC:], X_public=X[:PUBLIC], y_public=y[:PUBLIC])


def step(model: str) -> Cell:
    """A whole private step of a network, with a quarter of the benchmark's batch."""
    import torch

    from benchmarks.models import MODELS
    from benchmarks.steps import STEPS

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return STEPS["sidelight, dp_sgd"](replace(MODELS[model], batch=MODELS[model].batch // 4))


CELLS: dict[str, Callable[[], Cell]] = {
    "dp_sgd, 64 full batches": partial(fit, "dp_sgd", steps=64),
    "dp_sgd, 64 full batches, CSR": partial(fit, "dp_sgd", True, steps=64),
    "dp_sgd, 300 batches of 1024": partial(fit, "dp_sgd", steps=300, expected_batch_size=1024),
    "dope_sgd, 64 full batches": partial(fit, "dope_sgd", steps=64),
    "coupling, 64 full batches": partial(fit, "coupling", steps=64),
    "public_whitening": partial(fit, "public_whitening"),
    "objective_perturbation": partial(fit, "objective_perturbation"),
    "output_perturbation": partial(fit, "output_perturbation"),
    "only_public": partial(fit, "only_public"),
    **{f"network: {model}": partial(step, model) for model in ("MLP, 1.3 M", "CNN", "WRN-16-4, B = 8")},
}


# ---------------------------------------------------------------------------------------------------
# a tree's own process: a cell's name comes in, seconds go out


def serve() -> None:
    warnings.simplefilter("ignore")
    ready: dict[str, Cell] = {}
    for line in sys.stdin:
        name = line.rstrip("\n")
        try:
            if name not in ready:
                ready[name] = CELLS[name]()
                ready[name]()  # caches are warm afterwards
            began = time.process_time()
            ready[name]()
            answer: float | str = time.process_time() - began
        except Exception as error:  # of an older tree, which may not have this cell
            answer = f"{type(error).__name__}: {error}".split("\n")[0]
        print(json.dumps(answer), flush=True)


class Tree:
    """A checkout, and its process."""

    def __init__(self, root: Path) -> None:
        paths = os.pathsep.join((str(root / "src"), str(root)))
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def seconds(self, cell: str) -> float | str:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        print(cell, file=self._process.stdin, flush=True)
        answer: float | str = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def compare(ours: Tree, theirs: Tree, cell: str, rounds: int) -> list[str]:
    """A line of the table."""
    best = {"ours": float("inf"), "theirs": float("inf")}
    for _ in range(rounds):
        for name, tree in (("theirs", theirs), ("ours", ours)):
            taken = tree.seconds(cell)
            if isinstance(taken, str):
                return [cell, "", "", f"{name}: {taken}"]
            best[name] = min(best[name], taken)
    ratio = best["ours"] / best["theirs"]
    mark = " (slower)" if ratio > LIMIT else ""
    return [cell, f"{best['theirs']:.3f}", f"{best['ours']:.3f}", f"{ratio:.2f}{mark}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("revision")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cells", nargs="*", default=[""], help="those whose names have one of these texts")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    git = ("git", "-C", str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "tree"
        subprocess.run(
            [*git, "worktree", "add", "--quiet", "--detach", str(there), options.revision], check=True
        )
        ours, theirs = Tree(ROOT), Tree(there)
        try:
            lines = [["cell", options.revision, "this tree", "ratio"], ["---", "--:", "--:", "--:"]]
            for cell in CELLS:
                if any(text in cell for text in options.cells):
                    lines.append(compare(ours, theirs, cell, options.rounds))
                    print(" | ".join(lines[-1]), flush=True)
        finally:
            ours.close()
            theirs.close()
            subprocess.run([*git, "worktree", "remove", "--force", str(there)], check=True)
    if options.markdown:
        options.markdown.write_text("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
