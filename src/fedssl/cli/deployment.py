"""The commands of a deployment beside `fedssl client`: `fedssl server` and `fedssl certificates`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedssl.cli.options import Force, Preset, Settings
from fedssl.core.extras import need

Certificates = Annotated[Path, typer.Option(help="folder with ca.pem, server.pem and server.key")]
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
    certificates: Certificates = Path("certificates"),
    keys: Annotated[Path, typer.Option(help="folder with the clients' public keys, NAME.pub")] = Path("keys"),
    insecure: Annotated[bool, typer.Option("--insecure", help="no TLS, no keys; on this machine only")] = False,
    insecure_anywhere: InsecureAnywhere = False,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="a proxy before this server ends TLS: clients must come through it")
    ] = False,
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
    from fedssl.experiment.build.automatic import like_start
    from fedssl.experiment.config.layers import parse_override, typed_config
    from fedssl.experiment.records.run_record import RunRecord
    from fedssl.reports.tables import print_summary

    overrides: dict[str, Any] = dict(parse_override(text) for text in settings or [])
    if clients:
        overrides["flower.clients"] = [name.strip() for name in clients.split(",")]
    config, like = like_start(typed_config(preset, overrides | {"engine": "flower"}))
    if like:
        typer.echo(f"note: {like}")
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
        behind_proxy=behind_proxy,
        force=force,
    )
    with stopping(f"stopped: the finished rounds are in {out}; the same command resumes the run"), _page(out, watch):
        serve(deployment, typer.echo)
    print_summary(RunRecord.read(out))


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
def stopping(text: str) -> Iterator[None]:
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

    count, fingerprint = make_roster(out, keys)
    typer.echo(f"for every site: {out}, {count} sites\nfingerprint, to read out on the phone: {fingerprint}")
