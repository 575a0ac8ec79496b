"""A run as it stands now, whether it is running, was killed or is over: read again and again, however half written."""

import contextlib
import shutil
import socket
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from fedssl.core.errors import FedsslError, reason, safe_text
from fedssl.core.files import bytes_in, size_text
from fedssl.core.lines import Tail, whole_tables
from fedssl.core.names import client_title
from fedssl.experiment.config.texts import NOT_SET
from fedssl.experiment.progress.live import LIVE
from fedssl.experiment.records.metrics import best_metric, metrics_of
from fedssl.experiment.records.run_record import SUMMARY, RunRecord, Table, describe_config, read_json
from fedssl.experiment.records.site_accuracy import at_sites, mean_of
from fedssl.experiment.records.verdict import verdict
from fedssl.reports import prose, run_figures
from fedssl.reports.compare import duration, percent, site_text
from fedssl.reports.page import Figure, Tile

RECENT = 15.0  # seconds: a sign of life that needs no further proof
MOST_CLIENTS = 100  # in the table
SHOWN = 10  # failures and sentences
FIGURES = {"accuracy": run_figures.accuracy, "sites": run_figures.sites, "loss": run_figures.loss, "mu": run_figures.mu}
WORDS = {"away": "away for", "working": "at work for", "done": "delivered", "here": "here"}
LARGEST = 2**26  # bytes of a file that a page reads whole


class Lines:
    """All tables of a .jsonl file that grows, or is cut back and replaced; each line is read once."""

    def __init__(self, path: Path) -> None:
        self.tail, self.tables = Tail(path), list[Table]()

    def look(self) -> list[Table]:
        new = whole_tables(self.tail.new())
        self.tables = [] if self.tail.anew else self.tables
        self.tables += new
        return self.tables


@dataclass(frozen=True, kw_only=True)
class ClientNow:
    """A row of the table of clients."""

    title: str
    state: str  # one of WORDS; "": the run is not running
    text: str
    delivered: str
    failures: int


@dataclass(frozen=True, kw_only=True)
class RunNow:
    """All that the page shows of a run."""

    id: str
    name: str
    what: str
    state: str  # running, finished, interrupted, stopped
    text: str  # the same in a sentence
    done: int
    rounds: int
    tiles: Sequence[Tile] = ()
    clients: Sequence[ClientNow] = ()
    more_clients: int = 0
    failures: Sequence[str] = ()
    said: Sequence[str] = ()


class Watched:
    """One run folder; remembers what it has read."""

    def __init__(self, path: Path, id_: str) -> None:
        self.path, self.id = path, id_
        self._rounds, self._failures = Lines(path / "rounds.jsonl"), Lines(path / "failures.jsonl")
        self._names: tuple[float, list[str]] = (0.0, [])
        self._used: tuple[float, int] = (0.0, 0)
        self._drawn: tuple[int, float, tuple[Figure, ...]] = (-1, 0.0, ())

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def look(self) -> RunNow:
        """Whatever is wrong with its files is said on the page, which stays up."""
        try:
            return self._look()
        except Exception as error:
            text = f"cannot be read now: {reason(error)}"
            return RunNow(id=self.id, name=self.name, what="", state="stopped", text=text, done=0, rounds=0)

    def _look(self) -> RunNow:
        config, live, summary = _toml(self.path / "config.toml"), _json(self.path / LIVE), _json(self.path / SUMMARY)
        rounds = [one for one in self._rounds.look() if _is_round(one)]
        record = self._record(config, summary, rounds)
        alive, planned = _alive(live), int(config.get("rounds") or live.get("rounds") or 0)
        done = rounds[-1]["round"] if rounds else 0
        state, text = _state(alive, live, summary, done, planned)
        clients = self._clients(record, live if alive else {})
        return RunNow(
            id=self.id,
            name=self.name,
            what=describe_config(config, len(clients)) if config else "not begun yet",
            state=state,
            text=text,
            done=done,
            rounds=planned,
            tiles=[
                *_verdict(record),
                *_time_tiles(live if alive else {}, summary, done, planned),
                *_tiles(record),
                self._disk(),
            ],
            clients=clients[:MOST_CLIENTS],
            more_clients=max(len(clients) - MOST_CLIENTS, 0),
            failures=[_failure(one, record) for one in reversed(self._failures.look()[-SHOWN:])],
            said=[f"{_clock(when)} {safe_text(str(text))}" for when, text in reversed(live.get("said", [])[-SHOWN:])],
        )

    def _record(self, config: Table, summary: Table, rounds: list[Table]) -> RunRecord:
        """As of a finished run; what its summary would say before there is one, its rounds say."""
        first = rounds[0] if rounds else {}
        known = {"initial": first, "at_sites": {"initial": first.get("at_sites", {}).get("counts", [])}}
        names = {"data": summary.get("data", {}) | {"client_names": self._client_names(config)}}
        return RunRecord(path=self.path, config=config, summary=known | summary | names, rounds=rounds, environment={})

    def _client_names(self, config: Table) -> list[str]:
        names = config.get("flower", {}).get("clients") or []
        path = self.path / "partition.json"
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime
            if not names and changed != self._names[0]:
                self._names = changed, list(_json(path).get("names", []))
        return [safe_text(str(name)) for name in names or self._names[1]]

    def _clients(self, record: RunRecord, live: Table) -> list[ClientNow]:
        """Those that are away first."""
        last: dict[int, int] = {}
        failed: dict[int, int] = {}
        for one in record.trained:
            last |= {client["client"]: one["round"] for client in one["clients"]}
        for failure in self._failures.look():
            failed[failure.get("client_id", -1)] = failed.get(failure.get("client_id", -1), 0) + 1
        states = {int(client): one for client, one in live.get("clients", {}).items()}
        names = record.summary["data"]["client_names"]
        count = max([len(names), *(k + 1 for k in (*last, *states))], default=0)
        rows = []
        for client in range(count):
            now = states.get(client, {"state": "here" if live else ""})
            state = now["state"] if now["state"] in WORDS else ""
            delivered = f"round {last[client]}" if client in last else NOT_SET
            title = client_title(client, names)
            rows.append(
                ClientNow(
                    title=title, state=state, text=_doing(now), delivered=delivered, failures=failed.get(client, 0)
                )
            )
        return sorted(rows, key=lambda one: one.state != "away")

    def _disk(self) -> Tile:
        """What is free, and what the run takes; that is counted twice a minute at most."""
        if time.monotonic() - self._used[0] > 30 or not self._used[0]:
            self._used = time.monotonic(), bytes_in(self.path)
        return Tile(
            "Disk", f"{size_text(shutil.disk_usage(self.path).free)} free", f"the run takes {size_text(self._used[1])}"
        )

    def figures(self) -> tuple[Figure, ...]:
        """The curves of a report, drawn again when a round is over, and so seldom that drawing takes little time."""
        rounds = [one for one in self._rounds.look() if _is_round(one)]
        drawn, again, figures = self._drawn
        if len(rounds) == drawn or time.monotonic() < again:
            return figures
        started = time.monotonic()
        record = self._record(_toml(self.path / "config.toml"), _json(self.path / SUMMARY), rounds)
        made = []
        for name, make in FIGURES.items():
            with contextlib.suppress(FedsslError, KeyError, TypeError, ValueError, IndexError):
                made.append(make(record, f"{self.id}-{name}"))
        self._drawn = len(rounds), time.monotonic() + 20 * (time.monotonic() - started), tuple(made)
        return self._drawn[2]


def _toml(path: Path) -> Table:
    with contextlib.suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return tomllib.loads(path.read_text(encoding="utf-8"))
    return {}


def _json(path: Path) -> Table:
    with contextlib.suppress(OSError, FedsslError):
        if path.stat().st_size < LARGEST:
            return read_json(path)
    return {}


def _is_round(one: Table) -> bool:
    return isinstance(one.get("round"), int) and isinstance(one.get("clients"), list)


def _alive(live: Table) -> bool:
    """By a fresh sign of life, or on the same machine by its process."""
    if not live or live.get("ended"):
        return False
    if time.time() - live["time"] < RECENT:
        return _process(live) is not False
    return _process(live) is True


def _process(live: Table) -> bool | None:
    """Whether the process that wrote the file still runs; None: it is on another machine."""
    if live["host"] != socket.gethostname():
        return None
    try:
        process = psutil.Process(live["pid"])
        same = abs(process.create_time() - live["process_began"]) < 2
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _state(alive: bool, live: Table, summary: Table, done: int, planned: int) -> tuple[str, str]:
    if alive:
        doing = str(live.get("doing") or "at work")
        return "running", f"{doing} (last sign of life {_since(live['time'])} ago)"
    if summary.get("status") == "finished" and done >= planned:
        return "finished", "finished"
    if live and not live.get("ended"):
        return "stopped", "stopped without a word, killed perhaps: the same command resumes it"
    return "interrupted", "interrupted: the same command resumes it"


def _verdict(record: RunRecord) -> list[Tile]:
    """Of a run that is over."""
    judged = verdict(record) if record.status == "finished" else None
    return [prose.verdict_tile("Verdict", judged)] if judged else []


def _time_tiles(live: Table, summary: Table, done: int, planned: int) -> list[Tile]:
    made = [Tile("Round", f"{done} of {planned}", "finished")]
    if live:
        left = _left(live)
        text = NOT_SET if left is None else _rounded(left)
        made.append(Tile("Time left", text, f"running for {_since(live['began'])}"))
    elif summary.get("seconds") is not None:
        made.append(Tile("Time", duration(summary["seconds"]), "training and evaluation"))
    return made


def _left(live: Table) -> float | None:
    """By the rounds that this process finished, before that by its training steps; None: nobody knows yet."""
    now, rounds = time.time(), live["done"] - live["began_with"]
    if rounds > 0:
        each, since = float(live["round_began"] - live["began"]) / rounds, now - live["round_began"]
        overdue = since > 2 * each + RECENT  # somebody is awaited, perhaps: nobody knows for how long
        return None if overdue else max(each - since, 0.0) + each * (live["rounds"] - live["done"] - 1)
    if live["stepped"] and live["steps"] > live["stepped"]:
        return float((now - live["began"]) / live["stepped"] * (live["steps"] - live["stepped"]))
    return None


def _tiles(record: RunRecord) -> list[Tile]:
    """The newest numbers; what was not measured is left out."""
    made, rounds = [], record.trained
    for name, label in (("loss", "Loss"), ("mu", "mu")):
        known = [one[name] for one in rounds if one.get(name) is not None]
        if known:
            made.append(Tile(label, f"{known[-1]:.3f}", f"at first {known[0]:.3f}"))
    for name, label in (("knn", "kNN accuracy"), ("linear", "Linear probe")):
        measured = [value for one in record.rounds if (value := best_metric(one, name)) is not None]
        if measured:
            made.append(Tile(label, percent(measured[-1]), f"before training {_together(percent(measured[0]))}"))
    if sites := at_sites(record):
        worst = sites[0]["linear"]
        made.append(
            Tile(
                "At the sites",
                site_text(mean_of(sites, "linear")),
                f"worst: {worst.title}, {_together(site_text(worst))}",
            )
        )
    failures = sum(len(one.get("failures", [])) for one in rounds)
    hit = sum(bool(one.get("failures")) for one in rounds)
    made.append(Tile("Failures", str(failures), f"in {hit} of {len(rounds)} rounds" if hit else "in no round"))
    sent = [metrics_of(one) for one in record.rounds]  # round 0 too: sites may be asked before training
    up, down = (sum(one.get(name, 0) for one in sent) for name in ("bytes_up", "bytes_down"))
    made.append(
        Tile(
            "Sent",
            size_text(up + down),
            f"{_together(size_text(up))} from clients, {_together(size_text(down))} to them",
        )
    )
    return made


def _together(text: str) -> str:
    """A number and its unit on one line."""
    return text.replace(" ", "\u00a0")


def _doing(now: Table) -> str:
    word = WORDS.get(now["state"], NOT_SET)
    if now["state"] in ("away", "working"):
        word = f"{word} {_since(now['since'])}"
    return f"{word}, step {now['step']} of {now['steps']}" if now["state"] == "working" and "step" in now else word


def _since(when: float) -> str:
    return _rounded(max(time.time() - when, 0.0))


def _rounded(seconds: float) -> str:
    """In whole seconds, which are calm to look at: `8 s`, `3 min 05 s`."""
    return f"{seconds:.0f} s" if seconds < 59.5 else duration(seconds)


def _failure(one: Table, record: RunRecord) -> str:
    client = record.client(one["client_id"]) if isinstance(one.get("client_id"), int) else "a client"
    text = f"round {one.get('round_number')}: {client}: {one.get('code')} ({one.get('detail') or NOT_SET})"
    return safe_text(f"{str(one.get('time', ''))[11:19]} {text}")


def _clock(when: Any) -> str:
    return datetime.fromtimestamp(float(when)).strftime("%H:%M:%S")
