"""The commands under `fedssl paper`: list, run and show the paper's tables and figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedssl.core.errors import FedsslError

if TYPE_CHECKING:
    from fedssl.paper.plan import Plan

paper_app = typer.Typer(help="The paper's tables and figures: list, run, and show them beside the printed numbers.")
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="experiments as `fedssl paper` lists them, or `all`")]
ScaleName = Annotated[
    str, typer.Option("--scale", help="paper (GPUs), night-long (an hour per run), night, cpu (minutes), smoke")
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="seeds per cell  [default: as the experiment says, 3]")
]
Rows = Annotated[
    list[str] | None, typer.Option("--rows", help="only rows with this label or with it in theirs; may be repeated")
]
Columns = Annotated[list[str] | None, typer.Option("--columns", help="only such columns; may be repeated")]
Out = Annotated[Path, typer.Option("--out", help="where runs are: OUT/SCALE/RUN")]
RUNS = Path("runs/paper")


@paper_app.callback(invoke_without_command=True)
def paper_list(context: typer.Context) -> None:
    """Without a command: every table and figure of the paper as an experiment, one line each.

    Examples:

      fedssl paper

      fedssl paper run linear-evaluation --scale cpu --dry-run

      fedssl paper run ssl-methods --scale paper --seeds 3

      fedssl paper show ssl-methods --scale cpu -o page.html
    """
    if context.invoked_subcommand is not None:
        return
    from fedssl.paper.catalogue import load_studies
    from fedssl.paper.terminal import print_studies

    print_studies(load_studies().values())


@paper_app.command("scales")
def paper_scales() -> None:
    """What each scale changes against the paper, and why."""
    from fedssl.paper.scales import load_scales
    from fedssl.paper.terminal import print_scale

    for scale in load_scales().values():
        print_scale(scale)


@paper_app.command("run")
def paper_run(
    names: Names,
    scale: ScaleName = "cpu",
    seeds: Seeds = None,
    rows: Rows = None,
    columns: Columns = None,
    out: Out = RUNS,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="runs at a time  [default: GPUs, or cores / threads of a run]")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list the runs and predict time and disk, then stop")
    ] = False,
) -> None:
    """Make the runs of experiments; what is finished is skipped, what was interrupted is resumed.

    Runs that several cells or experiments need are made once. Each has its output in run.log of its folder.
    """
    from fedssl.paper.catalogue import find_studies
    from fedssl.paper.plan import check_choice, make_plan
    from fedssl.paper.scales import find_scale

    studies, chosen = find_studies(names), find_scale(scale)
    check_choice(studies, rows or (), columns or ())
    plan = make_plan(studies, chosen, out, seeds or max(study.seeds for study in studies), rows or (), columns or ())
    if dry_run:
        print_forecast(plan, jobs)
    else:
        run_all(plan, jobs)


def print_forecast(plan: "Plan", jobs: int | None) -> None:
    """The runs of a plan and what they will take."""
    from fedssl.experiment.progress.views import make_view
    from fedssl.paper.forecast import Forecast
    from fedssl.paper.terminal import print_plan

    forecast = Forecast(plan.scale.evaluation_epochs)
    forecast.measure(plan.runs.values(), make_view())
    print_plan(plan, forecast, _jobs(plan, jobs)[0])


def _jobs(plan: "Plan", given: int | None) -> tuple[int, int]:
    """(runs at a time, GPUs to share out)."""
    import torch

    from fedssl.paper.runner import default_jobs

    threads = max((run.config.run.threads for run in plan.runs.values()), default=1)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return given or default_jobs(threads, gpus), gpus if gpus > 1 else 0


def run_all(plan: "Plan", given: int | None) -> None:
    """Makes the unfinished runs of a plan, several at a time."""
    from fedssl.experiment.progress.views import make_view
    from fedssl.paper.forecast import Amounts
    from fedssl.paper.runner import run_plan

    jobs, gpus = _jobs(plan, given)
    todo = plan.unfinished()
    typer.echo(
        f"{len(plan.runs)} runs, {len(plan.runs) - len(todo)} of them finished; {jobs} at a time, in {plan.folder}"
    )
    with make_view() as view:
        outcome = run_plan(plan, jobs, view, lambda run: float(Amounts.of(run.config).images), gpus)
    if outcome.stopped:
        typer.echo("stopped: the finished rounds are saved; the same command resumes them", err=True)
        raise typer.Exit(128 + outcome.stopped)
    if outcome.failed:
        names = "; ".join(f"{name}: {error}" for name, error in outcome.failed.items())
        raise FedsslError(f"{len(outcome.failed)} of {len(todo)} runs failed, the others are finished: {names}")
    typer.echo(f"all {len(plan.runs)} runs are finished")


@paper_app.command("show")
def paper_show(
    names: Names,
    scale: ScaleName = "cpu",
    seeds: Seeds = None,
    rows: Rows = None,
    columns: Columns = None,
    out: Out = RUNS,
    page: Annotated[
        Path | None, typer.Option("-o", "--page", help="write an HTML file with tables and figures")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown instead of tables")] = False,
) -> None:
    """The paper's numbers beside ours: mean and sd, the difference, and whether the order of the methods agrees.

    Works with a part of the runs and says what is missing.
    """
    from fedssl.paper.catalogue import find_studies
    from fedssl.paper.comparison import Comparison, markdown
    from fedssl.paper.page import write_page
    from fedssl.paper.plan import check_choice
    from fedssl.paper.scales import find_scale
    from fedssl.paper.terminal import print_comparison

    studies, chosen = find_studies(names), find_scale(scale)
    check_choice(studies, rows or (), columns or ())
    comparisons = [
        Comparison.of(study, chosen, out, seeds or study.seeds, rows=rows or (), columns=columns or ())
        for study in studies
    ]
    if page:
        write_page(comparisons, page)
        typer.echo(f"page: {page}")
        return
    for comparison in comparisons:
        if as_markdown:
            typer.echo(markdown(comparison))
        else:
            print_comparison(comparison)
