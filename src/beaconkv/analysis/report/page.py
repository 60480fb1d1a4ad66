"""Writing the page."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from .arrays import strings
from .contents import contents

SCRIPTS = (
    "data.js",
    "state.js",
    "words.js",
    "colours.js",
    "chart.js",
    "controls.js",
    "frequency.js",
    "text.js",
    "keys.js",
    "panel.js",
    "overview.js",
    "distance.js",
    "life.js",
    "curves.js",
    "page.js",
)
"""Scripts in the order in which they are joined to one scope; the last one starts the page."""


def render_page(data: Mapping[str, Any]) -> str:
    """One HTML file to explore a trace.

    L layers, H query heads and H_kv KV heads per layer, T tokens, n heads that can be explored, K targets of a query.

    Args:
        data: Fields of the page:

            - ``title``, ``subtitle``: text; ``facts``: list of sentences for the top.
            - ``tokens``: T texts; the first ``prompt_length`` are the prompt.
            - ``local_distance``, ``top_keys``: a query is global if the mean distance to its ``top_keys`` keys
              exceeds ``local_distance``.
            - ``num_layers``, ``num_heads``, ``num_kv_heads``: of the model; ``layers``: the L that were recorded.
            - ``frequency`` (L, H): share of global queries, NaN where unknown.
            - ``heads``: n of ``{layer, head, kv_head, share}``; ``layer`` is one of ``layers``.
            - ``is_global``, ``distance`` (n, T): of each query, the latter the mean to its top keys.
            - ``targets``, ``weights`` (n, T, K): positions attended to most, strongest first, -1 where there are
              fewer; their shares of attention.
            - ``policies``: list, possibly empty, of ``label``, ``budget``, ``colour`` (#rrggbb), ``summary`` (rows of
              two texts), ``dropped`` (L, H_kv, T), ``steps`` (E,), ``lost`` (n, E + 1), ``coverage`` (n, T) or None.
              Queries after position ``dropped[..., j]`` do not see entry j; 2147483647 if all do. ``steps`` are the
              positions after which entries were evicted; ``lost`` the mean share of attention lost in each cycle
              between them; ``coverage`` the best cosine of a query to the observation queries of the last eviction.

    Raises:
        ValueError: a field is missing or does not fit the others; the message names it.
    """
    checked = contents(data)
    style, theme = _static("page.css"), _static("theme.js")
    script = "(() => {\n'use strict';\n" + "\n".join(_static(name) for name in SCRIPTS) + "\n})();\n"
    parts = {
        "policy": _security(style, [theme, script]),
        "title": _text(checked["title"]),
        "subtitle": _text(checked["subtitle"]),
        "facts": "\n".join(f"<li>{_text(fact)}</li>" for fact in strings(data, "facts")),
        "style": style,
        "theme": theme,
        "script": script,
        "data": _json(checked),
    }
    # In one pass, so that inserted text is not searched for further names.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _static("page.html"))


def _static(name: str) -> str:
    return resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _text(value: str) -> str:
    """The text as HTML; lone surrogates, which no encoding can write, become question marks."""
    return html.escape(value.encode("utf-8", "replace").decode("utf-8"))


def _json(value: Any) -> str:
    """JSON in ASCII without characters that could end the HTML element around it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _security(style: str, scripts: list[str]) -> str:
    """A content security policy: the page's style and scripts by their hashes, nothing else, and no connections."""
    allowed = " ".join(_hash(script) for script in scripts)
    return f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {allowed}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
