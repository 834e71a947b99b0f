"""One HTML file with everything in it: data, style, and scripts.

The browser is told to run these two scripts and no other, and to load nothing, because someone may have written text
into a store in order to have it run in the browser. The data is in an element that is not run, without any character
that could end it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib import import_module
from typing import Any

from kstore.errors import PackageMissing
from kstore.packaged import read_packaged

_UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def make_page(facts: Mapping[str, Any]) -> str:
    """The page that shows what `collect_facts` found.

    Raises:
        PackageMissing: plotly is not installed.
    """
    plotly, own = _script(_plotly()), _script(_read("report.js"))
    policy = f"default-src 'none'; script-src {_hash(plotly)} {_hash(own)}; style-src 'unsafe-inline'; img-src data:"
    return "".join((
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n',
        f"<title>kstore: {escape(str(facts['store']))}</title>\n",
        f"<style>\n{_read('report.css')}</style>\n</head>\n<body>\n{_read('report.html')}",
        f'<script type="application/json" id="facts">{_data(facts)}</script>\n',
        f"<script>{plotly}</script>\n<script>{own}</script>\n</body>\n</html>\n",
    ))  # fmt: skip


def check_plotly() -> None:
    """Check that a page can be made, before the facts are collected for it.

    Raises:
        PackageMissing: plotly is not installed.
    """
    _import_plotly()


def _data(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def _plotly() -> str:
    script: str = _import_plotly().get_plotlyjs()
    return script


def _import_plotly() -> Any:
    try:
        return import_module("plotly.offline")
    except ImportError as error:
        raise PackageMissing(f"a report needs plotly ({error}): pip install plotly") from error


def _script(text: str) -> str:
    """A script as it can stand in a page: with line ends as a browser reads them, without what would end it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return read_packaged(__package__, name).decode()
