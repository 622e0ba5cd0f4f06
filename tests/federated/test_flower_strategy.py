"""Flower's face, on a grid of this test's own. `make test-flower` runs it where Flower is installed."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make test-flower has an environment with it")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from tests.federated.fleet import METHODS, target_of

from sidelight.audit.tape import listening
from sidelight.errors import InputError
from sidelight.federated.flower_strategy import GuardedGrid, SidelightStrategy
from sidelight.methods.dope_sgd import dope_sgd
from sidelight.methods.dp_sgd import dp_sgd, full_private

START = ArrayRecord(
    {"w": Array(np.zeros((2, 2), dtype=np.float32)), "b": Array(np.zeros(3, dtype=np.float32))}
)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # of a ServerApp that runs
NODES, PUBLIC = list(range(101, 161)), {101, 102, 103, 104}
Reply = Callable[[Message, ArrayRecord], Any]


def trained(message: Message, arrays: ArrayRecord, scale: float = 1.0) -> ArrayRecord:
    """What an ordinary ClientApp returns: its parameters after a step toward its own target."""
    target = target_of(f"phone {message.metadata.dst_node_id}")
    new = {}
    for name, part in (("w", target[:4].reshape(2, 2)), ("b", target[4:])):
        old = arrays[name].numpy()
        new[name] = Array((old - 0.5 * scale * (old - part)).astype(np.float32))
    return ArrayRecord(new)


def honest(message: Message, arrays: ArrayRecord) -> Any:
    metrics = MetricRecord({"loss": float(message.metadata.dst_node_id), "num-examples": 7})
    return RecordDict({"arrays": trained(message, arrays), "metrics": metrics})


class FakeGrid(Grid):
    """Answers at once. `odd` has the nodes that answer otherwise; None is no answer."""

    def __init__(self, odd: dict[int, Reply] | None = None) -> None:
        self.odd, self.replies, self.asked, self.count = odd or {}, {}, [], 0

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *_: Any, **__: Any) -> Any: ...
    def get_node_ids(self) -> Iterable[int]:
        return NODES[::-1]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = str(self.count)
            ids.append(str(self.count))
            self.asked.append((message.metadata.message_type, message.metadata.dst_node_id))
            self.replies[str(self.count)] = message
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for one in message_ids if (reply := self.answer(self.replies[one])) is not None]

    def answer(self, message: Message) -> Any:
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_src_node_id"] = 1
        if message.metadata.message_type == "query":
            made: Any = RecordDict({"consent": ConfigRecord({"public": node in PUBLIC})})
        else:
            made = self.odd.get(node, honest)(message, message.content["arrays"])
        if made is None:
            return None
        return Message(made, reply_to=message)

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        raise AssertionError("the guarded grid pulls by itself")


def broken(name: str) -> Reply:
    def reply(message: Message, arrays: ArrayRecord) -> Any:
        new = trained(message, arrays)
        match name:
            case "nothing":
                return None
            case "an error":
                return Error(code=1, reason="the accuracy of phone 7 is 0.3")
            case "cannot be unpacked":
                raise RuntimeError("inflate")
            case "NaN":
                new["b"] = Array(np.full(3, np.nan, dtype=np.float32))
            case "another shape":
                new["b"] = Array(np.zeros(4, dtype=np.float32))
            case "a shape that it declares only":
                new["b"] = Array("float32", (3,), "numpy.ndarray", Array(np.zeros(5, dtype=np.float32)).data)
            case "another type":
                new["b"] = Array(np.zeros(3))
            case "garbage":
                new["b"] = Array("float32", (3,), "numpy.ndarray", b"\x93NUMPY garbage")
            case "a pickle":
                new["b"] = Array(
                    "float32", (3,), "numpy.ndarray", Array(np.zeros(3, dtype=np.float32)).data[:9]
                )
            case "too many bytes":
                new["b"] = Array("float32", (3,), "numpy.ndarray", b"0" * 10**6)
            case "another serialization":
                new["b"] = Array("float32", (3,), "torch", b"")
            case "a name too few":
                del new["b"]
            case "a name too many":
                new["c"] = Array(np.zeros(3, dtype=np.float32))
            case "no arrays":
                return RecordDict({"metrics": MetricRecord({"loss": 1.0})})
            case "two records":
                return RecordDict({"arrays": new, "more": new})
        return RecordDict({"arrays": new})

    return reply


BROKEN = (
    "nothing", "an error", "cannot be unpacked", "NaN", "another shape", "a shape that it declares only",
    "another type", "garbage", "a pickle", "too many bytes", "another serialization", "a name too few",
    "a name too many", "no arrays", "two records",
)  # fmt: skip


def run(odd: dict[int, Reply] | None = None, like: Any = None, **settings: Any) -> Any:
    asked: dict[str, Any] = {"method": dope_sgd(clip_norm=0.5), "epsilon": 3.0, "delta": 1e-4}
    asked |= {"expected_cohort": 25, "random_state": 1} | settings
    grid = FakeGrid(odd)
    with listening(like=like) as tape:
        strategy = SidelightStrategy(**asked)
        result = strategy.start(grid, START, num_rounds=3, timeout=0.5)
    return tape, strategy, result, grid


def values(tape: Any) -> np.ndarray:
    return np.stack([call.value for call in tape.calls])


class Lines(logging.Handler):
    """Every line that anybody logs, but for the time that it took."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "finished in" not in record.getMessage():
            self.lines.append(record.getMessage())


def logged(odd: dict[int, Reply], like: Any = None) -> Any:
    """A run in which everybody is asked, and its log."""
    loggers, lines = (logging.getLogger(), logging.getLogger("flwr")), Lines()
    for one in loggers:
        one.addHandler(lines)
    try:
        return *run(odd, like, expected_cohort=NODES[-1]), lines.lines
    finally:
        for one in loggers:
            one.removeHandler(lines)


@pytest.fixture(scope="module")
def silent() -> Any:
    """A run in which node 150 never answers: the others' replies are in, and the wait ends at the timeout."""
    return logged({150: broken("nothing")})


@pytest.mark.parametrize("name", [name for name in BROKEN if name != "nothing"])
def test_a_reply_that_is_no_update_is_as_if_none_had_come(name: str, silent: Any) -> None:
    tape, _, result, _, lines = silent
    other, _, again, _, said = logged({150: broken(name)}, like=tape)
    assert np.array_equal(values(tape), values(other))
    assert str(result) == str(again) and len(lines) > 10
    assert lines == said


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ppsgd"])
def test_a_client_moves_no_sum_by_more_than_its_sensitivity(name: str) -> None:
    def shouting(message: Message, arrays: ArrayRecord) -> Any:
        return RecordDict({"arrays": trained(message, arrays, scale=1e6)})

    settings: dict[str, Any] = {"method": METHODS[name](), "expected_cohort": NODES[-1]}
    tape, strategy, result, _ = run({150: broken("nothing")}, **settings)
    other, changed, again, _ = run({150: shouting}, like=tape, **settings)
    far = np.linalg.norm(values(tape) - values(other), axis=1) / tape.calls[0].sensitivity
    assert 0.5 < far.max() <= 1 + 1e-9
    assert strategy.privacy_.to_dict() == changed.privacy_.to_dict()
    assert str(result) == str(again) and strategy.server.history_ == changed.server.history_


def test_no_metric_of_a_private_client_is_passed_on() -> None:
    _, strategy, result, _ = run(evaluate_public=True)
    assert all("loss" not in record for record in result.train_metrics_clientapp.values())
    assert all("num-examples" not in record for record in result.train_metrics_clientapp.values())
    losses = [record["loss"] for record in result.evaluate_metrics_clientapp.values()]
    assert losses and all(loss == np.mean(sorted(PUBLIC)) for loss in losses)
    assert strategy.server.history_


def test_who_is_treated_as_private_is_not_evaluated() -> None:
    """full_private counts consenting clients among those that the statement protects."""
    _, strategy, result, _ = run(method=full_private(clip_norm=0.5), evaluate_public=True)
    assert strategy.server.problem.n == len(NODES)
    assert not any(result.evaluate_metrics_clientapp.values())


def test_contract_catches_metrics_that_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's usual aggregation of metrics, planted: the check above would see it."""
    original = SidelightStrategy.aggregate_train

    def leaking(self: Any, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        arrays, metrics = original(self, server_round, replies)
        given = [one.content["metrics"]["loss"] for one in replies if one.has_content()]
        return arrays, MetricRecord({**(metrics or {}), "loss": float(np.mean(given))})

    monkeypatch.setattr(SidelightStrategy, "aggregate_train", leaking)
    with pytest.raises(AssertionError):
        test_no_metric_of_a_private_client_is_passed_on()


def test_who_consents_is_public_and_who_does_not_answer_is_private() -> None:
    class Half(FakeGrid):
        def answer(self, message: Message) -> Any:
            if message.metadata.message_type == "query" and message.metadata.dst_node_id % 2:
                return None
            return super().answer(message)

    strategy = SidelightStrategy(method=dp_sgd(clip_norm=0.5), epsilon=1.0, delta=1e-4)
    assert strategy._consent(GuardedGrid(Half()), NODES, 0.5) == (102, 104)
    given = SidelightStrategy(method=dp_sgd(clip_norm=0.5), epsilon=1.0, delta=1e-4, public={105, 7})
    assert given._consent(GuardedGrid(Half()), NODES, 0.5) == (105,)


def test_a_reply_counts_for_the_client_that_was_asked() -> None:
    class Impostor(FakeGrid):
        def answer(self, message: Message) -> Any:
            reply = super().answer(message)
            if message.metadata.dst_node_id == 150:
                reply.metadata.__dict__["_src_node_id"] = 151
            return reply

    grid = GuardedGrid(Impostor())
    messages = [Message(RecordDict({"arrays": START}), node, "train") for node in (150, 151)]
    assert [reply.metadata.src_node_id for reply in grid.send_and_receive(messages, timeout=1)] == [151]


def test_every_round_takes_as_long_as_it_is_told_to() -> None:
    grid = GuardedGrid(FakeGrid({150: broken("nothing")}), round_seconds=0.4)
    for nodes in ([151], [150, 151]):
        begun = time.monotonic()
        grid.send_and_receive([Message(RecordDict({"arrays": START}), n, "train") for n in nodes], timeout=9)
        assert 0.4 <= time.monotonic() - begun < 1.5


def test_updates_may_be_sent_in_place_of_weights() -> None:
    def update(message: Message, arrays: ArrayRecord) -> Any:
        new = trained(message, arrays)
        parts = {name: Array(arrays[name].numpy() - new[name].numpy()) for name in new}
        return RecordDict({"arrays": ArrayRecord(parts)})

    tape, *_ = run()
    other, *_ = run(dict.fromkeys(NODES, update), like=tape, replies="update")
    np.testing.assert_allclose(values(tape), values(other), atol=1e-5)


def test_rounds_of_public_clients_alone_come_first() -> None:
    _, strategy, result, grid = run(warm_rounds=2)
    trains = [node for kind, node in grid.asked if kind == "train"]
    assert set(trains[:12]) == PUBLIC  # two warm rounds, and a look at the first updates
    assert strategy.server.total_rounds == 6 and len(strategy.server.history_) == 3
    assert not any(kind == "evaluate" for kind, _ in grid.asked)
    finals = [result.arrays[name].numpy() for name in ("w", "b")]
    assert all(np.array_equal(a, b) for a, b in zip(finals, strategy.server.arrays, strict=True))


@pytest.mark.parametrize("settings", [{"replies": "gradient"}, {"public": "all"}, {"round_seconds": 0.0}])
def test_bad_settings_are_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        SidelightStrategy(method=dp_sgd(clip_norm=1.0), epsilon=1.0, **settings)
    with pytest.raises(InputError, match="started"):
        SidelightStrategy(method=dp_sgd(clip_norm=1.0), epsilon=1.0).privacy_  # noqa: B018
