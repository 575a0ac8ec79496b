"""`fedssl client`: a site of a deployment, and what a person there may look at and decide."""

from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli.deployment import InsecureAnywhere, stopping
from fedssl.cli.options import AllowCode
from fedssl.core.extras import need

client_app = typer.Typer()


@client_app.callback(invoke_without_command=True)
def client(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="this client's name, as the server knows it  [required]")] = "",
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="the server's address  [required]")] = "",
    data: Annotated[
        str, typer.Option(help="this site's images: a folder, an array, a manifest; default: the run's own dataset")
    ] = "",
    state: Annotated[
        Path | None, typer.Option(help="what this client keeps between rounds; back it up  [default: state/NAME]")
    ] = None,
    ca: Annotated[Path, typer.Option(help="the CA that vouches for the server")] = Path("certificates/ca.pem"),
    key: Annotated[Path | None, typer.Option(help="this node's private key  [default: keys/NAME.key]")] = None,
    roster: Annotated[
        Path | None,
        typer.Option(help="the keys of all sites, for secure aggregation  [default: keys/roster, if it is there]"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …  [default: as the server's settings]")] = "",
    allow_code: AllowCode = None,
    allow_network: Annotated[str, typer.Option(hidden=True)] = "",
    require_privacy: Annotated[
        str, typer.Option(help="the privacy that runs must have: any, central, distributed, local")
    ] = "any",
    require_secure_aggregation: Annotated[
        bool, typer.Option("--require-secure-aggregation", help="only runs whose server sees sums, no single upload")
    ] = False,
    min_sites: Annotated[int, typer.Option(min=2, help="the least sites that a secure sum must hold")] = 2,
    min_noise: Annotated[float, typer.Option(min=0.0, help="the least privacy.noise_multiplier")] = 0.0,
    max_clip: Annotated[float, typer.Option(min=0.0, help="the largest privacy.clip_norm")] = float("inf"),
    allow_features: Annotated[
        bool, typer.Option("--allow-features", help="also methods that send features of images (fedca)")
    ] = False,
    max_disk: Annotated[float, typer.Option(min=0.0, help="GB that --state may take")] = 50.0,
    max_runs: Annotated[int, typer.Option(min=1, help="runs that --state may hold")] = 100,
    wait: Annotated[float, typer.Option(min=1.0, help="seconds without being accepted before it gives up")] = 3600.0,
    insecure: Annotated[bool, typer.Option("--insecure", help="no TLS, no key; to this machine only")] = False,
    insecure_anywhere: InsecureAnywhere = False,
) -> None:
    """A client of a deployment: trains on its own images whenever the server asks, until it is stopped.

    Images, target network and state stay here. It connects outwards only, and comes back by itself after a crash.

    Examples:

      fedssl client --name north --server fl.example.org:9092 --data /images

      fedssl client --name a --server 127.0.0.1:9092 --insecure
    """
    if context.invoked_subcommand:
        return
    for option, value in (("--name", name), ("--server", server)):
        if not value:
            raise typer.BadParameter("must be given", param_hint=option)
    need("flower", "fedssl client")
    from fedssl.core.settings import check_client_name
    from fedssl.deployment.limits import Limits
    from fedssl.deployment.site import Site, take_part

    check_client_name(name, "--name")
    if allow_network:
        typer.echo("warning: --allow-network will go away: say --allow-code PACKAGE", err=True)
    site = Site(
        name=name,
        server=server,
        state=state or Path("state") / name,
        data=data,
        ca=None if insecure else ca.absolute(),
        key=None if insecure else (key or Path("keys") / f"{name}.key").absolute(),
        roster=_roster(roster),
        device=device,
        allow_code=(*(allow_code or ()), *filter(None, [allow_network])),
        insecure_anywhere=insecure_anywhere,
        limits=Limits(
            require_privacy=require_privacy,
            min_noise=min_noise,
            max_clip=max_clip,
            allow_features=allow_features,
            max_disk=max_disk,
            max_runs=max_runs,
            require_secure_aggregation=require_secure_aggregation,
            min_sites=min_sites,
        ),
    )
    with stopping("stopped"):
        take_part(site, typer.echo, wait)


@client_app.command("check")
def client_check(
    name: Annotated[str, typer.Option(help="this client's name, as the server knows it")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="the server's address")],
    data: Annotated[str, typer.Option(help="this site's images")] = "",
    state: Annotated[Path | None, typer.Option(help="what this client keeps  [default: state/NAME]")] = None,
    ca: Annotated[Path, typer.Option(help="the CA that vouches for the server")] = Path("certificates/ca.pem"),
    key: Annotated[Path | None, typer.Option(help="this node's private key  [default: keys/NAME.key]")] = None,
    roster: Annotated[Path | None, typer.Option(help="the keys of all sites  [default: keys/roster]")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="no TLS, no key; to this machine only")] = False,
) -> None:
    """Whether this site can take part: a line for each thing that it needs, with the remedy; exit code 0 if all hold.

    Give it the options that `fedssl client` will get. It asks the server, starts nothing, and reads no image.

    Example:

      fedssl client check --name north --server fl.example.org:443 --data /images
    """
    need("flower", "fedssl client check")
    from fedssl.core.settings import check_client_name
    from fedssl.deployment.site import Site
    from fedssl.deployment.site_check import check_site

    check_client_name(name, "--name")
    site = Site(
        name=name,
        server=server,
        state=state or Path("state") / name,
        data=data,
        ca=None if insecure else ca,
        key=None if insecure else key or Path("keys") / f"{name}.key",
        roster=_roster(roster),
    )
    lines = []
    for line in check_site(site, lambda: "none"):
        typer.echo(line)
        lines.append(line)
    if not all(line.holds for line in lines):
        raise typer.Exit(1)


def _roster(given: Path | None) -> Path | None:
    usual = Path("keys/roster")
    return given.absolute() if given else usual.absolute() if usual.is_file() else None
