"""The programs that pages of the docs print."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def code_of(title: str, page: str = "guide/many-machines.md") -> str:
    """The first block of code under a heading."""
    text = (DOCS / page).read_text("utf-8")
    code = re.search(rf"^###? {title}\n(?:(?!^#).*\n)*?```python\n((?:.*\n)*?)```", text, re.MULTILINE)
    assert code is not None, f"{page} has no recipe {title!r}"
    return code[1]
