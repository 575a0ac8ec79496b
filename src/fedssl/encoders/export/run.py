"""From a run to a folder: the chosen formats, a config.json for programs and a README.md for people."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedssl import __version__
from fedssl.core.files import Place, new_folder
from fedssl.core.registry import AllowCode
from fedssl.encoders.export.formats import Format, find_format
from fedssl.encoders.export.libraries import timm_config
from fedssl.encoders.export.model_card import model_card
from fedssl.encoders.trained import Client, Network, TrainedEncoder, trained_encoder
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.run_record import RunRecord


@dataclass(frozen=True)
class Exported:
    """What was written, and for each format how far its features are from the run's own, where that was measured."""

    folder: Path
    owner: str
    files: list[str]
    differences: dict[str, float]


def export_encoder(
    run: Place,
    out: Place,
    formats: Sequence[str] = ("safetensors",),
    client: Client = None,
    network: Network | None = None,
    allow_code: AllowCode = (),
    license: str = "unknown",
) -> Exported:
    """Writes the encoder in each format into a new folder; what a format cannot hold is refused before that.

    >>> export_encoder("runs/x", "encoder", ["safetensors"]).files
    ['README.md', 'config.json', 'encoder.safetensors']
    """
    forms = {name: find_format(name) for name in dict.fromkeys(formats or [""])}
    finished = FinishedRun.open(run, allow_code)
    encoder = trained_encoder(finished, client, network)
    encoder.about.update(exported_by=f"fedssl {__version__}", license=license)
    for form in forms.values():
        form.check(encoder.about)
    differences = {}
    with new_folder(Path(out)) as folder:
        for name, form in forms.items():
            difference = form.write(encoder, folder / form.file)
            if difference is not None:
                differences[name] = difference
        _describe(RunRecord.read(run), encoder, folder, forms)
        files = sorted(path.name for path in folder.iterdir())
    return Exported(Path(out), encoder.owner, files, differences)


def _describe(record: RunRecord, encoder: TrainedEncoder, folder: Path, forms: dict[str, Format]) -> None:
    files = {name: form.file for name, form in forms.items()}
    content = {**timm_config(encoder.about), **encoder.about, "formats": files}
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    usage = {name: form.usage(encoder.about) for name, form in forms.items()}
    (folder / "README.md").write_text(model_card(record, encoder.about, usage), encoding="utf-8")
