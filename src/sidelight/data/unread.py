"""Private records that nobody has read yet: what a plan is made with."""

from __future__ import annotations

from typing import NoReturn

from sidelight.data.rows import PrivateRows
from sidelight.errors import PrivacyConditionError

__all__ = ["UnreadRows"]


class UnreadRows(PrivateRows):
    """n, p and the bound on norms, which are public, and no records.

    A method plans with these, before the charge. So a plan that looks at a private record is not a promise
    that somebody has to keep: it fails.
    """

    __slots__ = ("unit",)

    def __init__(self, n: int, p: int, *, max_norm: float, unit: str = "record") -> None:
        self.n, self.p, self.max_norm, self.unit = n, p, float(max_norm), unit

    @property
    def _contents(self) -> NoReturn:  # type: ignore[override]
        raise PrivacyConditionError(
            "a plan asked for private records, which are read only after they were charged; "
            "plan with n, p, bounds and public records"
        )
