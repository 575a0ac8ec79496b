"""Did a run learn? In words, from the gain over the encoder that it began with and what its records say."""

import statistics
from dataclasses import dataclass
from typing import Literal

from fedssl.evaluation.score import Best, Gain
from fedssl.experiment.records.run_record import RunRecord

COLLAPSED_BELOW = 0.08  # a `feature_std` under this is a collapse; of encoders that learn 0.2 to 0.9 were seen
MEASURES = {"knn": "kNN accuracy", "linear": "linear probe"}
Word = Literal["better", "same", "worse", "not known"]
OF_RANDOM: dict[Word, str] = {
    "better": "learnt",
    "same": "not distinguishable from random",
    "worse": "worse than random",
    "not known": "not known",
}
OF_ITS_START: dict[Word, str] = {
    "better": "better than its start",
    "same": "not distinguishable from its start",
    "worse": "worse than its start",
    "not known": "not known",
}
CONTINUED: dict[Word, str] = {
    "better": "improves",
    "same": "keeps what it knew",
    "worse": "forgets",
    "not known": "not known",
}
FEW_STEPS = 500  # of a client over the whole run
WORTH_A_TRY = ("simclr", "byol")  # what learns most in little time, and what needs no large batches
WIDE = 0.05  # half an interval: gains below it cannot be seen


@dataclass(frozen=True)
class Verdict:
    """`word` for tables and programs, `because` with the numbers, `kind` for colours."""

    word: str
    because: str
    kind: Word


def verdict(record: RunRecord) -> Verdict | None:
    """By the linear probe where there is one, else by kNN; None where no accuracy is known of a trained encoder."""
    gains = _gains(record)
    if not gains:
        return None
    main, phrases = _word(gains[0][1]), OF_ITS_START if record.own_start else OF_RANDOM
    reasons = [
        f"{MEASURES[measure]} {best_text(gain.trained)}, {against_start(gain, record)}"
        + ("" if _word(gain) == main else f": by itself {phrases[_word(gain)]}")
        for number, (measure, gain) in enumerate(gains)
        if number == 0 or _word(gain) != main
    ]
    return Verdict(phrases[main], "; ".join(reasons), main)


def continued(record: RunRecord) -> Verdict | None:
    """By kNN, of a run that started from weights in a file: does it improve on them or forget, also at its clients?"""
    gain, clients = record.gain("knn"), record.client_gains("knn")
    if gain is None or not record.own_start:
        return None
    forgetful = [client for client, one in clients.items() if _word(one) == "worse"]
    kind = _word(gain)
    word = CONTINUED[kind] + (f", forgets at {len(forgetful)} of {len(clients)} clients" if forgetful else "")
    each = ", ".join(f"{record.client(client)} {points(one)}" for client, one in clients.items())
    because = f"kNN accuracy {best_text(gain.trained)}, {against_start(gain, record)}"
    more = f"; the clients' own encoders: {each}" if each else ""
    return Verdict(word, because + more, "worse" if forgetful else kind)


def _gains(record: RunRecord) -> list[tuple[str, Gain]]:
    """The one that decides first."""
    return [(measure, gain) for measure in reversed(MEASURES) if (gain := record.gain(measure))]


def _word(gain: Gain) -> Word:
    """Better or worse only if the whole 95 % interval says so."""
    if gain.interval is None:
        return "not known"
    low, high = gain.interval
    return "better" if low > 0 else "worse" if high < 0 else "same"


def against_start(gain: Gain, record: RunRecord) -> str:
    """`+0.2 points (95 % interval -1.8 to +2.2) over the random encoder at its best, 44.6 % (BatchNorm running)`."""
    return f"{points(gain)} over {start(record)} at its best, {best_text(gain.baseline)}"


def start(record: RunRecord) -> str:
    """What the trained encoder is compared with."""
    return "the encoder it started from" if record.own_start else "the random encoder"


def points(gain: Gain) -> str:
    """`+0.2 points (95 % interval -1.8 to +2.2)`."""
    between = interval(gain)
    return f"{100 * gain.difference:+.1f} points" + (f" (95 % interval {between})" if between else "")


def interval(gain: Gain) -> str:
    """`-1.8 to +2.2`, in points."""
    return "" if gain.interval is None else "{:+.1f} to {:+.1f}".format(*(100 * end for end in gain.interval))


def best_text(best: Best) -> str:
    """An accuracy, and the BatchNorm mode that it was found in."""
    return f"{accuracy(best)} ({mode(best)})" if best.batchnorm else accuracy(best)


def accuracy(best: Best) -> str:
    """With its spread over clients, if they share nothing."""
    spread = "" if best.sd is None else f" ± {100 * best.sd:.1f}"
    return f"{100 * best.accuracy:.1f}{spread} %"


def mode(best: Best) -> str:
    return {"": "", "running": "BatchNorm running", "reestimated": "BatchNorm re-estimated"}[best.batchnorm]


def advice(record: RunRecord) -> list[str]:
    """What to try, by what the records show; nothing where the run learnt or no accuracy is known."""
    gain = next((gain for _, gain in _gains(record)), None)
    if gain is None or _word(gain) == "better":
        return []
    if gain.interval is None:
        return ["evaluate the run (fedssl evaluate): an older version did not note the number of its test images"]
    texts = [*_collapse(record), *_few_steps(record)]
    half = (gain.interval[1] - gain.interval[0]) / 2
    if _word(gain) == "same" and half > WIDE:
        texts.append(f"more labelled test images: with these, gains below {100 * half:.0f} points cannot be seen")
    return texts or [f"another method (method.name={_other(record)}) or learning rate (local_training.lr)"]


def _other(record: RunRecord) -> str:
    """A method that is worth a try, and not the run's own."""
    return next(name for name in WORTH_A_TRY if name != record.config["method"].get("name"))


def _collapse(record: RunRecord) -> list[str]:
    last = record.trained[-1]["clients"] if record.trained else []
    if not any(one.get("feature_std", 1.0) < COLLAPSED_BELOW for one in (*last, *record.trained[-1:])):
        return []
    return [
        f"a lower local_training.lr, or another method (method.name={_other(record)}): features collapsed, all images "
        "look alike"
    ]


def _few_steps(record: RunRecord) -> list[str]:
    """By the typical client, over all rounds in which it trained."""
    training, taken = record.config.get("local_training", {}), dict[int, int]()
    epochs, batch_size = training.get("epochs", 1), training.get("batch_size", 1)
    for one in record.trained:
        for client in one["clients"]:
            steps = epochs * max(client.get("n", one.get("n", 0) // len(one["clients"])) // batch_size, 1)
            taken[client["client"]] = taken.get(client["client"], 0) + steps
    typical = round(statistics.median(taken.values())) if taken else FEW_STEPS
    if typical >= FEW_STEPS:
        return []
    smaller = f", or smaller batches (local_training.batch_size, now {batch_size})" if batch_size > 8 else ""
    more = f"more rounds (rounds, now {record.config.get('rounds')}){smaller}"
    return [f"{more}: a client took {typical} training steps in all, which is few"]
