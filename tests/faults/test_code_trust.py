"""Code that a file names: refused by every reader before anything is imported, unless a person allows its package."""

import json
import shutil
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch
from click import Group
from safetensors import safe_open
from safetensors.torch import save_file
from typer.main import get_command
from typer.testing import CliRunner

import fedssl
from fedssl.cli.main import app
from fedssl.core.errors import FedsslError
from fedssl.encoders.classifier import load_classifier
from fedssl.encoders.evaluate import Request, evaluate
from fedssl.encoders.export import export_encoder
from fedssl.encoders.finetune import Request as FineTuning
from fedssl.encoders.finetune import fine_tune
from fedssl.encoders.sklearn import Encoder
from fedssl.encoders.trained import load_encoder
from fedssl.experiment.backends import for_workers
from fedssl.experiment.build.parts import build
from fedssl.experiment.config.layers import load_config, typed_config
from fedssl.experiment.config.resolve import resolve
from fedssl.experiment.finished_run import FinishedRun
from fedssl.networks.backbones import BACKBONES, find_backbone
from fedssl.paper.catalogue import find_studies
from fedssl.paper.plan import make_plan
from fedssl.paper.runner import _make
from fedssl.paper.scales import find_scale
from fedssl.reports.run_page import write_report
from fedssl.reports.watch import Board
from tests.helpers.small import TINY
from tests.helpers.small_photos import write_photos
from tests.helpers.written_runs import as_older, write_run

# Every command that builds a network out of what a file says; each has --allow-code. Below `place` there are the run
# `run`, its file `encoder`, an export `export`, a classifier `classifier`, and `photos`.
COMMANDS = {
    "evaluate": ["evaluate run --protocol knn --no-cache"],
    "report": ["report run -o page.html --images 8"],
    "export": ["export run -o out"],
    "embed": ["embed run photos -o out.npz", "embed encoder photos -o out.npz", "embed export photos -o out.npz"],
    "neighbours": ["neighbours export photos/red/000.png --in photos -o out.html -k 2"],
    "finetune": ["finetune export --data photos --head-only --epochs 1 --hidden 4 -o out"],
    "classify": ["classify classifier photos/red"],
}
# Every other command: it reads no settings or weights of others, shows them without building anything, or was given
# the file as the settings to run.
OTHERS = {
    *("run", "demo", "server", "client", "certificates make", "certificates node", "certificates roster"),
    *("client policy init", "client approve", "client leave", "client join", "client audit", "client check"),
    *("paper run", "bench methods", "models", "watch"),
    *("compare", "ls", "paper", "paper scales", "paper show"),
    *("presets", "methods", "networks", "rules", "aggregators", "privacy", "data fetch", "data inspect", "data clean"),
}
FUNCTIONS = {
    "load_encoder, run": lambda **allowed: load_encoder("run", **allowed),
    "load_encoder, a client's": lambda **allowed: load_encoder("run", 1, **allowed),
    "load_encoder, file": lambda **allowed: load_encoder("encoder", **allowed),
    "load_encoder, export": lambda **allowed: load_encoder("export", **allowed),
    "load_classifier": lambda **allowed: load_classifier("classifier", **allowed),
    "sklearn.Encoder": lambda **allowed: Encoder("run", **allowed).fit(),
    "FinishedRun": lambda **allowed: FinishedRun.open("run", **allowed).global_encoder(),
    "evaluate": lambda **allowed: evaluate("run", Request(["knn"], cache=False), **allowed),
    "write_report": lambda **allowed: write_report(["run"], "page.html", images=8, **allowed),
    "export_encoder": lambda **allowed: export_encoder("run", "out", **allowed),
    "fine_tune": lambda **allowed: fine_tune(
        "export", FineTuning("photos", head_only=True, epochs=1, hidden=4), "out", **allowed
    ),
}
LINES = [line for lines in COMMANDS.values() for line in lines]
OWN = "own_networks:Small"
SHORT = {key: value for key, value in TINY.items() if key != "network.width"} | {"rounds": 1}
TYPED = {**SHORT, "network.name": OWN}
# What a hostile file may say: any callable with its arguments, or a module whose import alone does the harm.
HOSTILE = {
    "a callable": {"name": "os:system", "command": "touch harm"},
    "a module": {"name": "hostile.inner:build"},
}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """All kinds of files, of a network of one's own."""
    place = tmp_path_factory.mktemp("own")
    photos = write_photos(place / "photos")
    heads = {"network.head_hidden": 16, "network.head_out": 8}
    settings = {"data.path": str(photos), "data.image_size": 16, "data.test_fraction": 0.25, "network.name": OWN}
    short = {"rounds": 1, "threads": 1, "partition.num_clients": 2, "evaluation.k": 5, "engine": "in-process"}
    fedssl.load("folder", settings | heads | short).run(place / "run")
    export_encoder(place / "run", place / "export", allow_code=["own_networks"])
    asked = FineTuning(str(photos), head_only=True, epochs=1, hidden=4)
    fine_tune(place / "run", asked, place / "classifier", allow_code=["own_networks"])
    shutil.copy(place / "run" / "encoder.safetensors", place / "encoder")
    return place


@pytest.fixture
def place(own, tmp_path, monkeypatch):
    """A copy of the files in the working folder."""
    shutil.copytree(own, tmp_path / "place", ignore=shutil.ignore_patterns("photos"))
    (tmp_path / "place" / "photos").symlink_to(own / "photos")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture
def hostile(place, monkeypatch):
    """Changes the copies so that metadata, config.toml and config.json all name this network."""
    package = place / "packages" / "hostile"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(place / 'harm')!r}, 'w').close()\n")
    (package / "inner.py").write_text("def build(): ...\n")
    monkeypatch.syspath_prepend(place / "packages")

    def change(network):
        for path in [place / "encoder", *place.glob("*/*.safetensors")]:
            rewrite(path, network)
        as_older(place / "run")  # an attacker leaves no checksum that would give the change away
        config = tomllib.loads((place / "run/config.toml").read_text())
        config["network"] = {key: config["network"][key] for key in ("head_hidden", "head_out")} | network
        (place / "run/config.toml").write_text(tomli_w.dumps(config))
        about = json.loads((place / "export/config.json").read_text())
        (place / "export/config.json").write_text(json.dumps(about | {"network": network}))

    return change


def rewrite(path, network):
    """The same tensors; the metadata name another network."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        about = json.loads(file.metadata()["fedssl"])
    save_file(tensors, path, {"fedssl": json.dumps(about | {"network": network})})


def commands():
    """Every command by its words."""

    def below(group, words):
        for name, command in group.commands.items():
            yield " ".join([*words, name])
            if isinstance(command, Group):
                yield from below(command, [*words, name])

    groups = {"data", "certificates", "bench", "client policy"}  # which do nothing themselves
    return set(below(get_command(app), [])) - groups


def options(name):
    return {text for one in get_command(app).commands[name].params for text in one.opts}


def unharmed(place):
    assert not (place / "harm").exists()
    assert not [name for name in sys.modules if name.partition(".")[0] == "hostile"]


def refusal(line):
    """The one line that a command ends with."""
    shown = CliRunner().invoke(app, line.split())
    assert isinstance(shown.exception, FedsslError), shown.output
    assert shown.exception.exit_code == 2
    assert "\n" not in str(shown.exception)
    return str(shown.exception)


def test_every_command_is_known_to_these_tests():
    """A new command belongs to COMMANDS if it reads an encoder, a classifier or a run, else to OTHERS."""
    assert commands() == {*COMMANDS, *OTHERS}
    top = [name for name in get_command(app).commands if name != "client"]  # tested with what a server may ask for
    assert {name for name in top if "--allow-code" in options(name)} == {*COMMANDS}


@pytest.mark.parametrize("network", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("line", LINES)
def test_no_command_runs_code_that_a_file_names(hostile, place, line, network):
    hostile(network)
    package = network["name"].partition(".")[0].partition(":")[0]
    assert f"it names code of package '{package}'" in (said := refusal(line))
    assert f"if you trust it, say --allow-code {package} (Python: allow_code=['{package}'])" in said
    unharmed(place)


@pytest.mark.parametrize("network", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("call", FUNCTIONS.values(), ids=FUNCTIONS)
def test_no_function_runs_code_that_a_file_names(hostile, place, call, network):
    hostile(network)
    with pytest.raises(FedsslError, match="it names code of package"):
        call()
    unharmed(place)


@pytest.mark.parametrize("line", LINES)
def test_commands_use_code_that_a_person_allows(place, line):
    shown = CliRunner().invoke(app, f"{line} --allow-code other --allow-code own_networks".split())
    assert shown.exit_code == 0, shown.exception
    assert "own_networks" not in shown.output


@pytest.mark.parametrize("allowed", [["own_networks"], ("other", "own_networks"), "own_networks", [OWN]])
@pytest.mark.parametrize("call", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_use_code_that_a_person_allows(place, call, allowed):
    call(allow_code=allowed)


@pytest.mark.parametrize("allowed", ["own", "own_networks_too", "networks", "own_networks:Smaller", ""])
def test_another_package_allows_nothing(place, allowed):
    for given in (allowed, [allowed]):
        with pytest.raises(FedsslError, match="it names code of package 'own_networks'"):
            load_encoder("run", allow_code=given)


def test_metadata_are_refused_where_the_config_is_not(hostile, place):
    """An encoder put into somebody's run folder, beside a config.toml that is as it was."""
    rewrite(place / "run/encoder.safetensors", HOSTILE["a callable"])
    assert "names code of package 'os'" in refusal("embed run photos -o out.npz --allow-code own_networks")
    unharmed(place)


@pytest.mark.parametrize(
    "line",
    [
        "compare run run",
        "ls .",
        "report run -o page.html --images 0",
        "paper show linear-evaluation --scale smoke --out papers",
    ],
)
@pytest.mark.parametrize("network", HOSTILE.values(), ids=HOSTILE)
def test_what_only_shows_settings_imports_nothing(hostile, place, line, network):
    hostile(network)
    shutil.copytree(place / "run", place / "papers" / "smoke" / "run")
    assert CliRunner().invoke(app, line.split()).exit_code == 0
    unharmed(place)


@pytest.mark.parametrize("network", HOSTILE.values(), ids=HOSTILE)
def test_watching_a_run_imports_nothing(hostile, place, network):
    hostile(network)
    assert "</html>" in Board([place / "run"]).html()
    unharmed(place)


@pytest.mark.parametrize("start", ["encoder", "run", "export"])
def test_weights_to_start_from_bring_no_code(hostile, place, start):
    hostile(HOSTILE["a module"])
    build(typed_config("smoke", TYPED | {"init.encoder": str(place / start)}))
    unharmed(place)


def test_a_run_is_compared_with_its_folder_without_its_code(hostile, place):
    hostile(HOSTILE["a module"])
    said = refusal("run smoke --out run")
    assert "this run was begun with other settings" in said
    assert "network.name hostile.inner:build → convnet" in said
    unharmed(place)


def test_what_a_person_types_may_name_code(tmp_path, monkeypatch):
    """By --set, in a file that they name, in Python; and the same command resumes its folder."""
    monkeypatch.chdir(tmp_path)
    line = f"run smoke {' '.join(f'--set {key}={value}' for key, value in TYPED.items())} --out one"
    assert CliRunner().invoke(app, line.split()).exit_code == 0
    assert "nothing is left to do" in CliRunner().invoke(app, line.split()).output
    assert CliRunner().invoke(app, ["run", "one/config.toml", "--out", "two"]).exit_code == 0
    experiment = fedssl.load("smoke", TYPED)
    assert experiment.run("three").summary["weights_sha256"] == experiment.run("one").summary["weights_sha256"]


def test_a_file_cannot_allow_itself(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(f'allow_code = ["own_networks"]\n[network]\nname = "{OWN}"\n')
    with pytest.raises(FedsslError, match="allow_code: unknown key"):
        load_config(str(path))


def test_settings_that_were_read_build_no_code():
    for config in (load_config("smoke", TYPED), resolve(typed_config("smoke", TYPED).as_raw())):
        with pytest.raises(FedsslError, match="it names code of package 'own_networks'"):
            build(config)


def test_workers_may_use_what_the_person_typed(tmp_path):
    client, _ = for_workers(typed_config("smoke", TYPED), tmp_path)(0)
    assert type(client.method.online_encoder.backbone).__name__ == "Small"
    with pytest.raises(FedsslError, match="it names code of package 'own_networks'"):
        for_workers(load_config("smoke", TYPED), tmp_path)(0)


def test_a_run_in_processes_uses_its_own_network(tmp_path):
    experiment = fedssl.load("smoke", TYPED | {"engine": "processes", "workers": 1})
    assert experiment.run(tmp_path / "run").summary["status"] == "finished"


def test_the_papers_runs_are_made_with_their_own_settings_only(tmp_path):
    """Its folders have names that can be foreseen, and `fedssl run` takes the config.toml there as typed."""
    plan = make_plan(find_studies(["linear-evaluation"]), find_scale("smoke"), tmp_path, 1)
    run = next(iter(plan.runs.values()))
    raw = run.config.as_raw() | {"network": HOSTILE["a callable"]}
    write_run(run.folder, raw, summary=None)
    message = f"{run.folder / 'config.toml'}: not the settings of this run: move it away"
    assert _make(run, {}, {}, threading.Event()) == message


def test_an_allowed_package_does_not_allow_what_it_imports(tmp_path, monkeypatch):
    """Else any package that imports os would let a file call os.system with arguments of its own."""
    module = "import functools, os\nfrom os import system\nfrom torch import nn\n"
    module += "class Net(nn.Identity): ...\nsmall = functools.partial(Net)\n"
    (tmp_path / "helpful.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("helpful:os.system", "helpful:system", "helpful:nn.Flatten", "helpful:Net.load_state_dict"):
        with pytest.raises(FedsslError, match=r"it names code of package '(posix|nt|torch)'"):
            find_backbone(name, ["helpful"])
    for name in ("helpful:Net", "helpful:small"):
        assert isinstance(find_backbone(name, ["helpful"])(3), torch.nn.Identity)
    assert isinstance(find_backbone("helpful:nn.Flatten", ["helpful:nn.Flatten"])(3), torch.nn.Flatten)


@pytest.mark.parametrize(
    "name", [None, 3, ["os:system"], "", ":", "os:", ".os:system", "a b:c", "os:system()", "../x:y"]
)
def test_what_is_no_name_is_refused(name):
    for allowed in ((), ("",), ("os",), (str(name),)):
        with pytest.raises(FedsslError, match="there is no"):
            BACKBONES.check(name, allowed)


def test_a_card_says_how_a_network_of_ones_own_is_loaded(place):
    card = (place / "export/README.md").read_text()
    assert 'load_encoder("encoder.safetensors", allow_code=["own_networks"])' in card
    card = (place / "classifier/README.md").read_text()
    assert 'load_classifier("classifier.safetensors", allow_code=["own_networks"])' in card


def test_the_command_itself_ends_with_one_line(hostile, place, monkeypatch, capsys):
    hostile(HOSTILE["a callable"])
    monkeypatch.setattr(sys, "argv", ["fedssl", "embed", "export", "photos", "-o", "out.npz"])
    with pytest.raises(SystemExit) as ended:
        fedssl.cli.main.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    file = Path("export") / "encoder.safetensors"
    assert said.startswith(f"error: {file}: it names code of package 'os' (os:system)")
    assert said.count("\n") == 1
    unharmed(place)
