"""A planted fault, loaded by `pytest -p`: filters check their budget by an assert; `python -O` removes it."""

import math
from typing import Any

from sidelight.privacy.filters import Filter

_FAULTY = """
def admit(self, event):
    cost = self.cost(event)
    assert math.fsum([*self._costs, cost]) <= self.total
    self._costs.append(cost)
"""
_made: dict[str, Any] = {"math": math}
exec(compile(_FAULTY, "fault", "exec"), _made)  # as text: pytest makes asserts of a plugin work under -O
Filter.admit = Filter.charge = _made["admit"]  # type: ignore[method-assign]
