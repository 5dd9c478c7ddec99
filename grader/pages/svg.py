"""Drawings as SVG text: every number is formatted, every text is made inert, nothing else gets in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from grader.report.inert import markup

Attribute = str | float | int


@dataclass
class Drawing:
    """An SVG image that scales with its column; a screen reader gets `title` and `description`.

    Colours come from the page's classes, so that light and dark and contrast are decided in one place.
    """

    width: float
    height: float
    title: str
    description: str
    css_class: str = "plot"
    _parts: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, css_class: str) -> None:
        self._add("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": css_class})

    def path(self, points: list[tuple[float, float]], css_class: str) -> None:
        steps = " ".join(f"{'M' if not i else 'L'}{_number(x)} {_number(y)}" for i, (x, y) in enumerate(points))
        self._add("path", {"d": steps, "class": css_class})

    def rect(self, x: float, y: float, width: float, height: float, css_class: str, *, title: str = "") -> None:
        self._add("rect", {"x": x, "y": y, "width": width, "height": height, "class": css_class}, title=title)

    def circle(self, x: float, y: float, radius: float, css_class: str, *, title: str = "") -> None:
        self._add("circle", {"cx": x, "cy": y, "r": radius, "class": css_class}, title=title)

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", css_class: str = "label") -> None:
        attributes: dict[str, Attribute] = {"x": x, "y": y, "text-anchor": anchor, "class": css_class}
        self._parts.append(f"<text {_attributes(attributes)}>{markup(text, max_characters=120, max_lines=1)}</text>")

    def open_group(self, **data: str) -> None:
        """Start a group with ``data-`` attributes; `close_group` ends it."""
        self._parts.append(f"<g {_attributes({f'data-{name}': value for name, value in data.items()})}>")

    def close_group(self) -> None:
        self._parts.append("</g>")

    def _add(self, name: str, attributes: dict[str, Attribute], *, title: str = "") -> None:
        if title:
            inner = f"<title>{markup(title, max_characters=200, max_lines=1)}</title>"
            self._parts.append(f"<{name} {_attributes(attributes)}>{inner}</{name}>")
        else:
            self._parts.append(f"<{name} {_attributes(attributes)}/>")

    def __html__(self) -> str:
        """The image; jinja2 takes it as it is, since each of its texts is escaped already."""
        box = f"0 0 {_number(self.width)} {_number(self.height)}"
        words = f"<title>{markup(self.title)}</title><desc>{markup(self.description)}</desc>"
        body = "\n".join(self._parts)
        return f'<svg role="img" class="{markup(self.css_class)}" viewBox="{box}">{words}\n{body}\n</svg>'


def _attributes(attributes: dict[str, Attribute]) -> str:
    return " ".join(
        f'{name}="{markup(value, max_characters=4000, max_lines=1) if isinstance(value, str) else _number(value)}"'
        for name, value in attributes.items()
    )


def _number(value: float) -> str:
    """At most two decimals; an infinite or missing number has no place in a picture.

    Raises:
        ValueError: it isn't finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"a drawing needs finite numbers, found {value}")
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
