"""Tables in Markdown, and line plots beside them if matplotlib is there (sidelight[experiments])."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.protocol import mean_and_error

# In every picture: what is ours, public rows alone, no privacy; then the others, each in a color of its own.
# All are legible on the pages' light and dark backgrounds.
OURS, PUBLIC, OTHER, THIRD, FREE = "#2f88b5", "#d2632f", "#3a9a6b", "#9a62b8", "#7d848c"
INK = FREE
_OTHERS = (OTHER, THIRD, "#b58a1f", "#c2557f", "#5a6fd0", "#8a6d4b", "#2a9d9d", "#a3a13a", OURS, PUBLIC)
_ROLES = {
    "sidelight": OURS,
    "auto": OURS,
    "public rows alone": PUBLIC,
    "only_public": PUBLIC,
    "without privacy": FREE,
    "no privacy": FREE,
    "non_private": FREE,
    "nonprivate": FREE,
}
_MARKERS = "osv^DPX*<>"

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


def use_look() -> None:
    """No background, and ink that shows on a light and on a dark page; the same picture is the same file."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "sidelight", "svg.fonttype": "none", "font.size": 10})
    matplotlib.rcParams.update({"text.color": INK, "xtick.color": INK, "ytick.color": INK})
    matplotlib.rcParams.update({"axes.labelcolor": INK, "axes.edgecolor": INK, "legend.frameon": False})
    matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})


def colors(names: Sequence[str]) -> dict[str, str]:
    """One per line: by role if it has one, else one that no role of this picture takes."""
    chosen = {name: role for name in names if (role := _role(name, names))}
    free = [color for color in _OTHERS if color not in chosen.values()]
    rest = [name for name in names if name not in chosen]
    return chosen | {name: free[k % len(free)] for k, name in enumerate(rest)}


def _role(name: str, names: Sequence[str]) -> str | None:
    """Of several names that fit one role, the first has its color."""
    for word, color in _ROLES.items():
        fits = [one for one in names if word in one.lower()]
        if fits and fits[0] == name:
            return color
    return None


def plot(
    panels: Mapping[str, Panel], path: Path, *, x_name: str, y_name: str, log_x: bool = True,
    columns: int = 3, legend_columns: int | None = None, ticks: Sequence[float] = (),
) -> bool:  # fmt: skip
    """One picture of several panels with a common legend; False if matplotlib is not installed."""
    try:
        use_look()
    except ImportError:
        return False
    import matplotlib.pyplot as plt

    count = len(panels)
    columns = min(columns, count)
    depth = -(-count // columns)
    figure, axes = plt.subplots(depth, columns, figsize=(4.2 * columns, 3.2 * depth + 0.8), squeeze=False)
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    color_of = colors(names)
    style = {name: (color_of[name], _MARKERS[k % 10]) for k, name in enumerate(names)}
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
    figure.savefig(path, metadata={"Date": None}, transparent=True)
    plt.close(figure)
    return True
