"""Train on a folder of your own, a subfolder for each kind of image: python own_photos.py PHOTOS [OUT [ROUNDS]]."""

import sys
from pathlib import Path

import fedssl


def main(photos: str, out: str = "runs/photos", rounds: str = "") -> None:
    settings = {"data.path": photos, "data.test_fraction": 0.2, "evaluation.linear_epochs": 50}
    if rounds:  # else as many as the number of images asks for
        settings["rounds"] = int(rounds)
    run = fedssl.load("folder", settings).run(out, fedssl.make_view())
    fedssl.report([run], Path(out) / "report.html", images=1000)
    print(f"open {Path(out) / 'report.html'}")
    exported = fedssl.export(run, Path(out) / "encoder")
    print(f"for other programs: {exported.folder} ({', '.join(exported.files)})")


if __name__ == "__main__":
    main(*sys.argv[1:])
