"""The Flower strategy, around `FederatedServer`. Needs the extra [flower].

    strategy = SidelightStrategy(method=dope_sgd(clip_norm=1.0), epsilon=2.0, expected_cohort=200)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=100)
    print(strategy.privacy_)

An ordinary ClientApp does: it trains on what it is given and returns its arrays. Its metrics are not looked
at. Nothing here decides what is private: whom to ask, what to clip, charge and add is the server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Literal

from sidelight.arrays import Array as Numbers
from sidelight.errors import InputError, MissingDependency, guarded, one_of, positive, whole
from sidelight.federated.server import FederatedServer
from sidelight.methods.recipe import Recipe
from sidelight.oracles.updates import Form
from sidelight.privacy.events import Relation
from sidelight.privacy.ledger import Ledger
from sidelight.privacy.statement import PrivacyStatement

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy
except ImportError as error:
    raise MissingDependency(
        f"Flower is not installed ({error.name} is missing): pip install 'flwr[simulation]'"
    ) from error

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.supercore.run import Run


CONSENT = "public"  # in a ConfigRecord that answers a query: whether the client agrees to be public
_ARRAYS, _CONFIG = "arrays", "config"  # the names that Flower's own strategies give them
_LOG = getLogger("flwr")  # Flower's own
_POLL = 0.2  # seconds between two looks for replies
_HEADER = 4096  # bytes that a serialized array may have besides its numbers


class SidelightStrategy(Strategy):  # type: ignore[misc]  # Flower's classes are not known without it
    """Federated learning with central differential privacy for clients, some of whom are public.

    Guarantee, assumptions and most arguments: those of `FederatedServer`. A client is a node of the grid; the
    private ones are all that are connected at the start and did not consent; clients that join later are not
    asked. A reply that is missing, late, an error, of other names, shapes or types, or not finite counts as
    zero, and nothing of it is logged. Clients are evaluated only if they are public.

    Args:
        public: the node ids of clients that consented to be public; "ask" sends every node a query, and takes
            those for public whose reply has a ConfigRecord with public=True. A client that does not answer is
            private.
        min_clients: nodes that must be connected before training begins.
        replies: "weights": clients return the parameters that they arrived at, as for FedAvg; "update": the
            parameters that they were given minus these.
        round_seconds: the length of every round; later answers are left out. None waits for all, at most
            `timeout`: the time of a round then reveals something about them.
        evaluate_public: whether public clients evaluate the model after each round.
    """

    def __init__(
        self,
        *,
        method: Recipe,
        epsilon: float,
        delta: float | None = None,
        expected_cohort: float | None = None,
        relation: Relation | None = None,
        public: Collection[int] | Literal["ask"] = "ask",
        min_clients: int = 2,
        replies: Literal["weights", "update"] = "weights",
        round_seconds: float | None = None,
        evaluate_public: bool = False,
        warm_rounds: int = 0,
        warm_step_size: float = 1.0,
        public_cohort: int | None = None,
        ask: Literal["sampled", "everyone"] = "sampled",
        ledger: Ledger | str | None = None,
        dataset: str | None = None,
        random_state: int | None = None,
    ) -> None:
        whole("min_clients", min_clients)
        positive("round_seconds", round_seconds, optional=True)
        one_of("replies", replies, ("weights", "update"))
        if isinstance(public, str) and public != "ask":
            raise InputError(f"public is 'ask' or node ids, not {public!r}")
        self._public, self._min_clients, self._weights = public, min_clients, replies == "weights"
        self._round_seconds, self._evaluate_public = round_seconds, evaluate_public
        self._make_server = partial(
            FederatedServer, method=method, epsilon=epsilon, delta=delta, expected_cohort=expected_cohort,
            relation=relation, warm_rounds=warm_rounds, warm_step_size=warm_step_size,
            public_cohort=public_cohort, ask=ask, ledger=ledger, dataset=dataset, random_state=random_state,
        )  # fmt: skip
        self._server: FederatedServer | None = None
        self._names: tuple[str, ...] = ()  # of the arrays
        self._consenting: tuple[int, ...] = ()
        self._sent: list[Numbers] = []

    # -----------------------------------------------------------------------------------------------
    # a run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train. `num_rounds` counts rounds with private clients; None takes the method's own number.

        Rounds of public clients alone come before them. `evaluate_fn` sees the released model of each round:
        give it public records, or a test set.
        """
        guarded = GuardedGrid(grid, self._round_seconds)
        nodes = self._connected(guarded)
        self._consenting = self._consent(guarded, nodes, timeout)
        apart = set(self._consenting)
        self._names = tuple(initial_arrays)
        self._server = self._make_server(
            [initial_arrays[name].numpy() for name in self._names],
            private=[node for node in nodes if node not in apart], public=self._consenting, rounds=num_rounds,
        )  # fmt: skip
        total = self._server.total_rounds
        result = super().start(
            guarded, initial_arrays, total, timeout, train_config, evaluate_config, evaluate_fn
        )
        if not self._server.finished:
            self._server.close()
        result.arrays = self._record(self._server.arrays)
        for line in str(self.privacy_).splitlines():
            _LOG.info("%s", line)
        return result

    @property
    def server(self) -> FederatedServer:
        """The server of the run that was started."""
        if self._server is None:
            raise InputError("nothing was started yet; call start(grid, initial_arrays)")
        return self._server

    @property
    def privacy_(self) -> PrivacyStatement:
        """The guarantee of the plan that was charged."""
        return self.server.privacy_

    def _connected(self, grid: Grid) -> list[int]:
        """The nodes that take part, when enough are there; in an order of their own."""
        while len(nodes := sorted(grid.get_node_ids())) < self._min_clients:
            _LOG.info("Waiting for %d clients to connect", self._min_clients)
            time.sleep(1)
        return nodes

    def _consent(self, grid: Grid, nodes: Sequence[int], timeout: float) -> tuple[int, ...]:
        if not isinstance(self._public, str):
            return tuple(node for node in nodes if node in set(self._public))
        asked = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
        agreed = {
            reply.metadata.src_node_id
            for reply in grid.send_and_receive(asked, timeout=timeout)
            if guarded(_agrees, reply, False)
        }
        return tuple(node for node in nodes if node in agreed)

    def summary(self) -> None:
        """Log the configuration; Flower calls it."""
        server = self.server
        _LOG.info("\t├──> %s, user-level, with a trusted server", server.recipe.name)
        _LOG.info("\t├──> Clients: %d private, %d public", server.problem.n, len(self._consenting))
        _LOG.info("\t└──> Expected cohort: %g of the private ones", server.setting.batch)

    # -----------------------------------------------------------------------------------------------
    # what Flower asks in every round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to every client of the round; none when training has ended before its last round."""
        ask = self.server.open_round()
        if ask is None:
            return []
        self._sent = ask.arrays
        config["server-round"] = server_round
        content = RecordDict({_ARRAYS: self._record(ask.arrays), _CONFIG: config})
        return [Message(content, int(str(node)), MessageType.TRAIN) for node in ask.clients]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after this round and its public metrics: no metric of a client is read."""
        server = self.server
        if server.finished:
            return None, None
        read = _Reading(server.form, self._names, self._sent if self._weights else None)
        server.close_round((reply.metadata.src_node_id, partial(read, reply)) for reply in replies)
        last = server.history_[-1] if server.history_ else {}
        public = {key: value for key, value in last.items() if isinstance(value, int | float)}
        return self._record(server.arrays), MetricRecord(public) if public else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Public clients alone: a score of a private client would be an uncharged release.

        No client is asked under full_private, which treats consenting clients as private.
        """
        if not self._evaluate_public or set(self._consenting) & set(self.server.problem.clients):
            return []
        config["server-round"] = server_round
        content = RecordDict({_ARRAYS: arrays, _CONFIG: config})
        return [Message(content, node, MessageType.EVALUATE) for node in self._consenting]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean of each number that public clients report."""
        found: dict[str, list[float]] = {}
        for reply in replies:
            if reply.metadata.src_node_id in set(self._consenting) and reply.has_content():
                for record in reply.content.metric_records.values():
                    for key, value in record.items():
                        if isinstance(value, int | float):
                            found.setdefault(key, []).append(float(value))
        means = {key: sum(values) / len(values) for key, values in found.items()}
        return MetricRecord(means) if means else None

    def _record(self, arrays: Sequence[Numbers]) -> ArrayRecord:
        return ArrayRecord({name: Array(one) for name, one in zip(self._names, arrays, strict=True)})


def _agrees(reply: Message) -> bool:
    """Whether a reply says public=True; everybody else is private."""
    records = reply.content.config_records.values() if reply.has_content() else []
    return any(record.get(CONSENT) is True for record in records)


class _Reading:
    """Reads the update in a reply. It raises for what is none, where the oracle lets nothing out.

    What a client declares of an array is compared before its bytes are looked at: nothing is unpacked that is
    larger than the model.
    """

    def __init__(self, form: Form, names: Sequence[str], sent: Sequence[Numbers] | None) -> None:
        self._form, self._names = form, names
        self._sent = None if sent is None else form.flat(sent)

    def __call__(self, reply: Message) -> Numbers:
        records: Mapping[str, ArrayRecord] = reply.content.array_records
        (record,) = records.values()
        if sorted(record) != sorted(self._names):
            raise InputError("an update has the names of the parameters")
        arrays = [self._array(record[name], place) for place, name in enumerate(self._names)]
        flat = self._form.flat(arrays)
        return flat if self._sent is None else self._sent - flat

    def _array(self, given: Array, place: int) -> Numbers:
        size = self._form.sizes[place] * 8
        if tuple(given.shape) != self._form.shapes[place] or len(given.data) > size + _HEADER:
            raise InputError("an update has the shapes of the parameters, array by array")
        read: Numbers = given.numpy()
        return read


class GuardedGrid(Grid):  # type: ignore[misc]
    """A grid on which no client can stop a round, and rounds take a fixed time.

    Replies are pulled one by one: Flower pulls many at once, and one that cannot be unpacked stops it. A
    reply belongs to the client that got the message, not to the one that it names.
    """

    def __init__(self, grid: Grid, round_seconds: float | None = None) -> None:
        self._grid, self._round_seconds = grid, round_seconds

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> list[int]:
        return list(self._grid.get_node_ids())

    def get_nodes(self) -> list[NodeInfo]:
        return list(self._grid.get_nodes())

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        return list(self._grid.push_messages(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The messages that can be unpacked; others are dropped silently."""
        found: list[Message] = []
        for one in message_ids:
            found += guarded(lambda number: list(self._grid.pull_messages([number])), one, [])
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies until all are in, or until the round ends."""
        sent = list(messages)
        seconds, begun = self._round_seconds, time.monotonic()
        allowed = timeout if seconds is None else seconds
        waiting = _numbered(self.push_messages(sent), sent)
        found: list[Message] = []
        while waiting and (allowed is None or time.monotonic() < begun + allowed):
            for number, node in list(waiting.items()):
                replies = self.pull_messages([number])
                if replies:
                    del waiting[number]
                    found += [one for one in replies if one.metadata.src_node_id == node][:1]
            if waiting:
                time.sleep(_POLL)
        if sent and seconds is not None:
            time.sleep(max(0.0, begun + seconds - time.monotonic()))
        return found


def _numbered(ids: Iterable[str | None], sent: Sequence[Message]) -> dict[str, int]:
    """The node that each message went to, by the number of the message."""
    pairs = zip(ids, sent, strict=False)
    return {number: message.metadata.dst_node_id for number, message in pairs if number is not None}
