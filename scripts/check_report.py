"""Looks at a report in headless Chromium: `python -m scripts.check_report report.html [--shots FOLDER]`.

Checked: nothing on the console, nothing loaded from elsewhere, every figure has a size and legible words, every link
and summary can be reached with the Tab key, nothing sticks out of a narrow window, and it prints. Needs Chromium or
Chrome on the PATH (or in CHROME), and nothing else: the browser is spoken to through its debugging pipe.
"""

import argparse
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
)
PATIENCE = 60  # seconds
SMALLEST = 8  # pixels of a letter in a drawing, also on a phone
FIGURES = """[...document.querySelectorAll("figure")].map(figure => ({
  id: figure.id,
  caption: figure.querySelector("figcaption")?.innerText.trim() ?? "",
  drawings: [...figure.querySelectorAll(".plot > svg, img")].map(drawing => {
    const box = drawing.getBoundingClientRect();
    const named = drawing.getAttribute("aria-label") || drawing.getAttribute("alt") || "";
    const scale = box.width / (drawing.viewBox?.baseVal.width || box.width);
    const words = [...drawing.querySelectorAll("text")].map(one => parseFloat(getComputedStyle(one).fontSize) * scale);
    return {width: box.width, height: box.height, named, smallest: Math.min(99, ...words),
            loaded: drawing.tagName != "IMG" || drawing.naturalWidth > 0};
  })
}))"""
FOCUSABLE = """[...document.querySelectorAll("a[href], summary, [tabindex='0']")]
  .filter(element => element.checkVisibility({contentVisibilityAuto: true})).length"""
FOCUSED = """(() => { const e = document.activeElement; if (!e || e === document.body) return "";
  window.__seen ??= new Map(); if (!window.__seen.has(e)) window.__seen.set(e, window.__seen.size);
  return window.__seen.get(e) + " " + e.tagName + " " + (e.getAttribute("href") ?? e.className); })()"""
# The browser reads from its descriptor 3 and writes to 4, wherever the pipes came to lie here.
LAUNCH = """import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3), os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])"""
OPEN_ALL = "document.querySelectorAll('details').forEach(details => { details.open = true; })"


class BrowserError(Exception):
    """No browser, or one that does not answer."""


def find_browser():
    """The path of Chromium or Chrome; an error that says what to do when there is none."""
    for name in (os.environ.get("CHROME", ""), *NAMES):
        path = shutil.which(name) if name else None
        if path:
            return path
    raise BrowserError(
        "no Chromium or Chrome on the PATH: install one (Debian: apt install chromium) or name it in CHROME; "
        "tests without a browser: pytest -m 'not browser', which is what `make test` runs"
    )


class Browser:
    """One page of a headless browser, driven through a pipe."""

    def __enter__(self):
        program = find_browser()
        self._profile = tempfile.TemporaryDirectory(prefix="fedssl-browser-", ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [sys.executable, "-c", LAUNCH, str(to_browser), str(from_browser)]
        command += [program, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self.events = b"", 0, []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = None
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *details):
        try:
            self._session = None
            self._call("Browser.close")
            self._process.wait(10)
        except (BrowserError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)
        self._profile.cleanup()

    _session = None

    def _call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._out, json.dumps(message).encode() + b"\0")
        except OSError:
            raise BrowserError("the browser ended unexpectedly") from None
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            if not ready:
                raise BrowserError(f"the browser has not answered for {PATIENCE} s")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise BrowserError("the browser ended unexpectedly")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def open(self, path, width=1280, height=900, scheme="light"):
        """Shows a file or an address in a window of this size; scheme: light or dark."""
        self.events.clear()
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._call("Page.navigate", url=path if str(path).startswith("http:") else Path(path).resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script):
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"script failed: {answer['exceptionDetails'].get('text')}")
        return answer["result"].get("value")

    def press_tab(self):
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)

    def point_at(self, selector):
        """Moves the mouse to the middle of an element."""
        box = f"(e => [e.left + e.width / 2, e.top + e.height / 2])(document.querySelector({selector!r})"
        x, y = self.run(f"{box}.getBoundingClientRect())")
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path, whole=True):
        data = self._call("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def _clip(self, whole):
        if not whole:
            return {}
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def pdf(self):
        options = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        return base64.b64decode(self._call("Page.printToPDF", **options)["data"])

    def complaints(self, home="file:"):
        """What the page put on the console, threw, or asked of a network; `home`: where it may load from."""
        lines = []
        for event in self.events:
            method, details = event.get("method"), event.get("params", {})
            if method == "Runtime.consoleAPICalled":
                lines.append(f"console: {details['args']}")
            elif method == "Runtime.exceptionThrown":
                lines.append(f"exception: {details['exceptionDetails'].get('text')}")
            elif method == "Log.entryAdded":
                lines.append(f"log: {details['entry'].get('text')}")
            elif method == "Network.requestWillBeSent":
                url = details["request"]["url"]
                if not url.startswith((home, "data:", "about:")):
                    lines.append(f"loads {url}")
        return lines


def problems(browser, path):
    """All that is wrong with a report, a line each; an empty list is a good report."""
    lines = []
    for width, scheme in ((1280, "light"), (1280, "dark"), (375, "light")):
        browser.open(path, width=width, scheme=scheme)
        where = f"{scheme}, {width} wide"
        browser.run(OPEN_ALL)
        lines += [f"{where}: {text}" for text in browser.complaints()]
        figures = browser.run(FIGURES)
        if not figures:
            lines.append(f"{where}: there is no figure")
        lines += [f"{where}: figure {figure['id']}: {text}" for figure in figures for text in _figure_problems(figure)]
        wide = browser.run("document.documentElement.scrollWidth")
        if wide > width:
            lines.append(f"{where}: the page is {wide} wide and scrolls sideways")
    lines += _keyboard_problems(browser, path)
    pdf = browser.pdf()
    if not pdf.startswith(b"%PDF-") or pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") < 1:
        lines.append("printing gives no page")
    return lines


def _figure_problems(figure):
    if not figure["drawings"]:
        yield "has no drawing"
    if not figure["caption"]:
        yield "has no caption"
    for drawing in figure["drawings"]:
        if drawing["width"] < 16 or drawing["height"] < 16:
            yield f"is not visible ({drawing['width']:.0f} x {drawing['height']:.0f})"
        if drawing["smallest"] < SMALLEST:
            yield f"has words of {drawing['smallest']:.1f} pixels"
        if not drawing["named"]:
            yield "has a drawing without a text for who cannot see it"
        if not drawing["loaded"]:
            yield "has an image that cannot be shown"


def _keyboard_problems(browser, path):
    """Tab, from the top to the bottom: the skip link comes first, and everything gets its turn."""
    browser.open(path)
    expected = browser.run(FOCUSABLE)
    seen = []
    for _ in range(expected + 2):
        browser.press_tab()
        now = browser.run(FOCUSED)
        if not now or now in seen:
            break
        seen.append(now)
    if not seen or "#content" not in seen[0]:
        yield f"keyboard: the first Tab does not reach the skip link but {seen[:1]}"
    if len(seen) < expected:
        yield f"keyboard: Tab reaches {len(seen)} of {expected} links, summaries and scrolling regions"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--shots", type=Path, help="also write screenshots and a PDF into this folder")
    options = parser.parse_args()
    try:
        with Browser() as browser:
            lines = problems(browser, options.report)
            if options.shots:
                options.shots.mkdir(parents=True, exist_ok=True)
                for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
                    browser.open(options.report, width=width, scheme=scheme)
                    browser.screenshot(options.shots / f"{scheme}-{width}.png")
                (options.shots / "report.pdf").write_bytes(browser.pdf())
    except BrowserError as error:
        sys.exit(f"error: {error}")
    for line in lines:
        print(line)
    if lines:
        sys.exit(1)
    print(f"{options.report}: nothing to complain about")


if __name__ == "__main__":
    main()
