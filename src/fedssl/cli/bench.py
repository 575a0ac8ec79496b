"""The command under `fedssl bench`: which method for these images?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedssl.cli.options import Settings
from fedssl.cli.paper import print_forecast, run_all
from fedssl.core.errors import FedsslError

if TYPE_CHECKING:
    from fedssl.paper.plan import Plan

bench_app = typer.Typer(help="Methods beside each other: the same images, partition, network, evaluation and seeds.")
Protocol = Literal["linear", "knn"]


@bench_app.callback()
def bench() -> None:
    """Methods beside each other: the same images, partition, network, evaluation and seeds."""


@bench_app.command("methods")
def bench_methods(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="what all of them are run with, e.g. cifar10-cpu")],
    algorithms: Annotated[
        list[str] | None,
        typer.Argument(metavar="ALGORITHM…", help="as `fedssl presets` lists them, also joined: fedsimclr+feddecorr"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="runs of each; fewer than two decide nothing")] = 3,
    settings: Settings = None,
    protocol: Annotated[Protocol, typer.Option(help="the accuracy that is compared")] = "linear",
    out: Annotated[Path, typer.Option("--out", help="where runs are: OUT/PRESET/RUN")] = Path("runs/bench"),
    jobs: Annotated[
        int | None, typer.Option(min=1, help="runs at a time  [default: GPUs, or cores / threads of a run]")
    ] = None,
    page: Annotated[Path | None, typer.Option("-o", "--page", help="[default: OUT/PRESET.html]")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list the runs and predict time and disk, then stop")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="make the page of the runs that are there; begin none")] = False,
) -> None:
    """Run a list of methods on the same images and make one page: mean ± sd, what is decided and what is noise.

    What is finished is skipped, what was interrupted is resumed. Without ALGORITHM… a list of well-known ones is taken.

    Examples:

      fedssl bench methods cifar10-cpu fedsimclr fedbyol fedema fedbyol+feddecorr --dry-run

      fedssl bench methods folder fedsimclr fedbyol --set data.path=photos --set data.eval_test=labelled/test
    """
    from fedssl.experiment.config.layers import parse_override
    from fedssl.paper.method_comparison import ALGORITHMS, MethodComparison, check_methods, write_method_page
    from fedssl.paper.terminal import print_comparison

    def planned() -> MethodComparison:
        given, overrides = settings or [], dict(map(parse_override, settings or []))
        names = algorithms or list(ALGORITHMS)
        options = {"overrides": overrides, "typed": given, "metric": protocol}
        return MethodComparison.of_algorithms(preset, names, out, seeds, **options)  # type: ignore[arg-type]

    made = planned()
    check_methods(made)
    if dry_run:
        print_forecast(made.plan, jobs)
        return
    failed = None if show else _failure(made.plan, jobs)
    made = planned()
    print_comparison(made)
    place = page or out / f"{preset}.html"
    write_method_page(made, place)
    typer.echo(f"page: {place}")
    if failed:
        raise failed


def _failure(plan: "Plan", jobs: int | None) -> FedsslError | None:
    """Makes the runs; what went wrong with some of them is said after the page of the others."""
    try:
        run_all(plan, jobs)
    except FedsslError as error:
        return error
    return None
