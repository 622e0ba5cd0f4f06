"""What would each method reach? Estimated on public rows, before any budget is spent.

Public rows are cut into four parts. In each of four rounds one part is the test set; of the rest, two thirds
make synthetic rows (`augment.synthesis.synthesize`) that stand in for the private table at its true size, and
one third stays public. So no test row had a part in what it scores, and none is used twice in a round.

Real test rows are pessimistic: two parts of the public rows cannot teach what a large private table does.
More synthetic rows are a second test set, and too optimistic. How far between them the truth is differs from
table to table, so that a range is reported and no number; methods are ranked by the synthetic rows.
`only_public` learns from all public rows but the test rows, and its range is that of those alone.
docs/reproductions/compare.md has all this beside real fits.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidelight.arrays import Array, Json
from sidelight.comparison.stages import Comparison, Stage, trials
from sidelight.data.schema import Schema, TaskName
from sidelight.data.table_files import TableSource
from sidelight.errors import InputError
from sidelight.familiar_words import knows_familiar_words
from sidelight.methods.declare import get_method
from sidelight.methods.task import PUBLIC_APART
from sidelight.privacy import conversions
from sidelight.privacy.accountants import resolve_delta
from sidelight.privacy.contract import DEFAULT_RELATION, relation_of
from sidelight.privacy.events import NoOp, Relation, check_relation
from sidelight.privacy.statement import PrivacyStatement
from sidelight.report.card import Card

if TYPE_CHECKING:
    import pandas as pd

    from sidelight.estimators.linear import PrivateLinear


DEFAULT_METHODS = (
    "only_public",
    "only_private",
    "ppsgd",
    "dope_sgd",
    "coupling",
    "objective_perturbation",
    "auto",
    "non_private",
)
PARTS = 4
SYNTHETIC_TEST_ROWS = 2_000
MOST_ROWS = 5_000  # a larger private set is rehearsed at this size, with less noise: n·μ is kept
_NO_NOISE = 500.0  # an ε at which noise no longer matters
_ALL = 1_000_000_000

Progress = Callable[[Comparison, str, float, int, int], None]


@dataclass(frozen=True)
class Rehearsal:
    """A comparison, and what it was made of."""

    comparison: Comparison
    rows: int
    rehearsed_rows: int
    public_rows: int
    delta: float
    relation: Relation | None
    target: str
    task: TaskName
    notes: tuple[str, ...] = field(default=())
    baseline: Json = field(default_factory=dict)  # what a model without features has on the public rows

    def to_dict(self) -> Json:
        """The comparison as values that json.dumps writes."""
        return {
            "score": self.comparison.score,
            "rows": self.rows,
            "rehearsed_rows": self.rehearsed_rows,
            "public_rows": self.public_rows,
            "delta": self.delta,
            "relation": self.relation,
            "target": self.target,
            "task": self.task,
            "baseline": self.baseline,
            "comparison": self.comparison.rows(),
            "refused": self.comparison.refused,
            "notes": list(self.notes),
        }

    def card(self) -> Card:
        """For a report: a comparison, and a promise that costs nothing because nothing private was read."""
        from sidelight.report.card import versions

        statement = PrivacyStatement(
            epsilon=0.0,
            delta=self.delta,
            relation=self.relation or DEFAULT_RELATION,
            method="compare",
            plan=NoOp(),
            assumptions=(PUBLIC_APART,),
            details={"notes": self.notes},
        )
        return Card(
            title=f"Rehearsal: {self.target} with {self.rows:,} private records",
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            statement=statement.to_dict(),
            data={"target": self.target, "task": self.task, "public_records": self.public_rows},
            scores={"name": self.comparison.score, **self._majority()},
            comparison=self.comparison.rows(),
            versions=versions(),
        )

    def _majority(self) -> Json:
        return {"majority": self.baseline["value"]} if self.task == "classification" else {}


@knows_familiar_words
def compare(
    public: TableSource,
    *,
    rows: int,
    target: str | None = None,
    epsilon: Sequence[float] = (0.1, 0.5, 1.0, 2.0),
    methods: Sequence[str] = DEFAULT_METHODS,
    delta: float | None = None,
    relation: Relation | None = None,
    loss: str | None = None,
    schema: Schema | str | os.PathLike[str] | None = None,
    task: TaskName | None = None,
    ignore: Sequence[str] = (),
    types: Mapping[str, str] = MappingProxyType({}),
    repeats: int = 1,
    random_state: int = 0,
    progress: Progress | None = None,
) -> Rehearsal:
    """Rehearse methods on data synthesized from public rows; spends nothing and reads no private record.

    Guarantee: none is needed. `public` must hold public rows only.

    Args:
        public: a frame, or the path of a CSV, TSV or Parquet file.
        rows: how many records the private table has.
        epsilon: the budgets to try.
        delta: None uses min(1e-5, 1/(100·rows)), as a fit does.
        relation: None uses add-or-remove-one, and replace-one for methods proved only for that. A method that
            does not support the relation is left out, with its reason.
        schema, task, ignore, types: what the columns are, as for `fit_tables`.
        random_state: fixes the rehearsed rows, and the noise of the fits to them.
        repeats: how often all four rounds are made, with new parts.
        progress: called with (the comparison so far, method, ε, fits done, fits in all).
    """
    _check(rows, epsilon, methods, repeats, relation)
    frame, schema = _public(public, target, schema, task, tuple(ignore), types)
    delta = resolve_delta(delta, rows)
    plan = _Plan(frame, schema, rows, delta, relation, loss, random_state)
    comparison = Comparison(tuple(methods), tuple(float(budget) for budget in epsilon), plan.score)
    total = len(methods) * len(epsilon) * PARTS * repeats

    def tell(method: str, at: float) -> None:
        if progress is not None:
            progress(comparison, method, at, comparison.fits, total)

    for trial in trials(plan.stages(repeats), methods, comparison.epsilons, plan.estimator, before=tell):
        comparison.add(trial)
    if not comparison.trials:
        raise InputError(f"no method could be rehearsed: {next(iter(comparison.refused.values()))}")
    return Rehearsal(
        comparison, rows, plan.rehearsed, len(frame), delta, relation, schema.target.name, schema.target.task,
        plan.notes(), plan.baseline(),
    )  # fmt: skip


def _check(
    rows: int, epsilon: Sequence[float], methods: Sequence[str], repeats: int, relation: Relation | None
) -> None:
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or not 1 <= rows <= _ALL:
        raise InputError(f"rows is the number of private records, from 1 to 1e9, not {rows!r}")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or not 1 <= repeats <= 100:
        raise InputError(f"repeats is a whole number from 1 to 100, not {repeats!r}")
    for what, values in (("epsilon", epsilon), ("methods", methods)):
        if not len(values) or len(set(values)) < len(values):
            raise InputError(f"{what} must name at least one, and each once")
    if bad := [budget for budget in epsilon if not 0 < budget <= 600]:
        raise InputError(f"epsilon must be above 0 and at most 600, not {bad[0]!r}")
    for name in methods:
        get_method(name)
    if relation is not None:
        check_relation(relation)


def _public(
    source: TableSource,
    target: str | None,
    schema: Schema | str | os.PathLike[str] | None,
    task: TaskName | None,
    ignore: tuple[str, ...] = (),
    types: Mapping[str, str] = MappingProxyType({}),
) -> tuple[pd.DataFrame, Schema]:
    """The public rows, and how to read them: as `fit_tables` does it."""
    from sidelight.tables.fitting import _schema, public_frame_of

    frame = public_frame_of(source)
    resolved = _schema(schema, frame, target, task, ignore, types)
    resolved.check_columns(list(frame.columns), "the public table")
    return frame[[*resolved.used, resolved.target.name]].reset_index(drop=True), resolved


class _Plan:
    """Stages made from one public table, and estimators to fit on them."""

    def __init__(
        self, frame: pd.DataFrame, schema: Schema, rows: int, delta: float, relation: Relation | None,
        loss: str | None, seed: int,
    ) -> None:  # fmt: skip
        from sidelight.data.features import encode_target

        self.frame, self.schema, self.seed, self.loss = frame, schema, seed, loss
        self.rows, self.delta, self.relation = rows, delta, relation
        self.X, self.y = frame[list(schema.used)], encode_target(schema, frame[schema.target.name])
        self.rehearsed = min(rows, MOST_ROWS)
        self.classify = schema.target.task == "classification"
        self.score = "accuracy" if self.classify else "R²"
        _enough(schema, self.y)

    def estimator(self, method: str, epsilon: float, stage: Stage) -> PrivateLinear:
        """With the products of numbers that a fit to the private table would have."""
        from sidelight.data.interactions import with_interactions
        from sidelight.estimators import PrivateClassifier, PrivateRegressor

        configured = get_method(method)
        schema = with_interactions(
            self.schema, stage.X_rest, stage.y_rest, method=method, n=self.rows, epsilon=epsilon,
            delta=self.delta, relation=relation_of(configured, self.relation),
        )  # fmt: skip
        kind: type[PrivateLinear] = PrivateClassifier if self.classify else PrivateRegressor
        return kind(
            configured,
            loss=self.loss,
            epsilon=scaled_epsilon(epsilon, self.delta, rows=self.rows, rehearsed=self.rehearsed),
            delta=self.delta,
            relation=self.relation,
            schema=schema,
            random_state=stage.seed,
        )

    def stages(self, repeats: int) -> Iterator[Stage]:
        for repeat in range(repeats):
            rng = np.random.default_rng([self.seed, repeat])
            parts = self._parts(rng)
            for test in range(PARTS):
                yield self._stage(parts, test, seed=1 + PARTS * repeat + test + 1000 * self.seed)

    def _stage(self, parts: NDArray[np.intp], test: int, *, seed: int) -> Stage:
        from sidelight.augment.synthesis import synthesize
        from sidelight.data.features import encode_target

        target = self.schema.target.name
        guide = parts == (test + 1) % PARTS
        test_rows = np.flatnonzero(parts == test)
        source = self.frame[(parts != test) & ~guide]
        made = synthesize(source, self.rehearsed + SYNTHETIC_TEST_ROWS, random_state=seed, target=target)
        X, y = made[list(self.schema.used)], encode_target(self.schema, made[target])
        n = self.rehearsed
        return Stage(
            X[:n], y[:n], self.X[guide], self.y[guide], self.X[parts == test], self.y[test_rows], test_rows,
            seed,
            spread=1.0 if self.classify else float(np.var(self.y.astype(np.float64))),
            X_synthetic=X[n:], y_synthetic=y[n:], X_rest=self.X[parts != test], y_rest=self.y[parts != test],
        )  # fmt: skip

    def _parts(self, rng: np.random.Generator) -> NDArray[np.intp]:
        """A part for every row; each class, or each quarter of a numeric target, goes to all parts."""
        parts = np.empty(len(self.y), dtype=np.intp)
        order = rng.permutation(len(self.y))
        keys = self.y[order].astype(str) if self.classify else np.zeros(len(order))
        for key in np.unique(keys):
            mine = order[keys == key]
            parts[mine] = (np.arange(len(mine)) + rng.integers(PARTS)) % PARTS
        return parts

    def baseline(self) -> Json:
        """The commonest class and its share of the public rows, or the spread of the target."""
        if self.classify:
            labels, counts = np.unique(self.y, return_counts=True)
            top = int(np.argmax(counts))
            return {"label": labels.tolist()[top], "value": float(counts[top] / counts.sum())}
        return {"value": 0.0, "root_mean_squared_error": float(np.std(self.y.astype(np.float64)))}

    def notes(self) -> tuple[str, ...]:
        m = len(self.frame)
        lines = [
            f"A rehearsal on rows synthesized from {m:,} public ones; no private row was read, and nothing "
            "was spent.",
            f"Each range runs from the score on {m:,} real public rows that the models did not see, less "
            "its error (pessimistic), to the score on more synthetic rows (optimistic). A real fit may land "
            "anywhere in it: on seven tables, 97 of 100 fits did. Ranks are more reliable than levels "
            "(docs/reproductions/compare.md).",
        ]
        if self.rehearsed < self.rows:
            lines.append(
                f"For {self.rows:,} rows the rehearsal used {self.rehearsed:,}, at an ε that puts "
                "equal noise on the mean."
            )
        return tuple(lines)


def _enough(schema: Schema, y: Array) -> None:
    if schema.target.task == "regression":
        if len(y) < 5 * PARTS:
            raise InputError(f"comparing needs at least {5 * PARTS} public rows, and there are {len(y)}")
        return
    for label in schema.target.classes:
        count = int((y == label).sum())
        if count < PARTS:
            raise InputError(
                f"comparing needs at least {PARTS} public rows of each class, to make data, to guide and to "
                f"test; {label!r} has {count}"
            )


def scaled_epsilon(epsilon: float, delta: float, *, rows: int, rehearsed: int) -> float:
    """The ε at which a mean of the rehearsed rows has as much noise as one of all rows at the true ε."""
    if rehearsed == rows:
        return epsilon
    mu = conversions.gdp_mu(epsilon, delta) * rows / rehearsed
    return max(epsilon, min(conversions.gaussian_epsilon(delta, mu), _NO_NOISE))
