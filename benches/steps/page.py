"""The place of the table in docs/benchmarks.md."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from report import BEGIN, END

if TYPE_CHECKING:
    from pathlib import Path


def between_marks(page: str, text: str) -> str | None:
    """Put a text between the marks of a page, if it has them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}" if begin and end else None


def write(path: Path, text: str) -> None:
    """Write a text into a page."""
    page = between_marks(path.read_text(encoding="utf-8"), text)
    if page is None:
        sys.exit(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(page, encoding="utf-8")
