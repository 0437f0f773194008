"""The progress of a job, as one line on standard error that is rewritten."""

from __future__ import annotations

import sys

_WIDTH = 20


class Progress:
    """Shows bars: as wanted, or if standard error is a terminal or this is a notebook."""

    def __init__(self, wanted: bool | None, name: str) -> None:
        self.on = (sys.stderr.isatty() or "ipykernel" in sys.modules) if wanted is None else wanted
        self._name = name
        self._shown = ""

    def show(self, text: str) -> None:
        """Shows a state such as `map ███ 3/8`."""
        line = f"{self._name}: {text}"
        if self.on and line != self._shown:
            blank = " " * max(0, len(self._shown) - len(line))
            print(f"\r{line}{blank}", end="", file=sys.stderr, flush=True)
            self._shown = line

    def tasks(self, kind: str, done: int, total: int) -> None:
        """Shows that some tasks of a kind have ended."""
        self.show(f"{kind} {bar(done / total if total else 1.0)} {done}/{total}")

    def end(self) -> None:
        """Ends the line."""
        if self._shown:
            print(file=sys.stderr, flush=True)
            self._shown = ""


def bar(part: float) -> str:
    """Returns a bar of which a part from 0 to 1 is full."""
    full = round(min(max(part, 0.0), 1.0) * _WIDTH)
    return "█" * full + "░" * (_WIDTH - full)
