"""Sphinx's configuration: `make docs`."""

from __future__ import annotations

import importlib.metadata
import re
from types import FunctionType
from typing import TYPE_CHECKING

import gradclip

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "gradclip"
author = "the gradclip authors"
release = version = importlib.metadata.version("gradclip")

# autodoc looks for overloads in the module that a function names. The package's functions name the package.
for name in gradclip.__all__:
    if isinstance(found := getattr(gradclip, name), FunctionType):
        found.__module__ = found.__globals__["__name__"]

extensions = ["sphinx.ext.autodoc", "myst_parser", "numpydoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

nitpicky = True
default_role = "py:obj"  # names in docstrings are links
autodoc_mock_imports = ["optree", "torch"]  # extras, which the pages do without
# Types of Python, NumPy and torch, whose inventories are not at hand offline.
_OF_OTHERS = ("collections.abc.Mapping", "npt.ArrayLike", "npt.NDArray", "np.float64", "torch.Tensor")
nitpick_ignore = [("py:class", name) for name in _OF_OTHERS]
autosummary_generate = False  # numpydoc brings autosummary along; pages are written by hand
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

html_theme = "pydata_sphinx_theme"
html_title = "gradclip"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
}
# These pages have no pages below them, so the sidebar would be empty.
html_sidebars: dict[str, list[str]] = {
    "accuracy": [],
    "benchmarks": [],
    "benchmarks-loops": [],
    "configuration": [],
    "differences-from-tensorflow": [],
    "examples": [],
    "faq": [],
    "quickstart": [],
    "reliability": [],
}
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True


def follow(_: Sphinx, __: str, source: list[str]) -> None:
    """Point links to the files that are pages of the site at these pages: in the repository they lie elsewhere."""
    pages = r"\]\((?:\.\./)*(DESIGN|CONTRIBUTING|CHANGELOG)\.md"
    text = re.sub(pages, lambda found: f"](/develop/{found[1].lower()}.md", source[0])
    source[0] = text.replace("](docs/", "](/")


def setup(app: Sphinx) -> None:
    """Connect the function above, also for included files."""
    app.connect("source-read", follow)
    app.connect("include-read", lambda app, path, _, source: follow(app, str(path), source))
