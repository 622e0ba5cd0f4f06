"""The server: whom to trust with the updates. `flwr run .` starts it, and as many phones as configured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from sidelight.federated.flower_strategy import SidelightStrategy
from sidelight.methods.declare import METHODS
from sidelight.methods.recipe import Recipe
from sidelight.report import card_of, write_report

from .task import accuracy, start

app = ServerApp()
NAMES = ("weight", "bias")


def scored(_: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": accuracy([array.numpy() for array in arrays.values()])})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    size, local = float(config["clip-norm"]), 0.1  # clients take steps of 0.1
    made = METHODS[str(config["method"])](
        clip_norm=size * local, step_size=float(config["step-size"]) / local
    )
    if not isinstance(made, Recipe):
        raise SystemExit(f"{config['method']} is no gradient method")
    nodes = len(list(grid.get_node_ids()))
    strategy = SidelightStrategy(
        method=made, epsilon=float(config["epsilon"]), delta=float(config["delta"]),
        expected_cohort=float(config["cohort"]) * nodes, min_clients=nodes,
    )  # fmt: skip
    first = ArrayRecord({name: Array(array) for name, array in zip(NAMES, start(), strict=True)})
    result = strategy.start(grid, first, num_rounds=int(config["rounds"]), timeout=600.0, evaluate_fn=scored)
    final = [array.numpy() for array in result.arrays.values()]
    print(f"accuracy of the released model on test images: {accuracy(final):.4f}")
    if config["out"]:
        folder = Path(str(config["out"]))
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "model.npz", weight=final[0], bias=final[1])
        card = card_of(strategy.server, title="Digits on phones")
        card.write(folder / "privacy.json")
        write_report(card, folder / "report.html")
