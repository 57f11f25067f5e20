"""Read a page of HTML as a browser would."""

from html.parser import HTMLParser

_VOID = {"meta", "link", "img", "input", "option", "rect", "circle", "path", "line"}


class Page(HTMLParser):
    """A page: its elements with their attributes, its ids, and its text.

    Closing tags must match. `open` has the elements that are not closed.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        self.ids = [attrs["id"] for _, attrs in self.elements if "id" in attrs]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data
