"""What several commands take: presets, settings, runs, encoders, devices, and who may name code."""

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.completion import complete_preset, complete_run

Preset = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|FILE", help="a preset, PRESET+ALGORITHM, or a .toml file", autocompletion=complete_preset
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a setting; may be repeated")
]
DataSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="a setting of --data; may be repeated")
]
Force = Annotated[
    bool, typer.Option("--force", help="resume although rounds, evaluation, failures or threads were changed")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder", autocompletion=complete_run)]
Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="run folders; several side by side", autocompletion=complete_run)
]
Encoder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="a run folder, an export with safetensors, or a name of `fedssl models`",
        autocompletion=complete_run,
    ),
]
Client = Annotated[str | None, typer.Option(help="this client's own encoder, by number or name  [default: the global]")]
Network = Annotated[str | None, typer.Option(help="online or target; a target is known of clients only")]
AllowCode = Annotated[
    list[str] | None,
    typer.Option("--allow-code", metavar="PACKAGE", help="a package whose code it may use; may be repeated"),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda …")]
