"""Reads XML from an untrusted file into plain elements that know their line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

# More than the description of a rack with NVLink needs.
MAX_BYTES = 8 << 20
MAX_ELEMENTS = 20_000
MAX_DEPTH = 64


@dataclass
class Element:
    """An element, without its text."""

    name: str
    line: int
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)

    def __str__(self) -> str:
        return f"line {self.line}, <{self.name}>"

    def text(self, key: str, default: str = "") -> str:
        """Returns an attribute as it is written."""
        return self.attributes.get(key, default)

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Returns a whole number, which may be hexadecimal with 0x.

        Args:
            default: for a missing or empty attribute; ``None``: the attribute is required.

        Raises:
            ValueError: it is missing, no number, or not from ``low`` to ``high``.
        """
        text = self.text(key).strip()
        if not text and default is not None:
            return default
        if not re.fullmatch(r"-?(\d{1,18}|0[xX][0-9a-fA-F]{1,16})", text):
            given = f"{key}={text[:40]!r}" if key in self.attributes else f"no {key}"
            raise ValueError(f"{self} has {given}: a whole number is expected")
        number = int(text, 16 if "x" in text.lower() else 10)
        if not low <= number <= high:
            raise ValueError(f"{self} has {key}={text!r}: {low} to {high} is expected")
        return number


def parse(text: str | bytes) -> Element:
    """Returns the outermost element of a document.

    Entities are refused, so that nothing outside of the text is read and nothing in it grows.

    Raises:
        ValueError: it is no XML, not UTF-8, has a DOCTYPE, or is larger than any machine's; the
            text names the line.
    """
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if len(raw) > MAX_BYTES:
        raise ValueError(f"the XML has more than the {MAX_BYTES >> 20} MiB that are accepted")
    try:
        raw.decode()  # expat would guess other encodings
    except UnicodeDecodeError as error:
        raise ValueError(f"no XML in UTF-8: {error}") from None
    root: list[Element] = []
    open_elements: list[Element] = []
    count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        line = parser.CurrentLineNumber
        if count > MAX_ELEMENTS:
            raise ValueError(f"line {line}: more than the {MAX_ELEMENTS} elements accepted")
        if len(open_elements) == MAX_DEPTH:
            raise ValueError(f"line {line}: nested deeper than the {MAX_DEPTH} levels accepted")
        element = Element(name, line, attributes)
        (open_elements[-1].children if open_elements else root).append(element)
        open_elements.append(element)

    def end(name: str) -> None:
        open_elements.pop()

    def doctype(*_: object) -> None:
        line = parser.CurrentLineNumber
        raise ValueError(f"line {line}: a DOCTYPE is not accepted: remove it")

    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(raw, True)
    except expat.ExpatError as error:
        raise ValueError(f"no XML: {error}") from None
    return root[0]
