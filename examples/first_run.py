"""Train on synthetic images in seconds, and ask whether anything was learnt: python first_run.py [OUT]."""

import sys

import fedssl


def main(out: str = "runs/first") -> None:
    experiment = fedssl.load("smoke", {"rounds": 2})  # any preset, any setting: `fedssl presets`
    run = experiment.run(out, fedssl.make_view())
    for result in fedssl.evaluate(run, ["knn"], baselines=["random"]):
        low, high = result.score.interval
        print(f"{result.encoder}, BatchNorm {result.batchnorm}: {result.score.accuracy:.1%} ({low:.1%} to {high:.1%})")


if __name__ == "__main__":
    main(*sys.argv[1:])
