"""Checkpoints that are truncated, altered or gone: FAULTS 4–6 and 12."""

import json
import random
import shutil

import pytest

from fedssl.core.errors import DamagedError, FedsslError
from fedssl.experiment.experiment import load
from fedssl.experiment.progress.views import QuietView
from fedssl.federation.checkpoint import Checkpoint, CheckpointStore
from tests.helpers.faults import everything, experiment
from tests.helpers.small import TINY

NAME = "BYOL + FedEMA"
QUICK = {"evaluation.every": 0, "data.test_images": 10, "rounds": 3}


class Stops(QuietView):
    """Ends the run after a round, as Ctrl-C would; keeps what was said."""

    def __init__(self, after=None):
        self.after, self.lines, self.steps = after, [], 0

    def progress(self, text, done, total, client=None, images=0):
        self.steps += client is not None

    def round_finished(self, record):
        if record["round"] == self.after:
            raise KeyboardInterrupt

    def say(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run stopped after round 2 of 3, and what it comes to when nobody disturbs it."""
    scratch = tmp_path_factory.mktemp("damage")
    experiment(NAME, **QUICK).run(scratch / "whole")
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, **QUICK).run(scratch / "part", Stops(2))
    return scratch / "part", everything(scratch / "whole")


@pytest.fixture
def part(stopped, tmp_path):
    shutil.copytree(stopped[0], tmp_path / "run")
    return tmp_path / "run"


def resume(folder):
    view = Stops()
    experiment(NAME, **QUICK).run(folder, view)
    return view


def test_a_stopped_run_goes_on_where_it_was(part, stopped):
    view = resume(part)
    assert "resumes after round 2" in view.lines
    assert view.steps == 3 * 2, "one round of three clients with two batches each"
    assert everything(part) == stopped[1]


DAMAGES = ["truncated", "flipped", "gone"]


def damage(path, how, stream):
    content = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: stream.randrange(len(content))])
    else:
        content[stream.randrange(len(content))] ^= 1 << stream.randrange(8)
        path.write_bytes(content)


@pytest.mark.parametrize("file", ["manifest.json", "tensors.safetensors"])
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("where", ["checkpoints/round-000002", "client"])
def test_a_damaged_checkpoint_or_client_state_costs_one_round_and_no_bit(part, stopped, where, how, file):
    """The one before is used, and it is said; a state of the last round counts as part of its checkpoint."""
    folder = part / where if where != "client" else sorted(part.glob("clients/*/round-000002"))[0]
    damage(folder / file, how, random.Random(f"{where} {how} {file}"))
    view = resume(part)
    (said,) = [line for line in view.lines if "moved to" in line]
    assert f"{folder.name}/{file}" in said
    assert "damaged-round-000002-1; the run resumes from the one before" in said
    assert "resumes after round 1" in view.lines
    assert (part / "checkpoints" / "damaged-round-000002-1").is_dir()
    assert everything(part) == stopped[1]


def test_a_hundred_truncations_and_flips_are_all_noticed(part):
    """The manifest included; the folder is checked, not the whole run made again."""
    store, stream = CheckpointStore(part / "checkpoints"), random.Random(1)
    folder = store.path(2)
    for file in ("manifest.json", "tensors.safetensors"):
        whole = (folder / file).read_bytes()
        for number in range(100):
            damage(folder / file, "flipped" if number % 2 else "truncated", stream)
            with pytest.raises(DamagedError):
                store.load(2)
            (folder / file).write_bytes(whole)
    assert store.load(2).state.round_number == 2


def test_when_all_are_bad_every_one_is_named_and_nothing_is_touched(part):
    for number in (1, 2):
        (part / f"checkpoints/round-{number:06d}/tensors.safetensors").write_bytes(b"")
    before = {path: path.read_bytes() for path in part.rglob("*") if path.is_file() and path.name != ".owner.json"}
    with pytest.raises(DamagedError, match="none of 2 checkpoints can be used") as error:
        resume(part)
    assert error.value.exit_code == 3
    for number in (1, 2):
        assert f"round-{number:06d}/tensors.safetensors: damaged, 0 bytes instead of" in str(error.value)
    assert {path: path.read_bytes() for path in before} == before
    with pytest.raises(DamagedError):
        resume(part)  # it never starts over by itself


def test_checkpoints_that_vanished_are_not_a_new_run(part):
    shutil.rmtree(part / "checkpoints")
    with pytest.raises(DamagedError, match=r"holds no checkpoint, but rounds\.jsonl has rounds"):
        resume(part)


def test_clients_whose_folders_were_swapped_are_refused_and_nothing_is_moved(part):
    first, second = sorted(part.glob("clients/*/round-000002"))[:2]
    first.rename(part / "x")
    second.rename(first)
    (part / "x").rename(second)
    with pytest.raises(FedsslError, match=r"holds the state of client \d, not of client \d: put the folders back"):
        resume(part)
    assert not [*part.glob("checkpoints/damaged-*")]


def test_a_torn_last_line_and_lines_of_a_lost_round_are_taken_back(part, stopped):
    lines = (part / "rounds.jsonl").read_text().splitlines()
    lost = json.loads(lines[-1]) | {"round": 3, "loss": 99.0}
    (part / "rounds.jsonl").write_text("\n".join([*lines, json.dumps(lost), '{"round": 4, "lo']))
    with (part / "metrics.csv").open("a") as file:
        file.write("3,0.1,99.0")
    resume(part)
    assert everything(part) == stopped[1]


def test_the_newest_may_be_damaged_so_one_alone_is_refused(tmp_path):
    with pytest.raises(FedsslError, match="keep_checkpoints: 1 is too few"):
        CheckpointStore(tmp_path, keep=1)
    with pytest.raises(FedsslError, match="keep_checkpoints: 1 is not a whole number 2 or more"):
        load("smoke", TINY | {"keep_checkpoints": 1})


def test_three_checkpoints_can_be_kept_and_two_may_be_damaged(tmp_path):
    settings = QUICK | {"rounds": 5, "keep_checkpoints": 3}
    experiment(NAME, **settings).run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, **settings).run(tmp_path / "part", Stops(4))
    assert CheckpointStore(tmp_path / "part" / "checkpoints").rounds() == [2, 3, 4]
    for number in (3, 4):
        (tmp_path / f"part/checkpoints/round-{number:06d}/manifest.json").write_text("{}")
    view = Stops()
    experiment(NAME, **settings).run(tmp_path / "part", view)
    assert "resumes after round 2" in view.lines
    assert everything(tmp_path / "part") == everything(tmp_path / "whole")


def test_checkpoint_round_trip_keeps_course_and_payload(tmp_path):
    import torch

    from fedssl.federation.messages import GlobalWeights
    from fedssl.federation.rounds import ServerState
    from tests.helpers.small import of

    weights = GlobalWeights(of(0.1), of(0.2))
    state = ServerState(
        7, weights, accepted_round={3: 6}, notes={3: {"scale": 1 / 3}}, payload={"features": torch.ones(2)}
    )
    store = CheckpointStore(tmp_path)
    store.save(Checkpoint(state, {"seconds": 1.5}))
    back = store.load(7)
    assert (back.state.accepted_round, back.state.notes) == ({3: 6}, {3: {"scale": 1 / 3}})
    assert back.run == {"seconds": 1.5}
    assert back.state.global_weights.digest == weights.digest
    assert back.state.payload["features"].tolist() == [1.0, 1.0]
