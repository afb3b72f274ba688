"""``ts.metrics.dimension``."""

from __future__ import annotations


class Dimension:
    """A metric's label: a name and a value."""

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.value = value

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"

    def to_dict(self) -> dict[str, object]:
        """As a dict of ``Name`` and ``Value``."""
        return {"Name": self.name, "Value": self.value}
