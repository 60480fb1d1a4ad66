"""Sphinx: `make docs` builds the pages of this folder and an API reference from the docstrings."""

import os
import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

PROJECT = Path(__file__).parents[1]
sys.path.insert(0, str(PROJECT / "src"))
os.environ["HF_HUB_OFFLINE"] = "1"
import beaconkv  # noqa: E402

project, author, copyright = "BeaconKV", "the BeaconKV authors", "the BeaconKV authors, Apache-2.0"
release = version = beaconkv.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "sweep/**/*.json"]
html_theme, html_title = "furo", "BeaconKV"
html_theme_options = {"source_view_link": ""}
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["vllm", "prometheus_client"]
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True
default_role = "code"
suppress_warnings = ["myst.header", "toc.not_included"]  # tables of sweeps: linked from results.md alone


def adapt(app, docname, source):
    """Pages of the repository as pages of the site.

    Two of them are outside of this folder. Links to files that are no pages show the name alone.
    """
    if docname in ("contributing", "changelog"):
        text = (PROJECT / f"{docname.upper()}.md").read_text(encoding="utf-8")
        text = text.replace("](docs/", "](").replace("](CHANGELOG.md", "](changelog.md")
    else:
        text = source[0].replace("](../CONTRIBUTING.md", "](contributing.md")
        text = text.replace("](../CHANGELOG.md", "](changelog.md")
    source[0] = re.sub(r"\[([^\]]+)\]\((?:\.\./[^)]*|sweep|examples[^)]*)\)", r"\1", text)


class Mermaid(Directive):
    """A diagram. The site shows its source: drawing it would take a script from another server."""

    has_content = True

    def run(self):
        text = "\n".join(self.content)
        return [nodes.literal_block(text, text, language="text")]


def setup(app):
    app.connect("source-read", adapt)
    app.add_directive("mermaid", Mermaid)
