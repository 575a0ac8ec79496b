"""Resuming a run folder: what may change, who may write, what is said. FAULTS 8–11."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.experiment.experiment import load
from fedssl.experiment.progress.stopping import StopRequest
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import read_environment, read_summary
from tests.faults.test_damage import QUICK, Stops
from tests.helpers.faults import CONTEXT, everything, experiment, finish, start
from tests.helpers.small import TINY
from tests.helpers.written_runs import as_older

NAME = "BYOL + FedEMA"


@pytest.fixture
def part(tmp_path):
    """Stopped after round 1 of 3."""
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, **QUICK).run(tmp_path / "run", Stops(1))
    return tmp_path / "run"


def resume(folder, force=False, **changes):
    view = Stops()
    report = experiment(NAME, **(QUICK | changes)).run(folder, view, force=force)
    return view, report


def test_other_settings_are_refused_with_every_difference(part):
    with pytest.raises(FedsslError) as error:
        resume(part, force=True, seed=1, rounds=4, **{"update_rule.tau": 0.5})
    for text in ("seed 0 → 1", "rounds 3 → 4", "update_rule.tau 0.7 → 0.5", "--fresh"):
        assert text in str(error.value)
    assert error.value.exit_code == 2


def test_harmless_changes_need_force_and_are_recorded(part):
    with pytest.raises(FedsslError, match=r"rounds 3 → 4\. They may change: say so with --force"):
        resume(part, rounds=4)
    view, report = resume(part, force=True, rounds=4, **{"evaluation.every": 2})
    assert "note: rounds 3 → 4" in view.lines
    assert any(line.startswith("note: the rate now falls until round 4: the next one is") for line in view.lines)
    assert report.summary["rounds"] == 4
    (resumed,) = json.loads((part / "environment.json").read_text())["resumed"]
    assert resumed["after_round"] == 1
    assert resumed["changed"] == {"rounds": [3, 4], "evaluation.every": [0, 2]}
    assert "rounds = 4" in (part / "config.toml").read_text()


def test_a_finished_run_has_nothing_to_do_and_can_be_extended(part):
    resume(part)
    evaluated = read_summary(part) | {"evaluation": [{"protocol": "knn"}]}
    RunFolder(part).write_summary(evaluated)
    view, report = resume(part)
    assert view.lines == [f"{part}: this run is finished, nothing is left to do"]
    assert report.summary == evaluated, "what `fedssl evaluate` added stays"
    view, report = resume(part, force=True, rounds=5)
    assert "resumes after round 3" in view.lines
    assert (report.summary["rounds"], report.summary["status"]) == (5, "finished")
    assert [json.loads(line)["round"] for line in (part / "rounds.jsonl").read_text().splitlines()] == [*range(6)]
    with pytest.raises(FedsslError, match="rounds: 4 is less than the 5 rounds that are done"):
        resume(part, force=True, rounds=4)


def test_other_threads_or_versions_are_said_and_recorded(part):
    environment = read_environment(part)
    environment["packages"]["torch"] = "1.0"
    environment["torch_threads"] = 7
    RunFolder(part).write_environment(environment)
    view, _ = resume(part)
    warned = [line for line in view.lines if "not bitwise" in line]
    assert len(warned) == 2
    assert warned[0].startswith(f"warning: packages.torch 1.0 → {torch.__version__}") or "torch_threads" in warned[0]
    (resumed,) = json.loads((part / "environment.json").read_text())["resumed"]
    assert set(resumed["changed"]) == {"packages.torch", "torch_threads"}


def test_a_run_killed_before_its_first_checkpoint_begins_again(part, tmp_path):
    import shutil

    shutil.rmtree(part / "checkpoints")
    (part / "summary.json").unlink()
    (part / "rounds.jsonl").write_text((part / "rounds.jsonl").read_text().splitlines()[0] + "\n")
    resume(part)
    experiment(NAME, **QUICK).run(tmp_path / "whole")
    assert everything(part) == everything(tmp_path / "whole")


def killed_child(folder, name, before):
    """Dies when the file of this name is about to get it, or has just got it."""
    replace = Path.replace

    def dying(path, target):
        if Path(target).name == name and before:
            os._exit(9)
        replace(path, target)
        if Path(target).name == name:
            os._exit(9)

    Path.replace = dying
    experiment(NAME, **QUICK).run(folder)


@pytest.mark.parametrize(
    ("name", "before"),
    [(".owner.json", True), ("environment.json", False), ("partition.json", False), ("config.toml", True)],
)
def test_a_run_killed_before_it_has_a_config_begins_again(tmp_path, undisturbed, name, before):
    process = CONTEXT.Process(target=killed_child, args=(tmp_path / "run", name, before))
    process.start()
    process.join(300)
    assert process.exitcode == 9
    assert not (tmp_path / "run" / "config.toml").exists()
    (tmp_path / "run" / ".probe").touch()  # as of one that was killed while it looked whether it may write
    experiment(NAME, **QUICK).run(tmp_path / "run")
    assert everything(tmp_path / "run") == undisturbed


def test_a_folder_that_is_not_of_a_run_is_refused_whatever_its_files_are_called(tmp_path):
    (tmp_path / "environment.json").write_text("{}")
    with pytest.raises(FedsslError, match="the folder is not empty and holds no run"):
        experiment(NAME, **QUICK).run(tmp_path)


def test_two_processes_cannot_write_to_one_folder_and_a_dead_ones_lock_is_free(tmp_path):
    folder = tmp_path / "run"
    process, *_ = start(NAME, folder, rounds=2000)
    wait_for(lambda: (folder / "checkpoints").exists(), process)
    with pytest.raises(FedsslError, match=rf"in use by process {process.pid} on {os.uname().nodename} since"):
        experiment(NAME, rounds=2000).run(folder)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with RunFolder(folder).locked():
        assert json.loads((folder / ".owner.json").read_text())["pid"] == os.getpid()


def wait_for(condition, process):
    """As long as it takes, for machines may be busy; a process that ended will not do it any more."""
    while not condition():
        assert process.is_alive(), f"it ended with code {process.exitcode}"
        time.sleep(0.01)


def test_a_folder_that_cannot_be_written_is_said_before_round_1(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(
        "pathlib.Path.touch", lambda self: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    with pytest.raises(FedsslError, match="cannot make or write to the run folder: Permission denied"):
        load("smoke", TINY).run(tmp_path / "run")


def test_a_folder_that_vanishes_is_named(tmp_path):
    import shutil

    class Removes(Stops):
        def round_finished(self, record):
            if record["round"] == 1:
                shutil.rmtree(tmp_path / "run")

    with pytest.raises(FedsslError, match=r"run/.* cannot be written: No such file or directory") as error:
        experiment(NAME, **QUICK).run(tmp_path / "run", Removes())
    assert error.value.exit_code == 5


def test_too_little_room_is_said_before_round_1(tmp_path, monkeypatch):
    monkeypatch.setattr("fedssl.experiment.summary.free_bytes", lambda path: 1000)
    with pytest.raises(FedsslError, match=r"are needed for the states of 6 clients and checkpoints, 1\.0 kB are free"):
        experiment(NAME, **QUICK).run(tmp_path / "run")
    monkeypatch.setattr("fedssl.experiment.summary.free_bytes", lambda path: 400_000)
    view = Stops()
    experiment(NAME, **QUICK).run(tmp_path / "run", view)
    assert any("THIS IS MORE THAN IS FREE" in line for line in view.lines)


# --- a disk that fills up ---------------------------------------------------------------------------------------------


def limited_child(folder, limit, said):
    """No file may grow beyond `limit` bytes: what a quota does."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        experiment(NAME, **QUICK).run(folder)
    except FedsslError as error:
        said.put((error.exit_code, str(error)))


@pytest.mark.parametrize("what", ["client state", "log"])
def test_a_file_that_may_not_grow_stops_the_run_and_costs_nothing(part, tmp_path, what):
    sizes = {
        "client state": max(path.stat().st_size for path in part.rglob("tensors.safetensors")) // 2,
        "log": (part / "rounds.jsonl").stat().st_size + 100,
    }
    if what == "log":  # larger than the states, so that it is the log that hits the limit
        as_older(part)  # else the line more would be noticed
        filler = {"round": -1, "clients": [], "text": "x" * 3 * max(sizes.values())}
        (part / "rounds.jsonl").write_text(json.dumps(filler) + "\n" + (part / "rounds.jsonl").read_text())
        sizes["log"] = (part / "rounds.jsonl").stat().st_size + 100
    said = CONTEXT.Queue()
    process = CONTEXT.Process(target=limited_child, args=(part, sizes[what], said))
    process.start()
    code, text = said.get(timeout=600)
    process.join()
    assert code == 5
    assert "File too large" in text
    assert " free)" in text
    assert "make room and run the same command again" in text
    assert ("rounds.jsonl" if what == "log" else "round-000002") in text
    finish(NAME, part, **QUICK)
    experiment(NAME, **QUICK).run(tmp_path / "whole")
    found, expected = everything(part), everything(tmp_path / "whole")
    if what == "log":
        found["rounds"] = found["rounds"][1:]
        del found["metrics"], expected["metrics"]
        for one in (found, expected):  # the gain image by image is not known of a run that an older version began
            del one["summary"]["gain"], one["summary"]["verdict"]
    assert found == expected


# --- signals ---------------------------------------------------------------------------------------------------------


def stoppable_child(folder, where, numbers, said):
    """Sends itself signals while it trains, aggregates or saves, as a person or a scheduler would."""
    from fedssl.experiment.progress.stopping import StoppableView, StopRequest
    from fedssl.federation import checkpoint, rounds

    def strike(function):
        def struck(*values, **named):
            for number in numbers:
                os.kill(os.getpid(), number)
            return function(*values, **named)

        return struck

    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which children inherit
    view = Stops()
    if where == "saving":
        checkpoint.seal = strike(checkpoint.seal)
    elif where == "aggregating":
        rounds.accept = strike(rounds.accept)
    else:
        view.progress = strike(view.progress)
    with StopRequest() as request:
        try:
            experiment(NAME, **QUICK).run(folder, StoppableView(view, request))
        except KeyboardInterrupt:
            said.put(request.exit_code)


@pytest.mark.parametrize("where", ["training", "aggregating", "saving"])
@pytest.mark.parametrize(
    "numbers", [(signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGINT,), (signal.SIGINT, signal.SIGINT)]
)
def test_a_signal_anywhere_costs_nothing(tmp_path, undisturbed, where, numbers):
    said = CONTEXT.Queue()
    process = CONTEXT.Process(target=stoppable_child, args=(tmp_path / "run", where, numbers, said))
    process.start()
    process.join(timeout=600)
    assert said.get(timeout=5) == 128 + numbers[0], "ended otherwise"
    finish(NAME, tmp_path / "run", **QUICK)
    assert everything(tmp_path / "run") == undisturbed


def test_a_hang_up_that_is_ignored_stays_ignored():
    """nohup fedssl run …"""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as request:
            os.kill(os.getpid(), signal.SIGHUP)
            request.check()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    experiment(NAME, **QUICK).run(folder)
    return everything(folder)
