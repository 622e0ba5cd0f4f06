"""LaTeX to MathML, which browsers draw by themselves: no script, nothing fetched.

As much of LaTeX as docs/specification.md uses. What is not known is an error, so that a page never shows
half a formula.
"""

from __future__ import annotations

import re
from html import escape

__all__ = ["UnknownMacro", "mathml"]


class UnknownMacro(ValueError):
    """LaTeX that this page's formulas did not use so far; add it here."""


LETTERS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "varepsilon": "ε", "epsilon": "ϵ", "eta": "η",
    "theta": "θ", "kappa": "κ", "lambda": "λ", "mu": "μ", "nu": "ν", "pi": "π", "rho": "ρ", "sigma": "σ",
    "tau": "τ", "phi": "ϕ", "varphi": "φ", "omega": "ω", "ell": "ℓ", "nabla": "∇", "infty": "∞", "top": "⊤",
    "Gamma": "Γ", "Delta": "Δ", "Lambda": "Λ", "Phi": "Φ", "Psi": "Ψ", "Sigma": "Σ", "Omega": "Ω",
}  # fmt: skip
OPERATORS = {
    "le": "≤", "ge": "≥", "ll": "≪", "cdot": "·", "times": "×", "in": "∈", "sim": "∼", "approx": "≈",
    "propto": "∝", "pm": "±", "nmid": "∤", "cup": "∪", "mapsto": "↦", "iff": "⟺", "Rightarrow": "⇒",
    "leftarrow": "←", "dots": "…", "sum": "∑", "int": "∫", "lVert": "‖", "rVert": "‖", "Vert": "‖",
    "lvert": "|", "rvert": "|", "lceil": "⌈", "rceil": "⌉", "{": "{", "}": "}", "|": "‖",
}  # fmt: skip
FUNCTIONS = {"log", "min", "max", "arg", "cos", "tanh", "exp", "Pr"}
SPACES = {",": 0.17, ";": 0.28, "!": 0.0, " ": 0.25, "quad": 1.0, "qquad": 2.0}
SIZES = {"big", "Big", "bigl", "bigr"}
_DOUBLE = {"E": "𝔼", "R": "ℝ", "P": "ℙ", "N": "ℕ", "1": "𝟙"}
_SCRIPT = {"B": "ℬ", "E": "ℰ", "F": "ℱ", "H": "ℋ", "I": "ℐ", "L": "ℒ", "M": "ℳ", "R": "ℛ"}
_THIN = '<mspace width="0.17em"></mspace>'
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\s+|.", re.S)


def mathml(source: str, *, display: bool = False) -> str:
    """A <math> element for a formula."""
    parser = _Parser(source)
    body = parser.row(until=None)
    kind = ' display="block"' if display else ""
    return f"<math{kind}><mrow>{body}</mrow></math>"


class _Parser:
    def __init__(self, source: str) -> None:
        self.tokens = [token for token in _TOKEN.findall(source) if not token.isspace()]
        self.source, self.place = source, 0

    def peek(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise UnknownMacro(f"a formula ends too early: {self.source}")
        self.place += 1
        return token

    def row(self, until: str | None) -> str:
        """Atoms with their scripts, up to a closing token."""
        out = []
        while (token := self.peek()) is not None and token != until:
            out.append(self.scripted())
        if until is not None:
            self.take()
        return "".join(out)

    def scripted(self) -> str:
        base = self.atom()
        below = above = ""
        while self.peek() in ("_", "^", "'"):
            match self.take():
                case "_":
                    below = self.argument()
                case "^":
                    above += self.argument()
                case _:
                    above += "<mo>′</mo>"
        if below and above:
            return f"<msubsup>{base}<mrow>{below}</mrow><mrow>{above}</mrow></msubsup>"
        if below:
            return f"<msub>{base}<mrow>{below}</mrow></msub>"
        return f"<msup>{base}<mrow>{above}</mrow></msup>" if above else base

    def argument(self) -> str:
        """A group in braces, or one atom."""
        if self.peek() == "{":
            self.take()
            return self.row(until="}")
        return self.atom()

    def text(self) -> str:
        """The plain letters of a group in braces, or of one token."""
        if self.peek() != "{":
            return self.take()
        self.take()
        letters = []
        while (token := self.take()) != "}":
            letters.append(token.lstrip("\\"))
        return "".join(letters)

    def atom(self) -> str:
        token = self.take()
        if token == "{":
            return f"<mrow>{self.row(until='}')}</mrow>"
        if token.startswith("\\"):
            return self.macro(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token == "/":
            return '<mo lspace="0" rspace="0">/</mo>'
        return f'<mo stretchy="false">{escape({"-": "−", "*": "∗"}.get(token, token))}</mo>'

    def macro(self, name: str) -> str:
        if name in LETTERS:
            return f"<mi>{LETTERS[name]}</mi>"
        if name in OPERATORS:
            return f'<mo stretchy="false">{OPERATORS[name]}</mo>'
        if name in FUNCTIONS:
            apart = "" if self.peek() in (None, "(", "_", "^", "\\big", "\\Big", "\\left") else _THIN
            return f"<mi>{name}</mi>{apart}"
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}em"></mspace>'
        if name in SIZES:
            return ""
        built = getattr(self, f"macro_{name}", None)
        if built is None:
            raise UnknownMacro(f"\\{name} is not known to docs/_hooks/maths.py, in: {self.source}")
        return str(built())

    def macro_frac(self) -> str:
        return f"<mfrac><mrow>{self.argument()}</mrow><mrow>{self.argument()}</mrow></mfrac>"

    macro_tfrac = macro_dfrac = macro_frac

    def macro_binom(self) -> str:
        top, bottom = self.argument(), self.argument()
        inside = f'<mfrac linethickness="0"><mrow>{top}</mrow><mrow>{bottom}</mrow></mfrac>'
        return f"<mrow><mo>(</mo>{inside}<mo>)</mo></mrow>"

    def macro_sqrt(self) -> str:
        return f"<msqrt>{self.argument()}</msqrt>"

    def macro_hat(self) -> str:
        return f'<mover accent="true"><mrow>{self.argument()}</mrow><mo stretchy="false">^</mo></mover>'

    def macro_mathrm(self) -> str:
        return f'<mi mathvariant="normal">{escape(self.text())}</mi>'

    def macro_text(self) -> str:
        return f"<mtext>{escape(self.text())}</mtext>"

    def macro_mathbf(self) -> str:
        return f'<mi mathvariant="normal" style="font-weight:bold">{escape(self.text())}</mi>'

    def macro_mathbb(self) -> str:
        return f"<mi>{_DOUBLE[self.text()]}</mi>"

    def macro_mathcal(self) -> str:
        letter = self.text()
        return f"<mi>{_SCRIPT.get(letter) or chr(0x1D49C + ord(letter) - ord('A'))}</mi>"

    def macro_tag(self) -> str:
        return f'<mspace width="2em"></mspace><mtext>({escape(self.text())})</mtext>'

    def macro_left(self) -> str:
        opening = self.delimiter()
        inside = self.row(until="\\right")
        return f"<mrow>{opening}{inside}{self.delimiter()}</mrow>"

    def delimiter(self) -> str:
        token = self.take().lstrip("\\")
        return "" if token == "." else f"<mo>{escape(OPERATORS.get(token, token))}</mo>"

    def macro_begin(self) -> str:
        kind, rows = self.text(), [[""]]
        if kind != "cases":
            raise UnknownMacro(f"\\begin{{{kind}}} is not known to docs/_hooks/maths.py, in: {self.source}")
        while (token := self.peek()) != "\\end":
            if token in ("&", "\\\\"):
                self.take()
                rows.append([""]) if token == "\\\\" else rows[-1].append("")
            else:
                rows[-1][-1] += self.scripted()
        self.take(), self.text()
        cells = ("".join(f"<mtd>{cell}</mtd>" for cell in row) for row in rows)
        table = "".join(f"<mtr>{row}</mtr>" for row in cells)
        return f'<mrow><mo>{{</mo><mtable columnalign="left">{table}</mtable></mrow>'
