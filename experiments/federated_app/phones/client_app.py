"""A phone: an ordinary Flower client. It knows nothing of privacy but whether its owner asks for any."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .task import gradient, mine

app = ClientApp()


def place(context: Context) -> int:
    return int(context.node_config["partition-id"])


@app.query()
def query(message: Message, context: Context) -> Message:
    """Whether the owner has agreed to be public."""
    consenting = float(context.run_config["public-share"]) * int(context.node_config["num-partitions"])
    answer = ConfigRecord({"public": place(context) < consenting})
    return Message(RecordDict({"consent": answer}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A few steps on the images of this phone. The parameters go back, with metrics that nobody reads."""
    record: ArrayRecord = message.content["arrays"]
    arrays = [array.numpy() for array in record.values()]
    X, y = mine(place(context))
    for _ in range(int(context.run_config["local-steps"])):
        arrays = [w - 0.1 * g for w, g in zip(arrays, gradient(arrays, X, y), strict=True)]
    new = ArrayRecord({name: Array(array) for name, array in zip(record, arrays, strict=True)})
    metrics = MetricRecord({"num-examples": len(y), "secret-label": float(y[0])})
    return Message(RecordDict({"arrays": new, "metrics": metrics}), reply_to=message)
