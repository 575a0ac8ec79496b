"""The commands that use what was trained: models, evaluate, export, embed, neighbours, finetune, classify."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedssl.cli.options import AllowCode, Client, DataSettings, Device, Encoder, Network, Run

encoders_app = typer.Typer()
BatchNorm = Annotated[str | None, typer.Option(help="running, reestimated or both  [default: both; semi-*: running]")]
Epochs = Annotated[
    str, typer.Option(help="NUMBER for all that trains, or linear=N,semi=N,supervised=N  [default: 200, 100, 100]")
]
MOST_LISTED = 20  # refused images on the screen; the file beside the result names all


@encoders_app.command()
def models() -> None:
    """List the small encoders that come with fedssl, to try without training: embed, neighbours, finetune.

    Examples:

      fedssl embed cifar10-fedema-small photos/ -o features.npz

      fedssl neighbours cifar10-fedema-small photos/cat.jpg --in photos/
    """
    from fedssl.encoders.models import models as known

    for model in known().values():
        typer.secho(model.name, bold=True)
        typer.echo(f"  {model.description}")
        typer.echo(f"  images {model.images}, {model.features} features; {model.accuracy}")
        typer.echo(f"  trained on {model.data}; card and weights: {model.folder}")


@encoders_app.command()
def evaluate(
    folder: Run,
    protocol: Annotated[str, typer.Option(help="any of knn, linear, semi-1, semi-10, with commas")] = "knn,linear",
    variant: Annotated[str, typer.Option(help="paper, or authors: as their published code does it")] = "paper",
    seeds: Annotated[int, typer.Option(help="repeat what draws random numbers with this many seeds")] = 1,
    batchnorm: BatchNorm = None,
    data: Annotated[str | None, typer.Option(help="another dataset than the run's: transfer")] = None,
    settings: DataSettings = None,
    baseline: Annotated[str, typer.Option(help="random, supervised or both with a comma")] = "",
    clients: Annotated[
        bool, typer.Option("--clients", help="each client's own encoder too, and on its own classes")
    ] = False,
    epochs: Epochs = "",
    device: Device = "auto",
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="keep features in the run folder")] = True,
    allow_code: AllowCode = None,
) -> None:
    """How good a run's encoder is: kNN, linear probe, semi-supervised fine-tuning, on this or other data.

    Examples:

      fedssl evaluate runs/x

      fedssl evaluate runs/x --protocol linear,semi-10 --seeds 3 --baseline random

      fedssl evaluate runs/x --data cifar100 --protocol linear

      fedssl evaluate runs/x --clients --protocol linear --batchnorm running
    """
    from rich.console import Console

    from fedssl.encoders.api import evaluate as evaluate_run
    from fedssl.encoders.evaluate.request import parse_epochs, parse_names, parse_settings
    from fedssl.evaluation.results import headline
    from fedssl.experiment.progress.views import make_view
    from fedssl.reports.tables import clients_tables, headline_table

    try:
        results = evaluate_run(
            folder,
            parse_names(protocol),
            variant=variant,  # type: ignore[arg-type]  # checked by the function
            seeds=seeds,
            batchnorm=batchnorm,  # type: ignore[arg-type]
            data=data,
            data_settings=parse_settings(settings or []),
            baselines=parse_names(baseline),
            clients=clients,
            epochs=parse_epochs(epochs),
            device=device,
            cache=cache,
            view=make_view(),
            allow_code=allow_code or (),
        )
    except KeyboardInterrupt:
        typer.echo(f"stopped: the results so far are in {folder / 'evaluation.jsonl'}", err=True)
        raise typer.Exit(130) from None
    console = Console()
    console.print(headline_table(headline(results)), *(clients_tables(results) if clients else []), sep="\n")
    typer.echo(f"every result: {folder / 'evaluation.jsonl'}")


@encoders_app.command()
def export(
    folder: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="a new folder")],
    to: Annotated[
        str, typer.Option(help="any of safetensors, torchvision, timm, onnx, torch-export, hub, with commas")
    ] = "safetensors",
    client: Client = None,
    network: Network = None,
    license: Annotated[
        str, typer.Option(help="of the weights, for the model card: apache-2.0, cc-by-4.0 …")
    ] = "unknown",
    allow_code: AllowCode = None,
) -> None:
    """Write a run's encoder as files that need no fedssl, with a config.json and a model card.

    Examples:

      fedssl export runs/x -o encoder

      fedssl export runs/x --to onnx,hub -o encoder

      fedssl export runs/x --to timm --client 3 --network target -o client3
    """
    from fedssl.encoders.evaluate.request import parse_names
    from fedssl.encoders.export import export_encoder

    made = export_encoder(folder, out, parse_names(to), client, _network(network), allow_code or (), license)
    for name, difference in made.differences.items():
        typer.echo(f"{name}: checked, the largest difference from PyTorch is {difference:.1g}")
    typer.echo(f"{made.owner} encoder: {made.folder} ({', '.join(made.files)})")


@encoders_app.command()
def embed(
    run: Encoder,
    images: Annotated[list[str], typer.Argument(metavar="IMAGES…", help="files and folders, also .csv, .npz …")],
    out: Annotated[Path, typer.Option("--out", "-o", help="features.parquet or features.npz")],
    client: Client = None,
    network: Network = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="images at a time  [default: by their size]")] = None,
    device: Device = "auto",
    allow_code: AllowCode = None,
) -> None:
    """Features of images, with their names, in the order of the arguments and of the names below a folder.

    Images are decoded as in the run. One that cannot be used is named, also in NAME.skipped.jsonl, and left out.

    Examples:

      fedssl embed runs/x photos/ -o features.parquet

      fedssl embed runs/x a.jpg b.jpg -o features.npz
    """
    from fedssl.encoders.embed import ImageReader, write_features, writer_for
    from fedssl.experiment.progress.views import make_view

    writer_for(out)
    encoder, model = _encoder(run, client, network, device, allow_code)
    with make_view() as view:
        reader = ImageReader(images, encoder.decoding, view.progress)
        made = write_features(model, reader, out, encoder.about, batch_size)
    _list_refused(made.refused, made.skipped_file)
    typer.echo(f"{made.images:,} images, {encoder.model.feature_size} features each: {out}")


@encoders_app.command()
def neighbours(
    run: Encoder,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE…", help="the images asked about")],
    place: Annotated[str, typer.Option("--in", metavar="FOLDER", help="where to look for images like them")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the page")] = Path("neighbours.html"),
    count: Annotated[int, typer.Option("-k", min=1, help="images to show for each")] = 16,
    client: Client = None,
    network: Network = None,
    device: Device = "auto",
    allow_code: AllowCode = None,
) -> None:
    """The images most like some images, as one HTML page that needs no network.

    Example:

      fedssl neighbours runs/x photos/cat/1.jpg --in photos/ -o page.html
    """
    from fedssl.encoders.neighbours import find_neighbours, write_page
    from fedssl.experiment.progress.views import make_view

    encoder, _ = _encoder(run, client, network, device, allow_code)
    with make_view() as view:
        neighbourhood = find_neighbours(encoder, images, place, count, view.progress)
    write_page(neighbourhood, encoder, out)
    _list_refused(neighbourhood.reader.refused, None)
    typer.echo(f"{neighbourhood.searched:,} images were looked at: {out}")


@encoders_app.command()
def finetune(
    run: Encoder,
    data: Annotated[str, typer.Option(help="labelled images: a folder with a subfolder per class, .csv, .npz …")],
    out: Annotated[Path, typer.Option("--out", "-o", help="a new folder")],
    test: Annotated[str, typer.Option(help="labelled images to test with  [default: a part of --data]")] = "",
    test_fraction: Annotated[float, typer.Option(help="share of every class to test with; 0: no test")] = 0.2,
    head_only: Annotated[bool, typer.Option("--head-only", help="leave the encoder as it is")] = False,
    epochs: Annotated[int, typer.Option(help="passes over the images to learn from")] = 100,
    lr: Annotated[float, typer.Option(help="learning rate")] = 1e-3,
    batch_size: Annotated[int, typer.Option(help="images per step")] = 128,
    hidden: Annotated[int, typer.Option(help="width of the head's hidden layer")] = 4096,
    seed: Annotated[int, typer.Option(help="of the new head and the order of images")] = 0,
    to: Annotated[str, typer.Option(help="safetensors, or safetensors,onnx")] = "safetensors",
    settings: DataSettings = None,
    client: Client = None,
    network: Network = None,
    device: Device = "auto",
    allow_code: AllowCode = None,
) -> None:
    """A classifier from a run's encoder and a few labelled images, with its accuracy on images it has not seen.

    Examples:

      fedssl finetune runs/x --data labelled/ -o classifier

      fedssl finetune runs/x --data labelled/ --test test/ --head-only --to safetensors,onnx -o classifier
    """
    from fedssl.encoders.api import finetune as finetune_run
    from fedssl.encoders.evaluate.request import parse_names, parse_settings
    from fedssl.experiment.progress.views import make_view

    made = finetune_run(
        run,
        data,
        out,
        test=test,
        test_fraction=test_fraction,
        data_settings=parse_settings(settings or []),
        client=client,
        network=_network(network),
        head_only=head_only,
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        hidden=hidden,
        seed=seed,
        device=device,
        formats=parse_names(to),
        view=make_view(),
        allow_code=allow_code or (),
    )
    _list_refused(made.refused, made.folder / "skipped.jsonl")
    typer.echo(f"learnt {len(made.classifier.class_names)} classes from {made.learnt_from:,} images")
    typer.echo(_score_text(made.score))
    typer.echo(f"classifier: {made.folder}")


def _score_text(score: Any) -> str:
    if not score:
        return "no accuracy can be given without test images (--test, --test-fraction)"
    low, high = score.interval
    between = f"95 % interval {100 * low:.1f}–{100 * high:.1f}"
    return f"accuracy: {100 * score.accuracy:.1f} % of {score.n:,} test images ({between})"


@encoders_app.command()
def classify(
    classifier: Annotated[Path, typer.Argument(metavar="DIR", help="what `fedssl finetune` wrote")],
    images: Annotated[list[str], typer.Argument(metavar="IMAGES…", help="files and folders")],
    device: Device = "auto",
    allow_code: AllowCode = None,
) -> None:
    """Name the class of each image: lines of CSV with file, class and probability; bad images are named on stderr.

    Example:

      fedssl classify classifier photos/ > named.csv
    """
    import csv
    import sys

    from fedssl.core.devices import choose_device
    from fedssl.encoders.classifier import load_classifier
    from fedssl.encoders.embed import ImageReader
    from fedssl.encoders.embed import embed as embed_images

    model = load_classifier(classifier, allow_code or ()).to(choose_device(device))
    reader, table = ImageReader(images, model.decoding), csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(("file", "class", "probability"))
    for batch in embed_images(model, reader):
        sure, named = batch.outputs.max(dim=1)
        for name, number, share in zip(batch.names, named.tolist(), sure.tolist(), strict=True):
            table.writerow((name, model.class_names[number], f"{share:.4f}"))
    _list_refused(reader.refused, None)


def _encoder(
    run: Path, client: str | None, network: str | None, device: str, allow_code: list[str] | None
) -> tuple[Any, Any]:
    """The encoder and its backbone on the device."""
    from fedssl.core.devices import choose_device
    from fedssl.encoders.trained import open_encoder

    encoder = open_encoder(run, client, _network(network), allow_code or ())
    return encoder, encoder.model.backbone.to(choose_device(device))


def _network(name: str | None) -> Any:
    from fedssl.core.registry import unknown
    from fedssl.encoders.trained import NETWORKS

    if name is not None and name not in NETWORKS:
        raise unknown("--network: there is no", name, NETWORKS)
    return name


def _list_refused(refused: Sequence[Any], file: Path | None) -> None:
    if not refused:
        return
    for one in refused[:MOST_LISTED]:
        typer.echo(f"skipped: {one.file}: {one.reason}", err=True)
    more = f", {len(refused) - MOST_LISTED:,} of them not shown" if len(refused) > MOST_LISTED else ""
    all_named = f"; all are in {file}" if file else ""
    typer.echo(f"{len(refused):,} images were skipped{more}{all_named}", err=True)
