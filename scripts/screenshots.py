"""The pictures of the documentation anew, in headless Chromium: python -m scripts.screenshots RUN.

RUN is a finished run; its report is written anew. docs/report.png: its top in light beside its maps in dark.
"""

import argparse
import tempfile
from pathlib import Path

from PIL import Image

from fedssl.experiment.progress.views import make_view
from fedssl.reports.run_page import write_report
from scripts.check_report import Browser

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT, SHOWN = 1280, 1500, 720  # of the window, and of each half of the picture
MAP = "#run1-map-tsne"
POINTED_AT = 150  # a dot whose image is to be seen


def report_picture(report: Path, out: Path) -> None:
    """Two halves side by side, made small and brought to few colours: a picture for a page, not an archive."""
    halves = []
    with Browser() as browser, tempfile.TemporaryDirectory() as folder:
        for scheme in ("light", "dark"):
            browser.open(report, WIDTH, HEIGHT, scheme)
            if scheme == "dark":
                browser.run(f"document.querySelector('{MAP}').scrollIntoView({{behavior: 'instant'}})")
                browser.point_at(f"{MAP} .panel:last-child .spots i:nth-child({POINTED_AT})")
            shot = Path(folder) / f"{scheme}.png"
            browser.screenshot(shot, whole=False)
            with Image.open(shot) as half:
                halves.append(half.convert("RGB").resize((SHOWN, SHOWN * HEIGHT // WIDTH), Image.Resampling.LANCZOS))
    whole = Image.new("RGB", (2 * SHOWN, halves[0].height))
    for number, half in enumerate(halves):
        whole.paste(half, (number * SHOWN, 0))
    whole.quantize(128).save(out, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    write_report([run], run / "report.html", view=make_view())
    report_picture(run / "report.html", DOCS / "report.png")


if __name__ == "__main__":
    main()
