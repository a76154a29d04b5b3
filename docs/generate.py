"""Write the tables of `configuration.md` and `metrics.md` from the code: ``python docs/generate.py``.

A page keeps its text; what stands between the two marks is replaced. A test compares the pages with what
this writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seedflow.config.describe import Setting, section_variants, settings
from seedflow.metrics.names import markdown_table

DOCS = Path(__file__).resolve().parent
BEGIN = "<!-- written by docs/generate.py -->\n"
END = "<!-- end of what docs/generate.py writes -->\n"


def settings_tables() -> str:
    """One table for the settings outside of sections, then one for each section."""
    titles = {("", ""): ""} | {(name, variant): title for name, title, variant in section_variants()}
    tables: dict[tuple[str, str], list[Setting]] = {place: [] for place in titles}
    for setting in settings():
        tables[setting.key.rpartition(".")[0], setting.variant].append(setting)
    parts = []
    for (section, variant), rows in tables.items():
        named = f" with `name: {variant}`" if variant else ""
        title = f"### `{section}`{named}\n\n{titles[section, variant]}\n"
        parts.append(title if section else "### The run as a whole\n")
        parts.append("| setting | default | takes | for |\n|---|---|---|---|")
        parts += [
            f"| `{row.key}` | {_default(row.default)} | {_cell(row.takes)} | {_cell(row.description)} |"
            for row in rows
        ]
        parts.append("")
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {"configuration.md": settings_tables, "metrics.md": markdown_table}


def regenerated(page: str, text: str) -> str:
    """The text of a page with its table written anew."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{page} lacks the marks {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}\n{PAGES[page]().rstrip()}\n\n{END}{after}"


def _default(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> None:
    for page in PAGES:
        path = DOCS / page
        path.write_text(regenerated(page, path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
