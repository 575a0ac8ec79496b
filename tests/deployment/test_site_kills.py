"""A site's process ends before any of the calls that touch its disk: its word and its record are whole, and go on."""

import io
import os
import shutil

import pytest

from fedssl.deployment.consent import approve, check_consent, join, leave, read_consent
from fedssl.deployment.policy import Policy
from fedssl.deployment.site_folder import claim_state
from fedssl.deployment.site_run import record_reply, record_task
from fedssl.federation.messages import ClientError, Failure
from tests.helpers.audited import verified
from tests.helpers.faults import CALLS, CONTEXT, counted

RUN, SETTINGS = "a1b2", {"rounds": 3}
ABOUT = {"run": RUN, "round": 1, "settings": SETTINGS}


def ask(state):
    with pytest.raises(ClientError):
        check_consent(state, RUN, SETTINGS, Policy(approval="ask"))


def task(state):
    record_task({"state": str(state)}, ABOUT)


def reply(state):
    record_reply({"state": str(state)}, ABOUT, Failure(0, 1, "refused"), seconds=1.0)


STEPS = {  # what happens at a site, in this order, and what the record then says
    "claim": (lambda state: claim_state(state, "north"), ""),
    "task": (task, "task"),
    "ask": (ask, "asked"),
    "reply": (reply, "reply"),
    "approve": (lambda state: approve(state, read_consent(state, RUN)), "approved"),
    "leave": (lambda state: leave(state, RUN), "left"),
    "join": (lambda state: join(state, RUN), "joined"),
}


def killed(state, step, at):
    """In a child of its own that ends before the `at`-th call; its exit code, and how many calls there were."""
    count, inside = CONTEXT.Value("i", 0), [True]
    child = os.fork()
    if not child:
        try:
            for call in CALLS:
                setattr(os, call, counted(getattr(os, call), inside, count, at))
            io.open = counted(io.open, inside, count, at)
            STEPS[step][0](state)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), count.value


def word(state):
    known = read_consent(state, RUN)
    return known and (known.status, known.settings)


def before(folder, step):
    """A site at which everything has happened that stands before this step."""
    state = folder / "before"
    state.mkdir()
    for name in STEPS:
        if name == step:
            return state
        STEPS[name][0](state)
    raise AssertionError(step)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_before_any_storage_call_loses_no_word_and_no_line(tmp_path, step):
    start, (act, event) = before(tmp_path, step), STEPS[step]
    whole = shutil.copytree(start, tmp_path / "whole")
    exit_code, calls = killed(whole, step, -1)
    assert exit_code == 0
    assert calls >= 3
    for at in range(1, calls + 1):
        state = shutil.copytree(start, tmp_path / f"at-{at}")
        assert killed(state, step, at)[0] == 77
        assert word(state) in (word(start), word(whole)), "the old word or the new one, never half of one"
        events, done = events_of(state), word(state) == word(whole) != word(start)
        if done and step in ("ask", "approve", "join"):
            assert events[-1] == event, "what lets something out is recorded before it counts"
        else:
            act(state)  # who was not told that it is done does it again
            assert not event or events_of(state)[-1] == event
        claim_state(state, "north")
        assert word(state) == word(whole)
        assert events_of(state)[: len(events)] == events, "what was recorded stays"


def events_of(state):
    path = state / "audit.jsonl"
    return [line["event"] for line in verified(path)[0]] if path.exists() else []
