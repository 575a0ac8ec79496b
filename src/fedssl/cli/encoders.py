"""The commands that use what was trained: export, embed, neighbours, finetune, classify."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedssl.cli.completion import complete_run

export_app = typer.Typer()
Run = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder", autocompletion=complete_run)]
Encoder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="a run folder, or an export with safetensors", autocompletion=complete_run),
]
Client = Annotated[str | None, typer.Option(help="this client's own encoder, by number or name  [default: the global]")]
Network = Annotated[str | None, typer.Option(help="online or target; a target is known of clients only")]
AllowCode = Annotated[
    list[str] | None,
    typer.Option("--allow-code", metavar="PACKAGE", help="a package whose networks it may use; may be repeated"),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda …")]
MOST_LISTED = 20  # refused images on the screen; the file beside the result names all


@export_app.command()
def export(
    folder: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="a new folder")],
    to: Annotated[
        str, typer.Option(help="any of safetensors, torchvision, timm, onnx, torch-export, hub, with commas")
    ] = "safetensors",
    client: Client = None,
    network: Network = None,
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

    made = export_encoder(folder, out, parse_names(to), client, _network(network), allow_code or ())
    for name, difference in made.differences.items():
        typer.echo(f"{name}: checked, the largest difference from PyTorch is {difference:.1g}")
    typer.echo(f"{made.whose} encoder: {made.folder} ({', '.join(made.files)})")


@export_app.command()
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


@export_app.command()
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
        found = find_neighbours(encoder, images, place, count, view.progress)
    write_page(found, encoder, out)
    _list_refused(found.reader.refused, None)
    typer.echo(f"{found.searched:,} images were looked at: {out}")


@export_app.command()
def finetune(
    run: Encoder,
    data: Annotated[str, typer.Option(help="labelled images: a folder with a subfolder per class, .csv, .npz …")],
    out: Annotated[Path, typer.Option("--out", "-o", help="a new folder")],
    test: Annotated[str, typer.Option(help="labelled images to test with  [default: a part of --data]")] = "",
    test_fraction: Annotated[float, typer.Option(help="share of every class to test with; 0: no test")] = 0.2,
    head_only: Annotated[bool, typer.Option("--head-only", help="leave the encoder as it is")] = False,
    epochs: Annotated[int, typer.Option()] = 100,
    lr: Annotated[float, typer.Option()] = 1e-3,
    batch_size: Annotated[int, typer.Option()] = 128,
    hidden: Annotated[int, typer.Option(help="width of the head's hidden layer")] = 4096,
    seed: Annotated[int, typer.Option()] = 0,
    to: Annotated[str, typer.Option(help="safetensors, or safetensors,onnx")] = "safetensors",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a setting of --data; may be repeated")
    ] = None,
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
    from fedssl.encoders.evaluate.request import parse_names, parse_settings
    from fedssl.encoders.finetune import Request, fine_tune
    from fedssl.experiment.progress.views import make_view

    request = Request(
        data=data,
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
    )
    with make_view() as view:
        made = fine_tune(run, request, out, view.progress, view.say, allow_code or ())
    _list_refused(made.refused, made.folder / "skipped.jsonl")
    typer.echo(f"learnt {len(made.classifier.class_names)} classes from {made.learnt_from:,} images")
    if made.score:
        low, high = made.score.interval
        typer.echo(
            f"accuracy: {100 * made.score.accuracy:.1f} % of {made.score.n:,} test images "
            f"(95 % interval {100 * low:.1f}–{100 * high:.1f})"
        )
    else:
        typer.echo("no accuracy can be given without test images (--test, --test-fraction)")
    typer.echo(f"classifier: {made.folder}")


@export_app.command()
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
    from fedssl.core.errors import FedsslError
    from fedssl.encoders.trained import NETWORKS

    if name is not None and name not in NETWORKS:
        raise FedsslError(f"--network: there is no {name!r}; known: {', '.join(NETWORKS)}")
    return name


def _list_refused(refused: Sequence[Any], file: Path | None) -> None:
    if not refused:
        return
    for one in refused[:MOST_LISTED]:
        typer.echo(f"skipped: {one.file}: {one.reason}", err=True)
    more = f", {len(refused) - MOST_LISTED:,} of them not shown" if len(refused) > MOST_LISTED else ""
    all_named = f"; all are in {file}" if file else ""
    typer.echo(f"{len(refused):,} images were skipped{more}{all_named}", err=True)
