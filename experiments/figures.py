"""Tables in Markdown, and line plots beside them if matplotlib is there (sidelight[experiments])."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.protocol import mean_and_error

Points = Mapping[float, Sequence[float]]  # x → the values of its repeats
Panel = Mapping[str, Points]  # the name of a line → its points


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def panel_table(panel: Panel, x_name: str, digits: int = 4) -> str:
    """A row a line, a column an x: mean ± standard error (number of repeats)."""
    xs = sorted({x for points in panel.values() for x in points})
    rows = []
    for name, points in panel.items():
        cells = []
        for x in xs:
            mean, error, n = mean_and_error(points.get(x, ()))
            spread = f" ± {error:.{digits}f}" if n > 1 else ""
            cells.append(f"{mean:.{digits}f}{spread}" if n else "–")
        rows.append([name, *cells])
    return markdown([x_name, *(f"{x:g}" for x in xs)], rows)


def plot(
    panels: Mapping[str, Panel], path: Path, *, x_name: str, y_name: str, log_x: bool = True,
    columns: int = 3, legend_columns: int | None = None, ticks: Sequence[float] = (),
) -> bool:  # fmt: skip
    """One picture of several panels with a common legend; False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "sidelight"  # the same picture is the same file
    matplotlib.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    count = len(panels)
    columns = min(columns, count)
    depth = -(-count // columns)
    figure, axes = plt.subplots(depth, columns, figsize=(4.2 * columns, 3.2 * depth + 0.8), squeeze=False)
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    style = {name: (f"C{k % 10}", "osv^Dx+*<>"[k % 10]) for k, name in enumerate(names)}
    handles = {}
    for axis, (title, panel) in zip(axes.flat, panels.items(), strict=False):
        for name, points in panel.items():
            xs = sorted(points)
            stats = [mean_and_error(points[x]) for x in xs]
            errors = [0.0 if n < 2 else error for _, error, n in stats]
            color, marker = style[name]
            handles[name] = axis.errorbar(
                xs, [mean for mean, _, _ in stats], errors, label=name, color=color, marker=marker, ms=4
            )
        axis.set(title=title, xlabel=x_name, ylabel=y_name, xscale="log" if log_x else "linear")
        axis.grid(alpha=0.3)
        if ticks:
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
    for axis in axes.flat[count:]:
        axis.axis("off")
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="lower center",
        ncols=legend_columns or min(2 * columns, len(handles)),
    )
    figure.tight_layout(rect=(0, 0.8 / figure.get_figheight(), 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return True
