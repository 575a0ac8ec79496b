"""A report read back with the standard library's parser: figures, tables, ids, links, and what is wrong with it."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input", "hr"}


class HtmlPage(HTMLParser):
    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.ids, self.links, self.outside, self.images, self.problems, self.stack = [], [], [], [], [], []
        self.figures, self.headings, self.rows, self.tiles, self.texts = {}, [], [], {}, []
        self.figure = self.row = self.term = None
        self.feed(html)
        self.close()
        self._judge()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in VOID:
            self.stack.append((tag, values))
        if "id" in values:
            self.ids.append(values["id"])
        for name in ("href", "src", "xlink:href", "action", "srcset"):
            if values.get(name, "").startswith("#"):
                self.links.append(values[name][1:])
            elif name in values and not values[name].startswith("data:"):
                self.outside.append(values[name])
        if tag in ("script", "link", "iframe", "object"):
            self.outside.append(f"<{tag}>")
        if tag == "figure":
            self.figure = self.figures[values["id"]] = {"drawings": 0, "texts": [], "alts": [], "caption": ""}
        if self.figure is not None and (tag == "img" or (tag == "svg" and values.get("role") == "img")):
            self.figure["drawings"] += 1
            self.figure["alts"].append(values.get("alt") or values.get("aria-label") or "")
            if tag == "img" and not values["src"].startswith("data:image/png;base64,iVBOR"):
                self.problems.append(f"{values['src'][:40]} is no image")
        if tag == "tr":
            self.row = []

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        if not self.stack or self.stack[-1][0] != tag:
            self.problems.append(f"</{tag}> closes {self.stack[-1:]}")
            return
        self.stack.pop()
        if tag == "figure":
            self.figure = None
        if tag == "tr":
            self.rows.append(tuple(self.row))
            self.row = None

    def handle_data(self, data):
        text = data.strip()
        if not text or not self.stack:
            return
        tag, values = self.stack[-1]
        tags = [name for name, _ in self.stack]
        if "style" not in tags:
            self.texts.append(text)
        if self.figure is not None:
            self.figure["texts"].append(text)
            if "figcaption" in tags:
                self.figure["caption"] += text + " "
        if tag in ("h1", "h2", "h3"):
            self.headings.append((tag, text))
        if self.row is not None and tag in ("td", "th"):
            self.row.append(text)
        if tag == "dt":
            self.term = text
        if tag == "dd" and values.get("class") == "value":
            self.tiles[self.term] = text

    def _judge(self):
        self.problems += [f"<{tag}> is not closed" for tag, _ in self.stack]
        self.problems += [f"id {name} twice" for name in set(self.ids) if self.ids.count(name) > 1]
        self.problems += [f"#{target} leads nowhere" for target in set(self.links) - set(self.ids)]
        self.problems += [f"asks for {where}" for where in self.outside]
        for name, figure in self.figures.items():
            if not figure["drawings"]:
                self.problems.append(f"figure {name} has no drawing")
            if not figure["caption"].strip():
                self.problems.append(f"figure {name} has no caption")
            if not all(figure["alts"]):
                self.problems.append(f"figure {name} has a drawing without a text")
        if [tag for tag, _ in self.headings].count("h1") != 1:
            self.problems.append("not one h1")

    @property
    def text(self):
        return " ".join(self.texts)
