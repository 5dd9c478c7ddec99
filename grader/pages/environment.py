"""The template engine, set up once: escapes everything, cleans what it is told to, refuses unknown names."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from grader.errors import InfrastructureError
from grader.report.text import clean, count_points, one_line, points

TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise InfrastructureError(
            "Pages need jinja2, which isn't installed.", hint="Install the grader with its extra `pages`."
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "line": one_line,
        "clean": partial(clean, max_lines=40, max_characters=4000),
        "points": points,
        "count_points": count_points,
    }
    environment.filters.update(filters)
    return environment


def render(template: str, *, style: Sequence[str], script: str = "", **values: Any) -> str:
    """One self-contained page.

    Its policy allows the very style and script that it holds, told by their hashes, and nothing from elsewhere.

    Args:
        style, script: names of files beside the template; styles are put one after another.
        values: for the template; strings are escaped there, `svg.Drawing` goes in as it is.

    Raises:
        InfrastructureError: jinja2 isn't installed.
    """
    from markupsafe import Markup

    css = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in style)
    code = (TEMPLATES / script).read_text(encoding="utf-8") if script else ""
    policy = f"default-src 'none'; style-src '{_hash(css)}'; base-uri 'none'; form-action 'none'"
    if code:
        policy += f"; script-src '{_hash(code)}'"
    page: str = (
        _environment().get_template(template).render(policy=policy, css=Markup(css), script=Markup(code), **values)
    )
    return page


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
