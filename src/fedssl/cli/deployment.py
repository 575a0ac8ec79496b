"""The commands of a deployment: `fedssl server`, `fedssl client`, and `fedssl certificates`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedssl.cli.options import AllowCode, Force, Preset, Settings
from fedssl.core.extras import need

InsecureAnywhere = Annotated[
    bool, typer.Option("--insecure-anywhere", help="with --insecure: also between machines. Don't.")
]
deployment_app = typer.Typer()
certificates_app = typer.Typer(
    help="Certificates of the server and keys of the clients' nodes, for a deployment.", no_args_is_help=True
)
PORT = 9092


@deployment_app.command()
def server(
    preset: Preset,
    clients: Annotated[str, typer.Option(help="the names of all clients, in order, with commas")] = "",
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="run folder; a run begun there is resumed")] = Path("runs/deployment"),
    host: Annotated[str, typer.Option(help="address to listen on  [default: 0.0.0.0; with --insecure 127.0.0.1]")] = "",
    port: Annotated[int, typer.Option(min=1, max=65535, help="the one port that clients connect to")] = PORT,
    certificates: Annotated[Path, typer.Option(help="folder with ca.pem, server.pem and server.key")] = Path(
        "certificates"
    ),
    keys: Annotated[Path, typer.Option(help="folder with the clients' public keys, NAME.pub")] = Path("keys"),
    insecure: Annotated[bool, typer.Option("--insecure", help="no TLS, no keys; on this machine only")] = False,
    insecure_anywhere: InsecureAnywhere = False,
    force: Force = False,
    watch: Annotated[
        int | None, typer.Option(metavar="PORT", min=0, max=65535, help="also a page to watch, for this machine alone")
    ] = None,
) -> None:
    """The server of a deployment: waits for its clients, trains with them, and resumes after any stop.

    Examples:

      fedssl server sites --clients north,south --out runs/hospitals

      fedssl server smoke --clients a,b,c,d --insecure
    """
    need("flower", "fedssl server")
    from fedssl.deployment.certificates import ServerCertificate, public_keys
    from fedssl.deployment.server import Deployment, serve
    from fedssl.experiment.config.layers import parse_override, typed_config
    from fedssl.experiment.records.run_record import RunRecord
    from fedssl.reports.tables import print_summary

    overrides: dict[str, Any] = dict(parse_override(text) for text in settings or [])
    if clients:
        overrides["flower.clients"] = [name.strip() for name in clients.split(",")]
    config = typed_config(preset, overrides | {"engine": "flower"})
    certificate = None
    if not insecure:
        names = ("ca.pem", "server.pem", "server.key")
        certificate = ServerCertificate(*((certificates / name).absolute() for name in names))
    deployment = Deployment(
        config=config,
        folder=out,
        host=host or ("127.0.0.1" if insecure else "0.0.0.0"),
        port=port,
        certificate=certificate,
        keys={} if insecure else public_keys(keys, config.flower.clients),
        insecure_anywhere=insecure_anywhere,
        force=force,
    )
    with _stopping(f"stopped: the finished rounds are in {out}; the same command resumes the run"), _page(out, watch):
        serve(deployment, typer.echo)
    print_summary(RunRecord.read(out))


@deployment_app.command()
def client(
    name: Annotated[str, typer.Option(help="this client's name, as the server knows it")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="the server's address")],
    data: Annotated[
        str, typer.Option(help="this site's images: a folder, an array, a manifest; default: the run's own dataset")
    ] = "",
    eval_train: Annotated[
        str, typer.Option(help="labelled images of this site, to see how good the model is here; only counts leave")
    ] = "",
    eval_test: Annotated[
        str, typer.Option(help="those to test with  [default: a fifth of --eval-train, or of labelled --data]")
    ] = "",
    no_evaluation: Annotated[
        bool, typer.Option("--no-evaluation", help="send no counts, whatever labels are here")
    ] = False,
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
        eval_train=eval_train,
        eval_test=eval_test,
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
            no_evaluation=no_evaluation,
        ),
    )
    with _stopping("stopped"):
        take_part(site, typer.echo, wait)


def _roster(given: Path | None) -> Path | None:
    usual = Path("keys/roster")
    return given.absolute() if given else usual.absolute() if usual.is_file() else None


@contextmanager
def _page(run: Path, port: int | None) -> Iterator[None]:
    if port is None:
        yield
        return
    from fedssl.experiment.records.run_folder import RunFolder
    from fedssl.reports.watch import WatchServer

    with WatchServer([RunFolder.create(run).path], port=port) as page:
        typer.echo(f"a page to watch: {page.url}")
        yield


@contextmanager
def _stopping(text: str) -> Iterator[None]:
    """SIGTERM and SIGHUP like Ctrl-C: what was started is ended in order, then the exit code says which it was."""
    from fedssl.experiment.progress.stopping import StopRequest

    with StopRequest(held_back=0) as request:
        try:
            yield
        except KeyboardInterrupt:
            typer.echo(text, err=True)
            raise typer.Exit(request.exit_code) from None


@certificates_app.command("make")
def certificates_make(
    host: Annotated[
        list[str] | None, typer.Option(help="a name or address by which clients reach the server; may be repeated")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for ca.pem, ca.key, server.pem, server.key")] = Path("certificates"),
    days: Annotated[int, typer.Option(min=1, help="how long they are good for")] = 397,
) -> None:
    """A CA of your own and the server's certificate; nothing is overwritten.

    ca.pem goes to every client. Put ca.key away: it is not needed to run anything.
    """
    need("flower", "fedssl certificates")
    from fedssl.deployment.certificates import make_server_certificate

    made = make_server_certificate(out, host or [], days)
    typer.echo(
        f"for the server: {made.certificate}, {made.key}\nfor every client: {made.ca}\nput away: {out / 'ca.key'}"
    )


@certificates_app.command("node")
def certificates_node(
    name: Annotated[str, typer.Argument(help="the client's name")],
    out: Annotated[Path, typer.Option(help="folder for NAME.key and NAME.pub")] = Path("keys"),
) -> None:
    """A client's key: the private half stays at the client, the public half goes to the server.

    The same key signs for secure aggregation: then the public half goes to every other site, too.
    """
    need("flower", "fedssl certificates")
    from fedssl.deployment.certificates import make_node_key

    private, public = make_node_key(out, name)
    typer.echo(f"stays here: {private}\nfor the server, and for the roster of all sites: {public}")


@certificates_app.command("roster")
def certificates_roster(
    keys: Annotated[list[Path], typer.Argument(help="the .pub files of all sites, or a roster")],
    out: Annotated[Path, typer.Option(help="the file that every site gets")] = Path("keys/roster"),
) -> None:
    """All sites' public keys in one file, for secure aggregation: so that no server can stand between two sites.

    Every site compares the fingerprint with the others, on the phone: equal digits, equal keys.

    Example:

      fedssl certificates roster keys/north.pub keys/south.pub keys/west.pub
    """
    need("secure", "fedssl certificates roster")
    from fedssl.deployment.certificates import make_roster

    count, found = make_roster(out, keys)
    typer.echo(f"for every site: {out}, {count} sites\nfingerprint, to read out on the phone: {found}")
