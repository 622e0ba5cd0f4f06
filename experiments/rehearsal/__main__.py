"""Does rehearsal help?  python -m experiments.rehearsal [--repeats 4] [--out docs/reproductions/rehearsal.md]

`auto` with and without rehearsal where there are hundreds of public records, beside `only_public`, on the
tables of the PPSGD paper and by its protocol. `auto` rehearses by itself only where the noise is strong,
because there it helps, and elsewhere it costs a little.
"""

from __future__ import annotations

from experiments.sweep import one_thread

one_thread()

import argparse  # noqa: E402  (threads are fixed before NumPy is imported)
from pathlib import Path  # noqa: E402

from experiments import protocol  # noqa: E402
from sidelight import auto  # noqa: E402
from sidelight.methods import only_public  # noqa: E402
from sidelight.methods.task import Method  # noqa: E402

CELLS = [
    ("magic04", "hinge", (0.05, 0.1, 0.5)),
    ("adult-a", "hinge", (0.05, 0.1, 0.5)),
    ("stability", "square", (0.1, 0.3)),
]
METHODS: dict[str, Method] = {
    "never": auto(rehearsal="never"),
    "always": auto(rehearsal="always"),
    "auto": auto(),
    "only_public": only_public(),
}


def rows(repeats: int) -> list[str]:
    lines = [f"| cell | public | ε | {' | '.join(METHODS)} |", "|---" * (3 + len(METHODS)) + "|"]
    for name, loss, epsilons in CELLS:
        data = protocol.table(name)
        for public in (300, 1000):
            share = public / (0.8 * len(data.y))
            splits = [protocol.split(data, repeat=r, public_share=share) for r in range(repeats)]
            for epsilon in epsilons:
                shown = []
                for method in METHODS.values():
                    values = [
                        s.score(protocol.fit(method, s, loss=loss, epsilon=epsilon, seed=r)[0].coef)
                        for r, s in enumerate(splits)
                    ]
                    mean, error, _ = protocol.mean_and_error(values)
                    shown.append(f"{mean:.4f} ± {error:.4f}")
                lines.append(f"| {name} {loss} | {public} | {epsilon:g} | {' | '.join(shown)} |")
                print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.rehearsal", description=__doc__)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = rows(options.repeats)
    if options.out:
        head = f"# Does rehearsal help?\n\n{(__doc__ or '').split(chr(10), 2)[2].strip()}\n"
        command = "`python -m experiments.rehearsal`"
        note = f"\n{command}: mean ± standard error over {options.repeats} splits, δ = 1e-8.\n"
        options.out.write_text(head + note + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
