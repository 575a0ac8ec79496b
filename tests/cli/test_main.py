"""The command as a person meets it: in a process of its own, with its exit code and what it prints."""

import contextlib
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import pytest

from fedssl.cli import main as cli
from fedssl.methods import METHODS
from tests.helpers.pictures import write_folder
from tests.helpers.written_runs import CONFIG, changed, write_run

TINY = [
    *("--set", "data.train_images=80", "--set", "data.test_images=40", "--set", "data.image_size=16"),
    *("--set", "network.width=4", "--set", "network.head_hidden=16", "--set", "network.head_out=8"),
    *("--set", "local_training.batch_size=8", "--set", "rounds=2"),
]


def start(*arguments, **options):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "fedssl", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def fedssl(*arguments, **options):
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """As `fedssl` in a folder, but in this process: many mistakes are tried, and torch is imported once."""

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedssl", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return call


def test_help_says_what_an_argument_is():
    _, out, _ = fedssl("run", "--help")
    assert "PRESET|FILE  a preset, PRESET+ALGORITHM, or a .toml file  [required]" in out


def test_help_names_every_command_and_is_quick_to_import():
    code, out, _ = fedssl("--help")
    assert code == 0
    for word in (
        "run",
        "demo",
        "evaluate",
        "report",
        "compare",
        "ls",
        "presets",
        "methods",
        "rules",
        "aggregators",
        "data",
        "export",
        "embed",
        "neighbours",
        "finetune",
        "classify",
    ):
        assert f"\n  {word} " in out
    probe = "import sys; import fedssl.cli.main; print(sorted({'torch', 'matplotlib', 'numpy'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]", "--help must not wait for torch"


def test_run_prints_progress_result_and_folder(tmp_path):
    code, out, err = fedssl("run", "smoke", *TINY, "--out", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    assert "byol with fedema on synthetic" in out
    for line in ("round 0/2", "round 1/2", "round 2/2", "mu 0.700", "left", "kNN accuracy", "mean mu"):
        assert line in out
    assert str(tmp_path / "run") in out
    assert (tmp_path / "run" / "encoder.safetensors").exists()


def test_run_without_out_makes_a_folder_under_runs(tmp_path, here):
    code, _, _ = here("run", "smoke+standalone", *TINY)
    assert code == 0
    assert [path.name.startswith("smoke+standalone-") for path in (tmp_path / "runs").iterdir()] == [True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "smok"], "did you mean 'smoke'"),
        (["run", "smoke", "--set", "method.name=byolo"], "method.name: there is no 'byolo'"),
        (["run", "smoke", "--set", "update_rule.name=fedavg"], "update_rule.name: there is no 'fedavg'"),
        (["run", "smoke", "--set", "update_rule.tao=1"], "update_rule.tao: unknown key (did you mean 'tau'?)"),
        (["run", "smoke", "--set", "update_rule.tau=1.2"], "update_rule.tau: 1.2 is not a number from 0 to 1"),
        (["run", "smoke", "--set", "partition.num_clients=5000"], "5000"),
        (["run", "smoke", "--set", "partition.num_clients=1"], "classes_per_client"),
        (["run", "smoke", "--set", "aggregation.name=krum"], "aggregation.byzantine = 1 needs 5 or more clients"),
        (["run", "smoke", "--set", "rounds"], "--set rounds: write it as table.key=value"),
        (["run", "cifar10-cpu"], "fedssl data fetch cifar10"),
        (["data", "fetch", "cifar11"], "cifar11"),
        (["data", "fetch", "cifar10", "--from", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere: not a run folder (config.toml is missing)"),
        (["report", "a", "b"], "say where to write it with -o report.html"),
        (["report", ".", "-o", "r.html"], "not a run folder (config.toml is missing)"),
        (["compare", ".", "."], "not a run folder (config.toml is missing)"),
        (["ls", "nowhere"], "nowhere: there is no such folder"),
        (["run", "folder"], "data.path: say where your images are: a folder, a .npz"),
        (["run", "folder", "--set", "data.path=nowhere"], "nowhere: there is no such folder"),
        (
            ["run", "folder", "--set", "data.layout=silo"],
            "data.layout: there is no 'silo' (did you mean 'silos'?)",
        ),
        (["run", "folder", "--set", "data.channels=0"], "data.channels: 0 is not a whole number 1 or more"),
        (["data", "inspect", "nowhere"], "nowhere: there is no such folder"),
        (["data", "inspect", "."], "lies among the images, which are never written to"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, here, arguments, message):
    code, _, err = here(*arguments)
    assert code == 2
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_listings():
    for command, words in (
        ("presets", ["cifar10-noniid", "cifar100-iid", "cifar10-cpu", "smoke", "+fedema", "+fedsimclr"]),
        ("methods", ["simclr", "mocov1", "mocov2", "simsiam", "byol", "Settings: fedssl methods NAME"]),
        ("methods mocov1", ["mocov1", 'method.head = "linear"', "temperature = 0.07"]),
        ("rules", ["replace", "update-both", "fedu", "fedema", "constant-mu", "none", "update_rule.tau = 0.7"]),
        (
            "aggregators",
            [
                *("weighted-average", "clipped-average", "median", "trimmed-mean", "krum", "aggregation.trim = 1"),
                "aggregation.max_norm = not set   (a number above 0)",
                "aggregation.byzantine = 1   (a whole number 1 or more)",
                'aggregation.upload = "online"   (one of online, target)',
            ],
        ),
    ):
        code, out, _ = fedssl(*command.split())
        assert code == 0
        assert [word for word in words if word not in out] == []


def test_methods_are_a_line_each_and_a_name_that_is_none_is_one_line():
    lines = fedssl("methods")[1].splitlines()
    assert [line.split()[0] for line in lines] == [*METHODS, "Settings:"]
    assert all("Needs: " in line and "Leaves the client: " in line for line in lines[:-1])
    assert fedssl("methods", "simclr")[1].count("simclr") == 1
    code, _, err = fedssl("methods", "simcrl")
    assert (code, err.count("\n")) == (2, 1)
    assert "there is no 'simcrl' (did you mean 'simclr'?)" in err


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_cleanly_and_keeps_the_finished_rounds(tmp_path, sent, code):
    folder = tmp_path / "run"
    process = start("run", "smoke", *TINY, "--set", "rounds=5000", "--set", "evaluation.every=0", "--out", str(folder))
    deadline = time.monotonic() + 600
    while not (folder / "rounds.jsonl").exists() or (folder / "rounds.jsonl").read_text().count("\n") < 3:
        assert time.monotonic() < deadline, "the run did not start"
        time.sleep(0.05)
    process.send_signal(sent)
    _, err = process.communicate(timeout=600)
    assert err == f"stopped: the finished rounds are in {folder}; the same command with --out {folder} resumes it\n"
    assert process.returncode == code
    assert '"interrupted"' in (folder / "summary.json").read_text()


def test_a_terminal_that_is_closed_stops_the_run_cleanly(tmp_path):
    folder = tmp_path / "run"
    ours, theirs = pty.openpty()

    def take_over():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = ("run", "smoke", *TINY, "--set", "rounds=5000", "--set", "evaluation.every=0", "--out", str(folder))
    process = subprocess.Popen(
        [sys.executable, "-m", "fedssl", *command], stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take_over
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    while not (folder / "rounds.jsonl").exists() or (folder / "rounds.jsonl").read_text().count("\n") < 3:
        assert process.poll() is None, "the run did not start"
        time.sleep(0.05)
        with contextlib.suppress(BlockingIOError):  # what is shown must be read, or it waits for that
            os.read(ours, 1 << 20)
    os.close(ours)
    assert process.wait(timeout=600) == 129
    assert '"interrupted"' in (folder / "summary.json").read_text()


def test_the_same_command_goes_on_and_fresh_starts_beside_it(tmp_path, here):
    folder = tmp_path / "run"
    command = ("run", "smoke", *TINY, "--set", "threads=1", "--out", str(folder))
    assert here(*command)[0] == 0
    code, out, _ = here(*command)
    assert (code, "this run is finished, nothing is left to do" in out) == (0, True)
    code, _, err = here(*command, "--set", "rounds=3")
    assert code == 2
    begun = f"error: {folder}: this run was begun with other settings"
    assert err == f"{begun}: rounds 2 → 3. They may change: say so with --force\n"
    code, out, _ = here(*command, "--set", "rounds=3", "--force")
    assert code == 0
    assert "resumes after round 2" in out
    assert "round 3/3" in out
    before = sorted(path for path in folder.rglob("*"))
    code, out, _ = here(*command, "--fresh")
    assert code == 0
    assert "round 1/2" in out
    assert (tmp_path / "run-2" / "summary.json").exists()
    assert sorted(path for path in folder.rglob("*")) == before, "nothing is deleted"


def test_too_few_clients_end_with_code_4_and_a_damaged_run_with_code_3(tmp_path, here):
    folder = tmp_path / "run"
    command = ("run", "smoke", *TINY, "--out", str(folder))
    code, out, err = here(*command, "--set", "local_training.lr=1e30", "--set", "failures.retries=0")
    assert code == 4
    assert "error: round 1: 0 clients delivered, 2 are needed" in err
    assert "client 3: non-finite" in err
    assert "Traceback" not in err
    assert (folder / "failures.jsonl").read_text().count("\n") == 4
    assert "warning: round 1: client 0: non-finite" in out
    (folder / "checkpoints" / "round-000000" / "manifest.json").write_text("{}")
    code, _, err = here(*command, "--set", "local_training.lr=1e30", "--set", "failures.retries=0")
    assert code == 3
    assert "round-000000/manifest.json: damaged" in err


def test_inspect_shows_what_a_run_would_refuse_and_then_fails(tmp_path, here):
    write_folder(tmp_path / "sites", clients=("a",), each=4)
    (tmp_path / "sites" / "empty").mkdir()
    code, out, err = here("data", "inspect", "sites", "--set", "data.layout=silos", "--out", "seen")
    assert code == 2
    assert "client 0 (a): 4 images" in out
    assert err.startswith("error: `fedssl run folder` would refuse this: client 1 (empty) has 0 images")
    assert sorted(path.name for path in (tmp_path / "seen").iterdir()) == ["holdings.png", "views.png"]
    code, out, _ = here("data", "clean", "--dry-run")
    assert "there are 1 sets of decoded images" in out
    code, out, _ = here("data", "clean")
    assert "removed 1 sets of decoded images" in out
    assert "there are 0 sets" in here("data", "clean", "--dry-run")[1]


def test_demo_says_so_when_nothing_can_be_fetched(tmp_path, monkeypatch):
    """The command's own function, with the training cut short: the real demo takes minutes."""
    from typer.testing import CliRunner

    from fedssl.core.errors import FedsslError
    from fedssl.experiment import experiment

    used = {}

    def load(preset, overrides):
        used.update(preset=preset, overrides=dict(overrides))
        return real_load("smoke", {"data.train_images": 80, "data.test_images": 40, "rounds": 1, "threads": 1})

    real_load = experiment.load
    monkeypatch.setattr(experiment, "load", load)
    monkeypatch.setattr(
        "fedssl.data.standard.cached.fetch", lambda *a: (_ for _ in ()).throw(FedsslError("no network"))
    )
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path / "demo")])
    assert result.exit_code == 0, result.output
    assert "SYNTHETIC" in result.output
    assert used["preset"] == "cifar10-cpu"
    assert used["overrides"]["data.name"] == "synthetic"
    assert f"report: {tmp_path / 'demo' / 'report.html'}" in result.output
    assert "<h1>BYOL with FedEMA on synthetic images</h1>" in (tmp_path / "demo" / "report.html").read_text()
    monkeypatch.setattr("fedssl.data.standard.cached.fetch", lambda *a: tmp_path)
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path / "real")])
    assert "SYNTHETIC" not in result.output
    assert used["overrides"] == {}


def test_report_compare_and_list_of_runs(tmp_path, here):
    first = write_run(tmp_path / "runs" / "first")
    second = write_run(tmp_path / "runs" / "second", config=changed(CONFIG, update_rule__tau=0.5))
    code, out, err = here("compare", str(first), str(second))
    assert (code, err) == (0, "")
    assert ["update_rule.tau", "0.7", "0.5"] in [line.split() for line in out.splitlines()]
    code, out, err = here("ls")
    assert (code, err) == (0, "")
    assert "25.0 % → 37.5 %" in out
    code, out, err = here("report", str(first), str(second), "--images", "0", "-o", str(tmp_path / "r.html"))
    assert code == 0, err
    assert out.splitlines()[-1] == f"report: {tmp_path / 'r.html'}"
    assert "first: Nearest neighbours (asked for with --images 0)" in out
    assert "2 runs compared" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("damage", "out", "message"),
    [
        ('{"round": 0, "clients": []}\n{"rou', "r.html", "rounds.jsonl, line 2: damaged"),
        (None, "missing/r.html", "the folder missing does not exist"),
    ],
)
def test_a_report_that_cannot_be_made_is_one_line_and_exit_code_2(tmp_path, here, damage, out, message):
    run = write_run(tmp_path / "run")
    if damage:
        (run / "rounds.jsonl").write_text(damage)
    code, _, err = here("report", "run", "-o", out)
    assert code == 2
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("**/*.html"))


OWN_LOGGER = """
class Lines:
    def start(self, folder, config, done):
        self.file = (folder / "lines.txt").open("w")
    def log_round(self, record):
        print(record["round"], file=self.file)
    def finish(self, summary):
        print(summary["status"], file=self.file, flush=True)
"""


def test_run_logs_to_tensorboard_and_to_a_class_that_was_typed(tmp_path):
    (tmp_path / "own_logger.py").write_text(OWN_LOGGER)
    loggers = ("--tensorboard", "--logger", "own_logger:Lines", "--logger", "tensorboard")
    code, _, err = fedssl("run", "smoke", *TINY, "--set", "rounds=1", *loggers, "--out", "run", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert len(list((tmp_path / "run" / "tensorboard").glob("events.out.tfevents.*"))) == 1, "named twice, made once"
    assert (tmp_path / "run" / "lines.txt").read_text().split() == ["0", "1", "finished"]


def test_run_with_a_logger_that_is_not_installed_says_so_before_training(tmp_path):
    blocked = tmp_path / "blocked" / "wandb"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('no wandb here', name='wandb')")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "blocked"), os.environ.get("PYTHONPATH", "")])
    }
    command = [sys.executable, "-m", "fedssl", "run", "smoke", "--wandb", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr == 'error: logger wandb: wandb is not installed: pip install "fedssl[wandb]"\n'
    assert not (tmp_path / "run").exists()


def test_data_fetch_from_a_local_archive(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    seen = {}

    def fetch(name, source, progress):
        progress("reading", 1, 2)
        progress("reading", 2, 2)
        seen.update(name=name, source=source)
        return tmp_path / name

    monkeypatch.setattr("fedssl.data.standard.cached.fetch", fetch)
    result = CliRunner().invoke(cli.app, ["data", "fetch", "cifar100", "--from", "a.tar.gz"])
    assert result.exit_code == 0
    assert "cifar100 is in" in result.output
    assert (seen["name"], str(seen["source"])) == ("cifar100", "a.tar.gz")


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    from fedssl.experiment.experiment import load

    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = dict(part.split("=") for part in TINY if "=" in part)
    load("smoke", {name: int(value) for name, value in settings.items()} | {"threads": 1}).run(folder)
    return folder


def test_evaluate_prints_results_and_a_table(small_run, here):
    arguments = ("--clients", "--baseline", "random", "--batchnorm", "running", "--epochs", "2", "--seeds", "2")
    code, out, err = here("evaluate", str(small_run), *arguments)
    assert (code, err) == (0, "")
    assert "global: knn (paper), BatchNorm running: " in out
    assert "Accuracy on 40 test images of synthetic (paper protocols, 2 seeds)" in out
    for words in ("clients, own classes", "4 clients", "random", "Client by client: linear", "client 3"):
        assert words in out
    assert (small_run / "evaluation.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--protocol", "kn"), "there is no 'kn' (did you mean 'knn'?)"),
        (("--seeds", "0"), "--seeds: 0 is not"),
        (("--protocol", "semi-10"), "pre-train again with --set data.labelled_fraction=0.1"),
        (("--data", "synthetic"), "its images are 3 x 32 x 32"),
        (("--epochs", "x"), "--epochs x: write a whole number"),
    ],
)
def test_evaluate_refuses_in_one_line_with_exit_code_2(small_run, here, arguments, message):
    code, _, err = here("evaluate", str(small_run), *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_evaluate_interrupted_says_where_the_results_are(small_run, monkeypatch):
    from typer.testing import CliRunner

    from fedssl.encoders import api

    monkeypatch.setattr(api, "evaluate", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    result = CliRunner().invoke(cli.app, ["evaluate", str(small_run)])
    assert result.exit_code == 130
    assert "the results so far are in" in result.output
