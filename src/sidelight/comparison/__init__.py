"""Methods side by side: `compare` rehearses them on public rows; the demo shows them on made-up ones."""

from sidelight.comparison.stages import Comparison, Stage, Trial, trials

__all__ = ["Comparison", "Stage", "Trial", "trials"]
