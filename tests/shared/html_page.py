"""Parse an HTML page for tests."""

from html.parser import HTMLParser

LOADING = {"src", "href", "srcset", "data", "poster", "action", "background"}


class Page(HTMLParser):
    """The tags of a page, its resources, its links, its text and its data."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.text, self.style = "", ""
        self.data: dict[str, str] = {}
        self._in: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        addresses = [value or "" for name, value in attrs if name in LOADING]
        (self.links if tag == "a" else self.loads).extend(addresses)
        named = dict(attrs)
        self._in = f"json:{named['id']}" if named.get("type") == "application/json" else tag

    def handle_endtag(self, tag: str) -> None:
        self._in = None if tag in ("script", "style") else self._in

    def handle_data(self, data: str) -> None:
        if self._in and self._in.startswith("json:"):
            self.data[self._in[5:]] = self.data.get(self._in[5:], "") + data
        elif self._in == "style":
            self.style += data
        elif self._in != "script":
            self.text += data
