"""What a run wrote down, its encoder, and states of clients that were not asked lately: FAULTS 46–48."""

import json
import random
import shutil

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fedssl
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.weights import Weights
from fedssl.encoders.evaluate import Request, evaluate
from fedssl.encoders.export import export_encoder
from fedssl.encoders.trained import open_encoder
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.run_record import RunRecord, read_summary
from fedssl.federation.client_sampling import sample_clients
from fedssl.reports.listing import list_runs
from tests.faults.test_damage import NAME, QUICK, Stops
from tests.helpers.faults import everything, experiment
from tests.helpers.fuzz import damage, fuzz
from tests.helpers.written_runs import as_older

LOGS = ("failures.jsonl", "profile.jsonl", "evaluation.jsonl")


class FailsOnce(Stops):
    def progress(self, text, done, total, client=None, images=0):
        super().progress(text, done, total, client, images)
        if client is not None and self.steps == 1:
            raise RuntimeError("once")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished and evaluated run, and one stopped after round 2 of 3; both have every kind of record."""
    scratch = tmp_path_factory.mktemp("records")
    settings = QUICK | {"profile": True, "engine": "in-process"}
    experiment(NAME, **settings).run(scratch / "finished", FailsOnce())
    evaluate(scratch / "finished", Request(protocols=("knn",), batchnorm="running"))
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, **settings).run(scratch / "stopped", FailsOnce(2))
    return scratch


@pytest.fixture
def finished(made, tmp_path):
    return shutil.copytree(made / "finished", tmp_path / "run")


@pytest.fixture
def stopped(made, tmp_path):
    return shutil.copytree(made / "stopped", tmp_path / "run")


def again(folder, force=False, **changes):
    view = Stops()
    experiment(NAME, **(QUICK | {"profile": True, "engine": "in-process"} | changes)).run(folder, view, force=force)
    return view.lines


def flip(path, stream):
    damage(path, "flipped", stream)


# --- the encoder -----------------------------------------------------------------------------------------------------


def test_two_hundred_flips_of_an_encoder_are_all_noticed(finished, tmp_path):
    """Half of them in the header; alone, where no summary vouches for it, as in the run folder."""
    alone = tmp_path / "encoder.safetensors"
    shutil.copy(finished / "encoder.safetensors", alone)
    stream, whole = random.Random(0), alone.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for path in (alone, finished / "encoder.safetensors"):
        for number in range(100):
            content = bytearray(whole)
            content[stream.randrange(header if number % 2 else len(whole))] ^= 1 << stream.randrange(8)
            path.write_bytes(content)
            with pytest.raises(FedsslError, match=r"encoder\.safetensors: "):
                open_encoder(path)
        path.write_bytes(whole)
        open_encoder(path)


def test_every_reader_of_a_run_compares_the_weights_with_the_summary(finished, tmp_path):
    """Also of a run of an older version, whose file has no checksum of its own: the summary names the weights."""
    as_older(finished)
    tensors = load_file(finished / "encoder.safetensors")
    tensors["backbone.conv1.weight"][0, 0, 0, 0] += 1e-6
    save_file(tensors, finished / "encoder.safetensors", older_metadata(finished / "encoder.safetensors"))
    readers = [
        lambda: fedssl.load_encoder(finished),
        lambda: fedssl.load_encoder(finished, client=0),
        lambda: FinishedRun.open(finished).global_encoder(),
        lambda: export_encoder(finished, tmp_path / "out"),
        lambda: evaluate(finished, Request(protocols=("knn",))),
        lambda: experiment(NAME, **{"init.encoder": str(finished)}).run(tmp_path / "next"),
    ]
    for reader in readers:
        with pytest.raises(DamagedError, match=r"encoder\.safetensors: damaged, not the weights that summary\.json"):
            reader()


def older_metadata(path):
    """What a file says about its encoder, as older versions wrote it."""
    with safe_open(path, "pt") as file:
        return {"fedssl": file.metadata()["fedssl"]}


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("how", ["flipped", "truncated", "gone", "edited digest"])
def test_a_finished_run_makes_its_encoder_again(finished, how, older):
    before, digest = everything(finished), Weights.of(FinishedRun.open(finished).global_encoder()).digest()
    evaluation, file = read_summary(finished)["evaluation"], (finished / "encoder.safetensors").read_bytes()
    if older:
        as_older(finished)
    if how == "edited digest":
        text = (finished / "summary.json").read_text()
        (finished / "summary.json").write_text(text.replace(digest, "0" * 64))
    else:
        damage(finished / "encoder.safetensors", how, random.Random(how))
    lines = again(finished)
    named = "summary.json" if how == "edited digest" and not older else "encoder.safetensors"
    assert any(named in line and "it is made again from the newest checkpoint" in line for line in lines)
    assert Weights.of(FinishedRun.open(finished).global_encoder()).digest() == digest
    assert (finished / "encoder.safetensors").read_bytes() == file, "a run that started from it still knows it"
    after = everything(finished)
    for found in (before, after):
        found["summary"].pop("profile")
        found["summary"].pop("evaluation", None)
    assert after == before
    if how != "edited digest":
        assert read_summary(finished)["evaluation"] == evaluation, "what was evaluated stays"
    assert again(finished) == [f"{finished}: this run is finished, nothing is left to do"]


def test_an_export_notices_a_flip_and_one_of_an_older_version_is_read(finished, tmp_path):
    export_encoder(finished, tmp_path / "out", ["hub"])
    path = tmp_path / "out" / "model.safetensors"
    save_file(load_file(path), tmp_path / "older.safetensors", older_metadata(path) | {"format": "pt"})
    whole = Weights.of(fedssl.load_encoder(path)).digest()
    assert Weights.of(fedssl.load_encoder(tmp_path / "older.safetensors")).digest() == whole
    flip(path, random.Random(3))
    with pytest.raises(DamagedError, match=r"model\.safetensors: damaged"):
        fedssl.load_encoder(tmp_path / "out")


# --- the records -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["flipped", "truncated", "gone"])
@pytest.mark.parametrize("name", ["metrics.csv", "partition.json", *LOGS, "environment.json"])
def test_a_damaged_record_is_named_and_mended_or_put_aside(finished, name, how):
    damage(finished / name, how, random.Random(f"{name} {how}"))
    with pytest.raises(DamagedError, match=rf"run/{name}: .*run the same `fedssl run` command again"):
        RunRecord.read(finished)
    if name in ("environment.json", "partition.json"):
        with pytest.raises(DamagedError, match=rf"run/{name}: "):
            getattr(FinishedRun.open(finished), name.partition(".")[0])
    if name == "evaluation.jsonl":
        with pytest.raises(DamagedError, match=r"run/evaluation\.jsonl: "):
            evaluate(finished, Request(protocols=("knn",), batchnorm="running"))
    (line,) = list_runs(finished)
    assert line.status.startswith("broken: ")
    assert name in line.status
    (said,) = [line for line in again(finished) if name in line]
    made = name in ("metrics.csv", "partition.json")
    assert ("it is made again" if made else "the run continues without it") in said
    assert len([*finished.glob(f"damaged-{name}-1")]) == (not made and how != "gone")
    RunRecord.read(finished)
    assert again(finished) == [f"{finished}: this run is finished, nothing is left to do"]


def test_metrics_made_again_are_the_same(finished):
    before = (finished / "metrics.csv").read_bytes()
    (finished / "metrics.csv").unlink()
    again(finished)
    assert (finished / "metrics.csv").read_bytes() == before


@pytest.mark.parametrize("folder", ["finished", "stopped"])
def test_rounds_that_are_damaged_are_an_error_unless_an_older_checkpoint_vouches_for_the_rest(made, tmp_path, folder):
    expected = everything(made / "finished")
    run = shutil.copytree(made / folder, tmp_path / "run")
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join([*lines[:-1], lines[-1].replace('"loss": ', '"loss": 1')]))
    for reader in (RunRecord.read, lambda path: FinishedRun.open(path).rounds):
        with pytest.raises(DamagedError, match=r"rounds\.jsonl: damaged, its checksum"):
            reader(run)
    assert any("rounds.jsonl: damaged" in line and "resumes from the one before" in line for line in again(run))
    found = everything(run)
    for one in (found, expected):
        one["summary"].pop("profile")
        one["summary"].pop("evaluation", None)
    if folder == "finished":
        assert found == expected
    run = shutil.copytree(made / folder, tmp_path / "other")
    (run / "rounds.jsonl").write_text("".join(lines[1:]))
    with pytest.raises(DamagedError, match=r"none of 2 checkpoints can be used: .*rounds\.jsonl: damaged"):
        again(run)


def test_settings_that_are_damaged_are_an_error(stopped):
    text = (stopped / "config.toml").read_text()
    for damaged in (text.replace("seed = 0", "seed = 1"), "".join(text.splitlines(keepends=True)[:-3])):
        (stopped / "config.toml").write_text(damaged)
        for reader in (again, RunRecord.read, lambda path: FinishedRun.open(path).config):
            with pytest.raises(DamagedError, match=r"config\.toml: damaged, its checksum"):
                reader(stopped)
    (stopped / "config.toml").unlink()
    with pytest.raises(DamagedError, match=r"config\.toml: is missing: put back a copy"):
        again(stopped)


def test_folders_of_older_versions_are_read_and_gone_on_with(made, tmp_path):
    older = as_older(shutil.copytree(made / "finished", tmp_path / "finished"))
    (older / "failures.jsonl").unlink()
    assert RunRecord.read(older).status == "finished"
    assert fedssl.load_encoder(older)
    assert again(older) == [f"{older}: this run is finished, nothing is left to do"]
    older = as_older(shutil.copytree(made / "stopped", tmp_path / "stopped"))
    assert "resumes after round 2" in again(older)
    again(shutil.copytree(made / "stopped", tmp_path / "whole"))
    assert everything(older)["global"] == everything(tmp_path / "whole")["global"]
    assert everything(older)["clients"] == everything(tmp_path / "whole")["clients"]
    RunRecord.read(older)
    assert set(read_summary(older)["files"]) >= {"rounds.jsonl", "metrics.csv", "config.toml", "environment.json"}


def test_a_flip_in_a_feature_cache_is_computed_again(finished):
    request = Request(protocols=("knn",), batchnorm="running")
    first = evaluate(finished, request)
    (path,) = (finished / "features").iterdir()
    whole, content = Weights(load_file(path)).digest(), bytearray(path.read_bytes())
    content[-1] ^= 0x40  # the exponent of a feature
    path.write_bytes(content)
    assert evaluate(finished, request) == first
    assert Weights(load_file(path)).digest() == whole


# --- states of clients -----------------------------------------------------------------------------------------------

WIDE = {"client_sampling.clients_per_round": 2, "rounds": 4, "evaluation.every": 0, "data.test_images": 10}


@pytest.fixture(scope="module")
def harmed(tmp_path_factory):
    """Stopped after round 3 of 4; a state that both checkpoints name is damaged. Returns the client of it, too."""
    folder = tmp_path_factory.mktemp("harmed") / "run"
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, **WIDE).run(folder, Stops(3))
    asked = {
        record["round"]: [client["client"] for client in record["clients"]]
        for record in map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    }
    (client,) = sorted(set(asked[1]) - set(asked[2]) - set(asked[3]))[:1]
    flip(folder / f"clients/client-{client:05d}/round-000001/tensors.safetensors", random.Random(1))
    return folder, client


def test_a_damaged_state_that_no_checkpoint_can_do_without_is_an_error_that_names_the_setting(harmed, tmp_path):
    run = shutil.copytree(harmed[0], tmp_path / "run")
    with pytest.raises(
        DamagedError, match=rf"client {harmed[1]}: .*round-000001/tensors\.safetensors: damaged"
    ) as error:
        experiment(NAME, **WIDE).run(run)
    assert "--set failures.damaged_state=start-over --force" in str(error.value)
    assert error.value.exit_code == 3
    assert [*run.glob("checkpoints/damaged-*")] == []


@pytest.mark.parametrize("engine", ["in-process", "processes", pytest.param("flower", marks=pytest.mark.flower)])
def test_with_start_over_the_others_go_on_and_the_client_starts_from_the_global_model(harmed, tmp_path, engine):
    (folder, client), view = harmed, Stops()
    run = shutil.copytree(folder, tmp_path / "run")
    asked = next(number for number in range(4, 100) if client in sample_clients(6, 2, 0, number))
    settings = WIDE | {"failures.damaged_state": "start-over", "engine": engine, "rounds": asked, "workers": 2}
    experiment(NAME, **settings).run(run, view, force=True)
    assert any(f"client {client}: " in line and "; the client starts over" in line for line in view.lines)
    assert any(f"client {client}: its own state was damaged, in round {asked} it" in line for line in view.lines)
    records = RunRecord.read(run).rounds
    over = [(one["round"], c["client"]) for one in records for c in one["clients"] if c.get("started_over")]
    assert over == [(asked, client)]
    assert not any("failures" in one for one in records)


# --- every file ------------------------------------------------------------------------------------------------------


def test_nothing_that_is_damaged_passes_in_silence(tmp_path):
    """Sixty cases over all files of four run folders and the image cache; `make soak` has five hundred."""
    found = fuzz(60, 0, tmp_path)
    assert [case for case in found if case.outcome in ("silent", "traceback")] == []
    assert sum(case.outcome == "noticed" for case in found) > 30
