"""A griffe extension: parameters that a docstring explains become a table.

Our docstrings explain them as lines `name: meaning` in one paragraph, which griffe does not parse.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import griffe


class ParameterParagraphs(griffe.Extension):
    """Rewrites the paragraph in Google's style."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring:
            names = {parameter.name for parameter in func.parameters}
            func.docstring.value = in_google_style(func.docstring.value, names)


def in_google_style(docstring: str, names: Collection[str]) -> str:
    return "\n\n".join(
        f"Args:\n{_indented(paragraph)}" if _explains_parameters(paragraph, names) else paragraph
        for paragraph in docstring.split("\n\n")
    )


def _explains_parameters(paragraph: str, names: Collection[str]) -> bool:
    explained = re.findall(r"^(\w+): ", paragraph, re.MULTILINE)
    return bool(explained) and paragraph.startswith(explained[0]) and set(explained) <= set(names)


def _indented(paragraph: str) -> str:
    return "\n".join(f"    {line}" for line in paragraph.splitlines())
