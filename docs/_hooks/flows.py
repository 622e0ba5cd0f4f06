"""make flows: the two long ways through the code, drawn from a trace.

    python docs/_hooks/flows.py     writes docs/images/flow-*.svg and the numbers in docs/design.md

A call is an edge from the file of the caller to that of the function, where both are of sidelight and differ.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import FrameType

import numpy as np
import pandas as pd

import sidelight

ROOT = Path(__file__).parents[2]
PACKAGE = str(Path(sidelight.__file__).parent) + "/"

# What both flows go through, in this order: a step and the function that begins it.
SPINE = ("problem", "plan", "contract", "loop", "release")
_STEPS = {
    ("methods/task.py", "Task.problem"): "problem",
    ("problems/network.py", "NetworkProblem.__init__"): "problem",
    ("methods/recipe.py", "Recipe.plan_of"): "plan",
    ("privacy/contract.py", "Contract.begin"): "contract",
    ("methods/recipe.py", "Loop.take_steps"): "loop",
    ("privacy/release.py", "release"): "release",
}
_HOMES = {"methods/task.py": "problems/base.py"}  # where to draw a step
_BANDS = ("faces", "tables", "deep", "methods", "problems", "oracles", "data", "leaves", "privacy")
_LEAVES = (
    "arrays", "augment", "clipping", "errors", "familiar_words", "files", "losses", "numbers", "scoring",
    "solvers",
)  # fmt: skip
_FACES = ("estimators", "observers", "report")
_WIDTH, _LETTER, _LINE = 960, 7.0, 26


@dataclass
class Trace:
    """Files in the order of their first call, calls between files, and the steps of the spine."""

    files: list[str] = field(default_factory=list)
    edges: Counter[tuple[str, str]] = field(default_factory=Counter)
    spine: dict[str, str] = field(default_factory=dict)  # step: its file, in the order of first calls

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        name = _file(frame)
        if event != "call" or name is None:
            return
        if name not in self.files:
            self.files.append(name)
        step = _STEPS.get((name, frame.f_code.co_qualname))
        if step and (step != "release" or "loop" in self.spine):  # others are beside the method
            self.spine.setdefault(step, _HOMES.get(name, name))
        caller = frame.f_back
        while caller is not None and _file(caller) is None:
            caller = caller.f_back
        source = None if caller is None else _file(caller)
        if source is not None and source != name:
            self.edges[source, name] += 1


def _file(frame: FrameType) -> str | None:
    """The file of a frame within sidelight; None for other code, imports, and names that load lazily."""
    path, function = frame.f_code.co_filename, frame.f_code.co_name
    if not path.startswith(PACKAGE) or function == "<module>":
        return None
    name = path[len(PACKAGE) :]
    return None if name.endswith("__init__.py") or name == "lazy_names.py" else name


def traced(run: Callable[[], object]) -> Trace:
    """What `run` goes through."""
    found = Trace()
    sys.setprofile(found._called)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


# ---------------------------------------------------------------------------------------------------
# the two flows


def two_tables() -> Trace:
    """`fit` on a private and a public table."""
    from sidelight.tables import fit_tables

    rng = np.random.default_rng(0)

    def table(rows: int) -> pd.DataFrame:
        x = rng.normal(size=(rows, 3))
        named = {"age": x[:, 0], "hours": x[:, 1], "work": np.where(x[:, 2] > 0, "state", "private")}
        return pd.DataFrame({**named, "income": np.where(x.sum(axis=1) > 0, "high", "low")})

    with tempfile.TemporaryDirectory() as folder:
        private, public = Path(folder) / "private.csv", Path(folder) / "public.csv"
        table(2000).to_csv(private, index=False)
        table(100).to_csv(public, index=False)
        return traced(lambda: fit_tables(private, public, target="income", epsilon=1.0))


def trainer() -> Trace:
    """`Trainer.fit` on a private and a public dataset."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.manual_seed(0)
    x = torch.randn(400, 4)
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    loss = nn.CrossEntropyLoss(reduction="none")
    face = sidelight.Trainer(model, loss, epsilon=2, expected_batch_size=64, steps=5, progress=False)
    private, public = TensorDataset(x[:300], y[:300]), TensorDataset(x[300:], y[300:])
    return traced(lambda: face.fit(private, public))


FLOWS = {"tables": two_tables, "trainer": trainer}


# ---------------------------------------------------------------------------------------------------
# drawing


def _band(name: str) -> str:
    room = name.split("/")[0].removesuffix(".py")
    if room in _FACES:
        return "faces"
    return "leaves" if room in _LEAVES else room


def drawing(trace: Trace, title: str) -> str:
    """Files by room; those of the spine are joined."""
    bands = [(band, [name for name in trace.files if _band(name) == band]) for band in _BANDS]
    parts: list[str] = []
    centers: dict[str, tuple[float, float]] = {}
    y = 16.0
    for band, names in bands:
        if not names:
            continue
        top, x, line = y, 110.0, 0
        for name in names:
            label = name.rpartition("/")[2].removesuffix(".py")
            width = _LETTER * len(label) + 14
            if x + width > _WIDTH - 10:
                x, line = 110.0, line + 1
            up = top + line * _LINE
            kind = "spine" if name in trace.spine.values() else "file"
            parts.append(
                f'<rect class="{kind}" x="{x:.0f}" y="{up:.0f}" width="{width:.0f}" height="20" rx="4"/>'
                f'<text x="{x + 7:.0f}" y="{up + 14:.0f}" class="{kind}">{escape(label)}</text>'
            )
            centers[name] = (x + width / 2, up + 10)
            x += width + 8
        parts.append(f'<text x="12" y="{top + 14:.0f}" class="room">{band}</text>')
        y = top + (line + 1) * _LINE + 10
    joined = [centers[name] for name in trace.spine.values()]
    path = "M" + " L".join(f"{a:.0f},{b:.0f}" for a, b in joined)
    style = (
        "text{font:12px system-ui,sans-serif;fill:#1d2433}.room{font-weight:600}.spine{font-weight:700}"
        "rect.file{fill:#eef1f6;stroke:#c4ccd9}rect.spine{fill:#ffe9b8;stroke:#c78a00}"
        ".way{fill:none;stroke:#c78a00;stroke-width:2;opacity:.55}.page{fill:#fff}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:.0f}" role="img">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f'<rect class="page" width="{_WIDTH}" height="{y:.0f}"/><path class="way" d="{path}"/>'
        f"{''.join(parts)}</svg>\n"
    )


def sentence(trace: Trace) -> str:
    """The numbers of a flow, as the page prints them."""
    return f"{len(trace.files)} files, {len(trace.edges)} edges between them"


def main() -> None:
    page = ROOT / "docs" / "design.md"
    text = page.read_text()
    for name, flow in FLOWS.items():
        trace = flow()
        if tuple(trace.spine) != SPINE:
            sys.exit(f"{name}: the spine is {' → '.join(trace.spine)}")
        title = f"{name}: {sentence(trace)}"
        (ROOT / "docs" / "images" / f"flow-{name}.svg").write_text(drawing(trace, title))
        text = re.sub(rf"(<!-- {name} -->).*?(<!-- end -->)", rf"\g<1>{sentence(trace)}\g<2>", text)
    page.write_text(text)


if __name__ == "__main__":
    main()
