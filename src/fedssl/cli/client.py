"""`fedssl client`: a site of a deployment, and what a person there may look at and decide."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedssl.cli.deployment import InsecureAnywhere, stopping
from fedssl.cli.options import AllowCode
from fedssl.core.extras import need

if TYPE_CHECKING:
    from fedssl.deployment.site import Site

client_app = typer.Typer()
policy_app = typer.Typer(help="What a server may ask of this site.", no_args_is_help=True)
client_app.add_typer(policy_app, name="policy")
Run = Annotated[str, typer.Argument(help="the run's id, or its beginning", metavar="RUN")]
StateFolder = Annotated[Path | None, typer.Option("--state", help="the client's state folder  [default: state/NAME]")]
Name = Annotated[str, typer.Option("--name", help="the client's name, if several have their state in state/")]
Address = Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="the server's address  [required]")]
Data = Annotated[
    str, typer.Option(help="this site's images: a folder, an array, a manifest; default: the run's own dataset")
]
EvalTrain = Annotated[
    str, typer.Option(help="labelled images of this site, to see how good the model is here; only counts leave")
]
EvalTest = Annotated[
    str, typer.Option(help="those to test with  [default: a fifth of --eval-train, or of labelled --data]")
]
OwnState = Annotated[
    Path | None, typer.Option(help="what this client keeps between rounds; back it up  [default: state/NAME]")
]
Authority = Annotated[Path, typer.Option(help="the CA that vouches for the server")]
Key = Annotated[Path | None, typer.Option(help="this node's private key  [default: keys/NAME.key]")]
Roster = Annotated[
    Path | None,
    typer.Option(help="the keys of all sites, for secure aggregation  [default: keys/roster, if it is there]"),
]
PolicyFile = Annotated[
    Path | None,
    typer.Option(help="policy.toml: what a server may ask of this site; `fedssl client policy init` writes one"),
]
RequirePrivacy = Annotated[
    str | None, typer.Option(help="the privacy that runs must have: any, central, distributed, local")
]
RequireSecure = Annotated[
    bool | None,
    typer.Option("--require-secure-aggregation", help="only runs whose server sees sums, no single upload"),
]
AllowFeatures = Annotated[
    bool | None, typer.Option("--allow-features", help="also those of `fedssl methods` that send features of images")
]
NoEvaluation = Annotated[bool, typer.Option("--no-evaluation", help="send no counts, whatever labels are here")]
AcceptChanged = Annotated[
    bool, typer.Option("--accept-changed-data", help="images were withdrawn or added since: continue and record it")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="no TLS, no key; to this machine only")]
USUAL_CA = Path("certificates/ca.pem")


@client_app.callback(invoke_without_command=True)
def client(
    context: typer.Context,
    name: Annotated[str, typer.Option(help="this client's name, as the server knows it  [required]")] = "",
    server: Address = "",
    data: Data = "",
    eval_train: EvalTrain = "",
    eval_test: EvalTest = "",
    state: OwnState = None,
    ca: Authority = USUAL_CA,
    key: Key = None,
    roster: Roster = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …  [default: as the server's settings]")] = "",
    allow_code: AllowCode = None,
    allow_network: Annotated[str, typer.Option(hidden=True)] = "",
    policy: PolicyFile = None,
    require_privacy: RequirePrivacy = None,
    require_secure_aggregation: RequireSecure = None,
    min_sites: Annotated[int | None, typer.Option(help="the least sites that a secure sum must hold")] = None,
    min_noise: Annotated[float | None, typer.Option(help="the least privacy.noise_multiplier")] = None,
    max_clip: Annotated[float | None, typer.Option(help="the largest privacy.clip_norm")] = None,
    allow_features: AllowFeatures = None,
    no_evaluation: NoEvaluation = False,
    max_disk: Annotated[float | None, typer.Option(help="GB that --state may take  [default: 50]")] = None,
    max_runs: Annotated[int | None, typer.Option(help="runs that --state may hold  [default: 100]")] = None,
    accept_changed_data: AcceptChanged = False,
    wait: Annotated[float, typer.Option(min=1.0, help="seconds without being accepted before it gives up")] = 3600.0,
    insecure: Insecure = False,
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
    need("flower", "fedssl client")
    from fedssl.deployment.policy import load_policy
    from fedssl.deployment.site import take_part

    site = _site(name, server, state, insecure=insecure, ca=ca, key=key, roster=roster)
    limits: dict[str, Any] = {"min_sites": min_sites, "min_noise": min_noise, "max_clip": max_clip}
    limits |= {"require_privacy": require_privacy, "require_secure_aggregation": require_secure_aggregation}
    limits |= {"allow_features": allow_features, "max_disk": max_disk, "max_runs": max_runs}
    limits |= {"evaluation": False} if no_evaluation else {}
    given = {name: value for name, value in limits.items() if value is not None}
    if allow_network:
        typer.echo("warning: --allow-network will go away: say --allow-code PACKAGE", err=True)
    allowed = (*(allow_code or ()), *filter(None, [allow_network]))
    own: dict[str, Any] = {"data": data, "eval_train": eval_train, "eval_test": eval_test, "device": device}
    own |= {"insecure_anywhere": insecure_anywhere, "accept_changed_data": accept_changed_data, "allow_code": allowed}
    with stopping("stopped"):
        take_part(replace(site, **own, policy=load_policy(policy, given)), typer.echo, wait)


@client_app.command("check")
def client_check(
    name: Annotated[str, typer.Option(help="this client's name, as the server knows it  [required]")] = "",
    server: Address = "",
    data: Data = "",
    state: OwnState = None,
    ca: Authority = USUAL_CA,
    key: Key = None,
    roster: Roster = None,
    policy: PolicyFile = None,
    insecure: Insecure = False,
) -> None:
    """Whether this site can take part: a line for each thing that it needs, with the remedy; exit code 0 if all hold.

    Give it the options that `fedssl client` will get. It asks the server, starts nothing, and reads no image.

    Example:

      fedssl client check --name north --server fl.example.org:443 --data /images
    """
    need("flower", "fedssl client check")
    from fedssl.deployment.site_check import check_site

    site = _site(name, server, state, insecure=insecure, ca=ca, key=key, roster=roster)
    all_hold = True
    for line in check_site(replace(site, data=data), policy):
        typer.echo(line)
        all_hold = all_hold and bool(line.holds)
    if not all_hold:
        raise typer.Exit(1)


def _site(
    name: str, server: str, state: Path | None, *, insecure: bool, ca: Path, key: Path | None, roster: Path | None
) -> "Site":
    """What both commands are given, with the usual places of files."""
    from fedssl.core.settings import check_client_name
    from fedssl.deployment.site import Site

    for option, value in (("--name", name), ("--server", server)):
        if not value:
            raise typer.BadParameter("must be given", param_hint=option)
    check_client_name(name, "--name")
    usual = Path("keys/roster").absolute()
    return Site(
        name=name,
        server=server,
        state=state or Path("state") / name,
        ca=None if insecure else ca,
        key=None if insecure else key or Path("keys") / f"{name}.key",
        roster=roster.absolute() if roster else usual if usual.is_file() else None,
    )


@policy_app.command("init")
def policy_init(
    out: Annotated[Path, typer.Argument(help="the file to write; nothing is overwritten")] = Path("policy.toml"),
) -> None:
    """A policy with safe values: a person approves each run, and the server sees sums of three sites or more.

    Every field has its meaning beside it. Example:

      fedssl client policy init && fedssl client --policy policy.toml --name north --server fl.example.org:9092
    """
    from fedssl.core.errors import FedsslError
    from fedssl.core.files import write_atomically
    from fedssl.deployment.policy import policy_text

    if out.exists():
        raise FedsslError(f"{out}: is there already: nothing is overwritten; name another file")
    write_atomically(out, policy_text())
    typer.echo(f"{out}: look through it, then start the client with --policy {out}")


@client_app.command()
def approve(
    run: Annotated[str, typer.Argument(help="the run's id, or its beginning; default: list them", metavar="RUN")] = "",
    state: StateFolder = None,
    name: Name = "",
    allow_code: AllowCode = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Shows a run that waits for approval, in words: what it does, what will leave; then asks.

    Compare the SHA-256 with the one that the server prints. Other settings later, also more rounds, need another
    approval.
    """
    from fedssl.core.errors import FedsslError
    from fedssl.deployment import consent
    from fedssl.deployment.agreement import in_words
    from fedssl.deployment.site_run import checked_settings

    folder = _state(state, name)
    if not run:
        for one, status in consent.runs_at(folder).items():
            typer.echo(f"{one}  {status}")
        return
    known = consent.read_consent(folder, consent.find_run(folder, run))
    if known is None or not known.settings:
        raise FedsslError(f'{run}: nobody is asked about this run (approval = "automatic" in the policy)')
    typer.echo(in_words(known, checked_settings(known.settings, allow_code or ())))
    if not yes and not typer.confirm("approve this run?"):
        typer.echo("not approved: the server still waits")
        raise typer.Exit(1)
    consent.approve(folder, known)
    typer.echo("approved: the server will ask again within a minute")


@client_app.command()
def leave(run: Run, state: StateFolder = None, name: Name = "") -> None:
    """Stops taking part in a run: nothing of it leaves any more but the code `left`; both sides record it.

    What left before stays in the model. The state is kept, so that `join` can resume.
    """
    from fedssl.deployment import consent

    folder = _state(state, name)
    run_id = consent.find_run(folder, run)
    consent.leave(folder, run_id)
    typer.echo(f"left run {run_id}: `fedssl client join {run_id}` takes part again")


@client_app.command()
def join(run: Run, state: StateFolder = None, name: Name = "") -> None:
    """Takes part again in a run that this site left."""
    from fedssl.deployment import consent

    folder = _state(state, name)
    run_id = consent.find_run(folder, run)
    consent.join(folder, run_id)
    typer.echo(f"joined run {run_id}: tasks are taken again")


@client_app.command()
def audit(
    state: StateFolder = None,
    name: Name = "",
    run: Annotated[str, typer.Option(help="only this run, by the beginning of its id")] = "",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="a page for a browser instead, in one file")] = None,
) -> None:
    """Verifies audit.jsonl and prints it: every task, and all that left this site by name, size and SHA-256.

    A line that was changed, removed or put in between is named, with exit code 3. Note the last SHA-256 elsewhere: it
    shows later that no line was taken off the end.

    Example:

      fedssl client audit --html audit.html
    """
    from fedssl.core.errors import DamagedError
    from fedssl.core.files import write_atomically
    from fedssl.deployment.audit import AUDIT, check_audit
    from fedssl.deployment.audit_page import html_page, page

    path = _state(state, name) / AUDIT
    checked = check_audit(path)
    if html is not None:
        write_atomically(html, html_page(path, checked, run))
        typer.echo(html)
    if checked.broken:
        raise DamagedError(checked.broken)
    if html is None:
        typer.echo(page(path, checked, run))


def _state(given: Path | None, name: str) -> Path:
    """The state folder that a person means: the given one, that of the name, or the only one here."""
    from fedssl.core.errors import FedsslError

    folders = (
        [given]
        if given
        else [Path("state") / name]
        if name
        else [path.parent for path in Path("state").glob("*/client.json")]
    )
    if len(folders) != 1 or not folders[0].is_dir():
        raise FedsslError("--state: say which client's state folder is meant")
    return folders[0]
