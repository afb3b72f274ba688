"""What was compared, as the table in README.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from .differences import DIFFERENCES

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- written by the run: -->\n", "<!-- end -->\n"


class Report:
    """Comparisons by group."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._equal: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()

    def add(self, group: str, found: Mapping[str, str], wrong: Mapping[str, str]) -> None:
        """Note one comparison: all differences found, and those that are not allowed."""
        self._sent[group] += 1
        self._equal[group] += not found
        self._wrong[group] += bool(wrong)

    def write(self) -> None:
        """Put the tables into README.md, unless only a part was run."""
        if set(self._sent) != set(GROUPS):
            return
        text = README.read_text("utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        README.write_text(f"{before}{BEGIN}\n{self._table()}\n{_reasons()}\n{END}{after}", "utf-8")

    def _table(self) -> str:
        lines = [
            "| area | requests | equal | intended differences | other differences |",
            "| --- " * 5 + "|",
        ]
        for group in GROUPS:
            sent, equal, wrong = (c[group] for c in (self._sent, self._equal, self._wrong))
            lines.append(f"| {group} | {sent} | {equal} | {sent - equal - wrong} | {wrong} |")
        return "\n".join(lines) + "\n"


GROUPS = ("inference API", "management API", "handlers", "envelopes")


def _reasons() -> str:
    lines = ["| intended difference | requests |", "| --- | --- |"]
    lines += [f"| {one.reason} | {len(one.steps)} |" for one in DIFFERENCES]
    return "\n".join(lines) + "\n"
