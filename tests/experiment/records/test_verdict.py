"""Did it learn? The words, for runs written by hand."""

import io

import pytest
from rich.console import Console

from fedssl.experiment.records.run_record import RunRecord
from fedssl.experiment.records.verdict import advice, continued, verdict
from fedssl.reports import prose as words
from fedssl.reports import tables
from fedssl.reports.compare import results
from fedssl.reports.listing import list_runs
from fedssl.reports.run_figures import accuracy
from tests.helpers.written_runs import CONFIG, ROUNDS, SUMMARY, changed, client, write_run

UNFAIR = changed(
    SUMMARY,
    initial={"knn": 0.2, "knn_reestimated": 0.4, "linear": 0.2, "linear_reestimated": 0.422},
    final={"knn": 0.45, "knn_reestimated": 0.3, "linear": 0.424, "linear_reestimated": 0.41},
    data__test=1000,
)
"""A random encoder whose own BatchNorm statistics make any training look good: linear +22.4, in truth +0.2."""


def record(folder, **parts):
    return RunRecord.read(write_run(folder / "run", **parts))


def gained(low, high, difference=0.1):
    best = {"accuracy": 0.4, "batchnorm": "running", "sd": None}
    after = {**best, "accuracy": 0.4 + difference}
    return {"baseline": best, "trained": after, "interval": [low, high]}


@pytest.mark.parametrize(
    ("interval", "word", "of_a_file"),
    [
        ((0.01, 0.2), "learnt", "better than its start"),
        ((-0.01, 0.2), "not distinguishable from random", "not distinguishable from its start"),
        ((-0.2, -0.01), "worse than random", "worse than its start"),
    ],
)
def test_the_whole_interval_decides(tmp_path, interval, word, of_a_file):
    summary = changed(SUMMARY, gain={"knn": gained(*interval)}, initial={}, final={})
    assert verdict(record(tmp_path, summary=summary)).word == word
    init = {"encoder": "x", "sha256": 64 * "0", "skip": []}
    warm = record(tmp_path / "warm", summary=changed(summary, init=init))
    assert verdict(warm).word == of_a_file
    assert "over the encoder it started from at its best" in verdict(warm).because


@pytest.mark.parametrize(
    ("interval", "clients", "word"),
    [
        ((0.01, 0.2), [(0.01, 0.2), (-0.1, 0.1)], "improves"),
        ((-0.01, 0.2), [], "keeps what it knew"),
        ((-0.2, -0.01), [(0.01, 0.2)], "forgets"),
        ((0.01, 0.2), [(0.01, 0.2), (-0.2, -0.1)], "improves, forgets at 1 of 2 clients"),
    ],
)
def test_a_run_from_a_file_says_whether_it_forgets_also_at_its_clients(tmp_path, monkeypatch, interval, clients, word):
    own = {str(k): {"knn": gained(*one, difference=-0.15)} for k, one in enumerate(clients)}
    init = {"encoder": "x", "sha256": 64 * "0", "skip": []}
    summary = changed(SUMMARY, gain={"knn": gained(*interval)}, clients=own, initial={}, final={})
    assert continued(record(tmp_path, summary=summary)) is None, "a run that started at random has nothing to forget"
    warm = record(tmp_path / "warm", summary=changed(summary, init=init))
    found = continued(warm)
    assert found.word == word
    assert found.because.startswith("kNN accuracy 50.0 % (BatchNorm running), +10.0 points (95 % interval ")
    assert ("the clients' own encoders: client 0 -15.0 points (95 % interval " in found.because) == bool(clients)
    screen = io.StringIO()
    monkeypatch.setattr(tables, "Console", lambda: Console(file=screen, width=200))
    tables.print_summary(warm)
    assert f"Continued: {word} (kNN accuracy" in screen.getvalue()
    assert {tile.label: tile.value for tile in words.tiles(warm)}["Continued"] == word


def test_the_linear_probe_decides_and_knn_speaks_up_where_it_differs(tmp_path):
    gains = {"knn": gained(0.05, 0.15), "linear": gained(-0.02, 0.22)}
    found = verdict(record(tmp_path, summary=changed(SUMMARY, gain=gains)))
    assert found.word == "not distinguishable from random"
    assert found.because == (
        "linear probe 50.0 % (BatchNorm running), +10.0 points (95 % interval -2.0 to +22.0) over the random encoder "
        "at its best, 40.0 % (BatchNorm running); kNN accuracy 50.0 % (BatchNorm running), +10.0 points (95 % interval "
        "+5.0 to +15.0) over the random encoder at its best, 40.0 % (BatchNorm running): by itself learnt"
    )


def test_every_gain_is_over_the_better_random_baseline(tmp_path, monkeypatch):
    """Terminal, report, plot, comparison and list: none of them shows the +22.4 of the weak baseline."""
    run = record(
        tmp_path, rounds=[ROUNDS[0] | UNFAIR["initial"], ROUNDS[1], ROUNDS[2] | UNFAIR["final"]], summary=UNFAIR
    )
    assert verdict(run).word == "not distinguishable from random"
    screen = io.StringIO()
    monkeypatch.setattr(tables, "Console", lambda: Console(file=screen, width=80))
    tables.print_summary(run)
    terminal = screen.getvalue()
    shown = {tile.label: tile.note for tile in words.tiles(run)}
    compared = {row.label: row.values[0] for row in results([run])}
    (listed,) = list_runs(run.path)
    for text in (terminal, shown["Linear probe"], compared["linear probe, gain"]):
        assert "+0.2" in text
        assert "-4.1 to +4.5" in text
    assert listed.linear == "42.2 % → 42.4 % (-4.1 to +4.5)"
    assert listed.knn == "40.0 % → 45.0 % (+0.7 to +9.3)"
    assert listed.verdict == compared["verdict"] == "not distinguishable from random"
    assert next(iter(shown)) == "Verdict"
    assert "Verdict: not distinguishable from random" in terminal
    assert "22.4" not in "".join([terminal, *shown.values(), *compared.values()])
    alt = accuracy(run, "run1").panels[0].svg
    assert "kNN accuracy over rounds: 40.0 % before training, 45.0 % at the end" in alt


def test_older_runs_have_an_interval_if_they_were_evaluated(tmp_path):
    entry = {"data": "synthetic", "test_images": "all", "n": 400}
    known = record(tmp_path, summary=changed(SUMMARY, evaluation=[entry]))
    assert known.gain("knn").interval == pytest.approx((0.0606, 0.1879), abs=1e-3)
    assert verdict(known).word == "learnt"
    other = record(tmp_path / "b", summary=changed(SUMMARY, evaluation=[{**entry, "data": "cifar10"}]))
    assert other.gain("knn").interval is None
    assert verdict(other).word == "not known"
    assert "fedssl evaluate" in advice(other)[0]


def test_without_labels_or_rounds_there_is_no_verdict(tmp_path):
    spread = {"backbone_std": 0.3}
    rounds = [{key: value for key, value in one.items() if key not in ("knn", "linear")} for one in ROUNDS]
    unlabelled = record(tmp_path, rounds=rounds, summary=changed(SUMMARY, initial=spread, final=spread))
    assert verdict(unlabelled) is None
    assert advice(unlabelled) == []
    assert verdict(record(tmp_path / "b", rounds=ROUNDS[:1], summary=changed(SUMMARY, final={}))) is None


def test_advice_follows_from_what_the_run_did(tmp_path):
    same = changed(SUMMARY, gain={"knn": gained(-0.01, 0.02)}, initial={}, final={})
    steps = advice(record(tmp_path, summary=same))
    assert steps == ["more rounds (rounds, now 2): a client took 10 training steps in all, which is few"]
    large = changed(CONFIG, local_training__batch_size=32)
    (steps,) = advice(record(tmp_path / "large", summary=same, config=large))
    assert steps.startswith("more rounds (rounds, now 2), or smaller batches (local_training.batch_size, now 32): ")
    collapsed = [*ROUNDS[:2], ROUNDS[2] | {"clients": [client(0, feature_std=0.01), client(1)]}]
    assert "features collapsed" in advice(record(tmp_path / "collapsed", rounds=collapsed, summary=same))[0]
    own = changed(CONFIG, method__name="simclr")
    [text, *_] = advice(record(tmp_path / "own", config=own, rounds=collapsed, summary=same))
    assert "method.name=byol" in text, "never the method that collapsed"
    enough = changed(CONFIG, local_training__epochs=1000)
    (other,) = advice(record(tmp_path / "enough", summary=same, config=enough))
    assert other == "another method (method.name=simclr) or learning rate (local_training.lr)"
    wide = changed(same, gain={"knn": gained(-0.1, 0.3)})
    assert advice(record(tmp_path / "wide", summary=wide, config=enough)) == [
        "more labelled test images: with these, gains below 20 points cannot be seen"
    ]
    learnt = changed(same, gain={"knn": gained(0.01, 0.02)})
    assert advice(record(tmp_path / "learnt", summary=learnt)) == []
