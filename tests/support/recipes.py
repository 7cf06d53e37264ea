"""The programs that `docs/guide/many-machines.md` prints."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/guide/many-machines.md"


def code_of(title: str) -> str:
    """The first block of code under a heading."""
    page = PAGE.read_text("utf-8")
    code = re.search(rf"^###? {title}\n(?:(?!^#).*\n)*?```python\n((?:.*\n)*?)```", page, re.MULTILINE)
    assert code is not None, f"{PAGE.name} has no recipe {title!r}"
    return code[1]
