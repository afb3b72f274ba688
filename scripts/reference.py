"""Writes the table of keys on ``docs/configuration.md`` from the settings' own descriptions."""

from pathlib import Path

from kserve_torch.settings.report import reference

PAGE = Path(__file__).resolve().parent.parent / "docs/configuration.md"
HEADING = "## All keys\n\n"


def main() -> None:
    """Replace what stands below the heading."""
    above, heading, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    PAGE.write_text(above + heading + reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
