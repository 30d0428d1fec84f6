"""Reads a page as a browser does, as far as the tests ask: that it is well-formed, what it says, what it would load."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br"}
LOADING = {"src", "srcset", "data", "action", "formaction", "poster", "background", "xlink:href", "style"}
"""Attributes with which an element could load or run something; links are in `Parsed.links`."""


@dataclass(slots=True)
class Element:
    """An element and what is in it."""

    tag: str
    attributes: dict[str, str]
    parts: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text in it, with single spaces."""
        return " ".join("".join(part if isinstance(part, str) else f" {part.text} " for part in self.parts).split())

    def all(self, tag: str, style: str | None = None) -> list[Element]:
        """Return the elements of a tag in it, with a class if one is given, in order."""
        found = []
        for part in self.parts:
            if isinstance(part, Element):
                if part.tag == tag and (style is None or style in part.attributes.get("class", "").split()):
                    found.append(part)
                found += part.all(tag, style)
        return found

    def facts(self) -> dict[str, str]:
        """Return the names and values of the lists in it."""
        names, values = ([each.text for each in self.all(tag)] for tag in ("dt", "dd"))
        return dict(zip(names, values, strict=True))

    def rows(self) -> list[list[str]]:
        """Return the texts of a table's cells."""
        return [
            [cell.text for cell in row.parts if isinstance(cell, Element) and cell.tag in ("th", "td")]
            for row in self.all("tr")
        ]


class Parsed(HTMLParser):
    """A page that was read.

    Attributes:
        root: What is in the page.
        attributes: All attributes: element, name and value.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.attributes: list[tuple[str, str, str]] = []
        self._open = [self.root]
        assert text.startswith("<!DOCTYPE html>\n")
        self.feed(text)
        self.close()
        assert [each.tag for each in self._open] == [""], "elements are left open"

    def handle_starttag(self, tag, attrs):
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._open[-1].parts.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        self._open[-1].parts.append(data)

    def all(self, tag: str, style: str | None = None) -> list[Element]:
        """Return the elements of a tag, with a class if one is given, in order."""
        return self.root.all(tag, style)

    def section(self, name: str) -> Element:
        """Return the only section whose heading begins with a name."""
        [found] = [each for each in self.all("section") if each.all("h2")[0].text.startswith(name)]
        return found

    @property
    def links(self) -> list[str]:
        """Where its links lead."""
        return [value for _, name, value in self.attributes if name == "href"]
