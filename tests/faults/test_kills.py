"""FAULTS: a process may end at any instant, and the run still comes to the same bits."""

import shutil

import pytest

from fedssl.federation.checkpoint import CheckpointStore
from tests.helpers.faults import PRESETS, crash, everything, finish, kill_and_compare, left_over

QUICK = {"evaluation.every": 0, "data.test_images": 10}


@pytest.mark.parametrize(("name", "kills"), [*zip(PRESETS, (4, 3, 2, 2, 2, 2, 2), strict=True)])
def test_sigkill_at_random_instants_changes_nothing(tmp_path, name, kills):
    found = kill_and_compare(name, kills, seed=0, scratch=tmp_path)
    assert len(found) == kills
    assert len({kill.point for kill in found}) > 1, "all kills met the run in the same place"


@pytest.fixture(scope="module")
def halfway(tmp_path_factory):
    """A run after round 2 of 3, and what it comes to when nobody disturbs it."""
    scratch = tmp_path_factory.mktemp("halfway")
    finish("BYOL + FedEMA", scratch / "whole", rounds=3, **QUICK)
    exit_code, _ = crash("BYOL + FedEMA", scratch / "part", "ClientStore", 3, 1, rounds=3, **QUICK)
    assert exit_code == 77
    return scratch / "part", everything(scratch / "whole")


@pytest.mark.parametrize("saver", ["ClientStore", "CheckpointStore"])
def test_a_crash_before_every_storage_call_of_a_save_changes_nothing(tmp_path, halfway, saver):
    part, expected = halfway
    exit_code, calls = crash("BYOL + FedEMA", copied(part, tmp_path / "all"), saver, 3, -1, rounds=3, **QUICK)
    assert exit_code == 0
    calls = calls // 3 if saver == "ClientStore" else calls  # three clients a round save alike
    assert calls >= 12, "a save opens, writes, flushes, renames and removes"
    for at in range(1, calls + 1):
        folder = copied(part, tmp_path / f"at-{at}")
        exit_code, _ = crash("BYOL + FedEMA", folder, saver, 3, at, rounds=3, **QUICK)
        assert exit_code == 77
        usable = [number for number in CheckpointStore(folder / "checkpoints").rounds() if is_whole(folder, number)]
        assert len(usable) >= 2, f"storage call {at}: only {usable} remain"
        finish("BYOL + FedEMA", folder, rounds=3, **QUICK)
        assert everything(folder) == expected, f"storage call {at}"
        assert left_over(folder) == []


def is_whole(folder, round_number):
    CheckpointStore(folder / "checkpoints").load(round_number)  # raises when it is not
    return True


def copied(folder, to):
    shutil.copytree(folder, to)
    return to


def test_a_lost_reply_and_a_lost_state_end_alike(tmp_path, halfway):
    """The process ends when a client's state is saved and its reply is not used, and the other way round."""
    part, expected = halfway
    for at, saver in ((1, "ClientStore"), (1, "CheckpointStore")):
        folder = copied(part, tmp_path / saver)
        crash("BYOL + FedEMA", folder, saver, 3, at, rounds=3, **QUICK)
        pending = len([*folder.glob("clients/*/round-000003")])
        assert pending == (0 if saver == "ClientStore" else 3)
        finish("BYOL + FedEMA", folder, rounds=3, **QUICK)
        assert everything(folder) == expected


@pytest.mark.parametrize("round_number", [1, 2])
def test_a_crash_in_any_stage_of_a_secure_sum_changes_nothing(tmp_path, round_number):
    """Round 1 also exchanges keys. All of a sum is in one process here: the server is gone with the site."""
    name, settings = "Secure FedEMA", {"rounds": 2, **QUICK}
    finish(name, tmp_path / "whole", **settings)
    exit_code, calls = crash(name, tmp_path / "all", "SecureClient", round_number, -1, **settings)
    assert exit_code == 0
    assert calls >= 60, "three sites lock, write, flush and rename at every stage"
    for at in range(3, calls, calls // 4):
        folder = tmp_path / f"at-{at}"
        exit_code, _ = crash(name, folder, "SecureClient", round_number, at, **settings)
        assert exit_code == 77
        finish(name, folder, **settings)
        assert everything(folder) == everything(tmp_path / "whole"), f"storage call {at}"
        assert left_over(folder) == []
