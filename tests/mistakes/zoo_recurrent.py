"""Correct models: recurrent networks."""

from typing import Any

import torch
from tests.mistakes.pieces import CLASSES, TIMES, WORDS, head
from tests.mistakes.registry import (
    Group,
    Of,
    entropy,
    flags,
    floats,
    integers,
    then,
    token,
    tokens_entropy,
)  # fmt: skip
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------------------------------------------

recurrent = Group("recurrent networks", TIMES, CLASSES, entropy)


def last(**layers: Any) -> nn.Module:
    """The last state of a recurrent layer, and a head."""
    return Of(lambda m, x: m.b(m.a(x)[0][:, -1]), **layers)


recurrent("RNN", lambda: last(a=nn.RNN(4, 6, batch_first=True), b=head(6)))
recurrent("RNN, ReLU", lambda: last(a=nn.RNN(4, 6, nonlinearity="relu", batch_first=True), b=head(6)))
recurrent("LSTM", lambda: last(a=nn.LSTM(4, 6, batch_first=True), b=head(6)))
recurrent("GRU", lambda: last(a=nn.GRU(4, 6, batch_first=True), b=head(6)))
recurrent("LSTM, two layers", lambda: last(a=nn.LSTM(4, 6, 2, batch_first=True), b=head(6)))
recurrent(
    "LSTM, two layers with dropout",
    lambda: last(a=nn.LSTM(4, 6, 2, dropout=0.3, batch_first=True), b=head(6)),
)
recurrent(
    "LSTM, two directions", lambda: last(a=nn.LSTM(4, 6, bidirectional=True, batch_first=True), b=head(12))
)
recurrent(
    "GRU, two layers and directions",
    lambda: last(a=nn.GRU(4, 5, 2, bidirectional=True, batch_first=True), b=head(10)),
)
recurrent("LSTM without biases", lambda: last(a=nn.LSTM(4, 6, bias=False, batch_first=True), b=head(6)))
recurrent(
    "LSTM, time first",
    lambda: Of(lambda m, x: m.b(m.a(x.transpose(0, 1))[0][-1]), a=nn.LSTM(4, 6), b=head(6)),
)
recurrent(
    "GRU, time first", lambda: Of(lambda m, x: m.b(m.a(x.permute(1, 0, 2))[1][0]), a=nn.GRU(4, 6), b=head(6))
)
recurrent(
    "LSTM, final state",
    lambda: Of(lambda m, x: m.b(m.a(x)[1][0][-1]), a=nn.LSTM(4, 6, batch_first=True), b=head(6)),
)
recurrent("LSTM, given start", lambda: Of(_started, a=nn.LSTM(4, 6, batch_first=True), b=head(6)))
recurrent(
    "LSTM, learned start",
    lambda: Of(_learned_start, a=nn.LSTM(4, 6, batch_first=True), h=token(1, 1, 6), b=head(6)),
)
recurrent("LSTM cell", lambda: Of(_lstm_cell, a=nn.LSTMCell(4, 6), b=head(6)))
recurrent("GRU cell", lambda: Of(_gru_cell, a=nn.GRUCell(4, 6), b=head(6)))
recurrent("RNN cell of one's own", lambda: Of(_own_cell, i=nn.Linear(4, 6), h=nn.Linear(6, 6), b=head(6)))
recurrent(
    "character language model",
    lambda: Of(
        lambda m, x: m.b(m.a(m.e(x))[0]),
        e=nn.Embedding(11, 4),
        a=nn.LSTM(4, 6, batch_first=True),
        b=nn.Linear(6, 11),
    ),
    WORDS,
    integers(11, 5),
    tokens_entropy,
)
recurrent(
    "LSTM, masked mean",
    lambda: Of(_masked_states, a=nn.LSTM(4, 6, batch_first=True), b=head(6)),
    (TIMES, flags(5)),
)
recurrent(
    "LSTM, state at each length",
    lambda: Of(_at_length, a=nn.LSTM(4, 6, batch_first=True), b=head(6)),
    (TIMES, integers(6, start=1)),
)
recurrent(
    "LSTM with attention pooling",
    lambda: Of(_pooled, a=nn.LSTM(4, 6, batch_first=True), s=nn.Linear(6, 1), b=head(6)),
)
recurrent(
    "seq2seq, teacher forced",
    lambda: Of(
        _seq2seq,
        e=nn.Embedding(11, 4),
        a=nn.GRU(4, 6, batch_first=True),
        d=nn.GRU(4, 6, batch_first=True),
        b=nn.Linear(6, 11),
    ),
    (WORDS, WORDS),
    integers(11, 5),
    tokens_entropy,
)
recurrent(
    "seq2seq with attention",
    lambda: Of(
        _attending,
        e=nn.Embedding(11, 6),
        a=nn.GRU(6, 6, batch_first=True),
        d=nn.GRU(6, 6, batch_first=True),
        b=nn.Linear(12, 11),
    ),
    (WORDS, WORDS),
    integers(11, 5),
    tokens_entropy,
)
recurrent(
    "ConvLSTM cell", lambda: Of(_conv_lstm, a=nn.Conv2d(4, 8, 3, padding=1), b=head(2)), floats(3, 2, 4, 4)
)
recurrent(
    "speech with CTC",
    lambda: Of(
        lambda m, x: m.b(m.a(x)[0]).log_softmax(2), a=nn.GRU(4, 6, batch_first=True), b=nn.Linear(6, 5)
    ),
    floats(8, 4),
    integers(5, 3, start=1),
    lambda z, y: _ctc(z, y),
)
recurrent(
    "temporal convolutions",
    lambda: then(
        lambda x: x.transpose(1, 2),
        nn.Conv1d(4, 6, 2),
        nn.ReLU(),
        nn.Conv1d(6, 6, 2, dilation=2),
        nn.ReLU(),
        lambda x: x.mean(2),
        head(6),
    ),
)
recurrent(
    "linear recurrence (state space)", lambda: Of(_state_space, i=nn.Linear(4, 6), d=token(6), b=head(6))
)


def _started(m: Any, x: Tensor) -> Tensor:
    zeros = x.new_zeros(1, len(x), 6)
    return m.b(m.a(x, (zeros, zeros))[0][:, -1])


def _learned_start(m: Any, x: Tensor) -> Tensor:
    start = m.h.expand(1, len(x), 6).contiguous()
    return m.b(m.a(x, (start, torch.zeros_like(start)))[0][:, -1])


def _lstm_cell(m: Any, x: Tensor) -> Tensor:
    state = x.new_zeros(len(x), 6), x.new_zeros(len(x), 6)
    for step in x.unbind(1):
        state = m.a(step, state)
    return m.b(state[0])


def _gru_cell(m: Any, x: Tensor) -> Tensor:
    state = x.new_zeros(len(x), 6)
    for step in x.unbind(1):
        state = m.a(step, state)
    return m.b(state)


def _own_cell(m: Any, x: Tensor) -> Tensor:
    state = x.new_zeros(len(x), 6)
    for t in range(x.shape[1]):
        state = torch.tanh(m.i(x[:, t]) + m.h(state))
    return m.b(state)


def _masked_states(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    states, weight = m.a(x)[0], mask[..., None].float()
    return m.b((states * weight).sum(1) / weight.sum(1))


def _at_length(m: Any, x: Tensor, length: Tensor) -> Tensor:
    states = m.a(x)[0]
    return m.b(states[torch.arange(len(x)), length - 1])


def _pooled(m: Any, x: Tensor) -> Tensor:
    states = m.a(x)[0]
    return m.b((m.s(states).softmax(1) * states).sum(1))


def _seq2seq(m: Any, source: Tensor, target: Tensor) -> Tensor:
    _, state = m.a(m.e(source))
    return m.b(m.d(m.e(target), state)[0])


def _attending(m: Any, source: Tensor, target: Tensor) -> Tensor:
    states, final = m.a(m.e(source))
    queries, _ = m.d(m.e(target), final)
    context = (queries @ states.transpose(1, 2)).softmax(2) @ states
    return m.b(torch.cat([queries, context], 2))


def _conv_lstm(m: Any, x: Tensor) -> Tensor:
    h = c = x.new_zeros(len(x), 2, 4, 4)
    for t in range(x.shape[1]):
        i, f, o, g = m.a(torch.cat([x[:, t], h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return m.b(h.mean((2, 3)))


def _ctc(logs: Tensor, targets: Tensor) -> Tensor:
    count = len(targets)
    times, lengths = torch.full((count,), logs.shape[1]), torch.full((count,), targets.shape[1])
    return functional.ctc_loss(logs.transpose(0, 1), targets, times, lengths, reduction="none")


def _state_space(m: Any, x: Tensor) -> Tensor:
    fresh, decay, state = m.i(x), m.d.sigmoid(), x.new_zeros(len(x), 6)
    for t in range(x.shape[1]):
        state = decay * state + fresh[:, t]
    return m.b(state)
