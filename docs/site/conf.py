"""Sphinx builds the site from the pages in docs, the README and the code: ``make docs``."""

import sys
import tempfile
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from command_line import commands  # noqa: E402 - from this folder
from execute import executed  # noqa: E402

import kinfed  # noqa: E402

project = "kinfed"
release = kinfed.__version__
copyright = "the kinfed authors, Apache-2.0"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["results/data", "site"]

html_theme = "furo"
html_title = f"kinfed {release}"
html_show_sourcelink = False

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 6  # links to headings are those of GitHub
copybutton_exclude = ".linenos, .gp"  # not the $ of a console

autodoc_default_options = {"members": True}
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
napoleon_use_ivar = True
default_role = "py:obj"  # `compare` in a docstring leads to compare
python_use_unqualified_type_names = True
add_module_names = False
suppress_warnings = ["ref.python"]  # a class is listed in kinfed and in the module that it comes from


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Add to some pages what they do not have in the repository."""
    if page == "index":
        source[0] = _from_root("README.md") + source[0]
    elif page in ("changelog", "contributing"):
        source[0] = _from_root(f"{page.upper()}.md")
    elif page in ("methods", "results"):
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{page}/*\n```\n"
    elif page == "reference/commands":
        source[0] += commands()
    elif page == "tutorial":
        with tempfile.TemporaryDirectory() as folder:
            source[0] = executed(source[0], Path(folder))


def _from_root(name: str) -> str:
    """Return a page of the repository's root with links that hold in docs."""
    text = (ROOT / name).read_text().replace("](docs/", "](").replace("](examples)", "](examples.md)")
    for page in ("CHANGELOG", "CONTRIBUTING"):
        text = text.replace(f"]({page}.md)", f"]({page.lower()}.md)")
    return text.replace("](CITATION.cff)", "](../CITATION.cff)")


def setup(app: Sphinx) -> None:
    """Connect this file to the build."""
    app.connect("source-read", _fill)
