"""The audit of a site: what it holds, that no change goes unnoticed, and that a kill at any byte breaks nothing."""

import hashlib
import json

import pytest
import torch
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.weights import Weights
from fedssl.deployment.audit import Audit, Spent, after, check_audit, parts_of
from fedssl.deployment.audit_page import html_page
from fedssl.federation.messages import Failure, GlobalWeights, TrainResult
from tests.helpers.audited import verified

WEIGHTS = GlobalWeights(Weights({"w": torch.ones(3)}, {"mean": torch.zeros(2)}), Weights())


def filled(folder, lines=4):
    for number in range(lines):
        Audit(folder).add("task", run="a1", round=number)
    return folder / "audit.jsonl"


def test_lines_follow_on_each_other(tmp_path):
    lines, remarks = verified(filled(tmp_path))
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    assert [line["previous"] for line in lines] == ["", *(line["sha256"] for line in lines[:-1])]
    assert remarks == []


def test_every_flipped_bit_is_noticed(tmp_path):
    path = filled(tmp_path, 3)
    content = path.read_bytes()
    before_last = content[:-1].rfind(b"\n") + 1
    for at in range(len(content) - 1):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        if at >= before_last - 1:  # nothing follows it yet: said, and named by the next line
            assert ": cut off" in verified(path)[1][0]
        else:
            with pytest.raises(DamagedError, match=r"audit\.jsonl, line [123]: "):
                verified(path)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: lines[1:], 1),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
        (lambda lines: [*lines[:1], b"{}", *lines[1:]], 2),
    ],
    ids=["first removed", "one removed", "swapped", "repeated", "put in between"],
)
def test_lines_that_are_removed_moved_or_added_are_noticed(tmp_path, change, line):
    path = filled(tmp_path)
    path.write_bytes(b"\n".join([*change(path.read_bytes().splitlines()), b""]))
    with pytest.raises(DamagedError, match=rf"audit\.jsonl, line {line}: "):
        verified(path)


def test_a_kill_at_any_byte_of_a_line_is_named_and_the_chain_goes_on(tmp_path):
    path = filled(tmp_path, 3)
    content = path.read_bytes()
    whole = content[:-1].rfind(b"\n") + 1
    for at in [*range(whole + 1, len(content) - 1, 15), len(content) - 2]:
        path.write_bytes(content[:at])
        assert "line 3: cut off, as by a kill" in verified(path)[1][0]
        Audit(tmp_path).add("task", run="a1", round=7)
        lines, remarks = verified(path)
        assert [line["event"] for line in lines] == ["task", "task", "unreadable", "task"]
        assert remarks[0].startswith("line 3: cut off")
        assert "noticed on" in remarks[0]


def test_a_line_without_its_end_of_line_is_whole(tmp_path):
    path = filled(tmp_path, 2)
    path.write_bytes(path.read_bytes()[:-1])
    Audit(tmp_path).add("task", run="a1", round=2)
    assert [line["round"] for line in verified(path)[0]] == [0, 1, 2]


def test_kills_one_after_another_are_all_named(tmp_path):
    path = filled(tmp_path, 1)
    path.write_bytes(path.read_bytes() + b'{"time": "20\n{"ti')
    Audit(tmp_path).add("task", run="a1", round=1)
    lines, remarks = verified(path)
    assert [line["event"] for line in lines] == ["task", "unreadable", "task"]
    assert [remark[:6] for remark in remarks] == ["line 2", "line 3"]


def test_an_audit_that_is_not_there_says_so(tmp_path):
    with pytest.raises(FedsslError, match="this site has recorded nothing yet"):
        verified(tmp_path / "audit.jsonl")
    assert Audit(tmp_path).spent("a1") == Spent()


def test_what_leaves_is_listed_by_name_size_and_hash():
    result = TrainResult(0, 1, WEIGHTS, num_examples=17, scalars={"loss": 0.5}, payload={"features": torch.ones(4)})
    parts = {part["name"]: part for part in parts_of(result)}
    assert list(parts) == ["encoder", "payload/features", "numbers: num_examples, loss"]
    assert (parts["encoder"]["bytes"], parts["encoder"]["sha256"]) == (20, WEIGHTS.encoder.digest())
    masked = TrainResult(0, 1, WEIGHTS, num_examples=1, stage=b'Session {"x": 1}')
    assert [part["name"] for part in parts_of(masked)] == ["encoder (masked)", "stage: Session"]
    assert [part["name"] for part in parts_of(Failure(0, 1, "refused", detail="a path"))] == ["code: refused"]
    shared = Failure(0, 1, "refused", detail="a path", shared="max_rounds")
    assert [part["name"] for part in parts_of(shared)] == ["code: refused", "reason"]


def test_an_upload_that_is_sent_twice_is_spent_once():
    first = TrainResult(0, 1, WEIGHTS, num_examples=17)
    second = TrainResult(0, 2, GlobalWeights(Weights({"w": torch.zeros(3)}), Weights()), num_examples=17)
    spent = Spent()
    counted = []
    for reply in (first, first, Failure(0, 1, "exception"), second, first):
        spent = after(spent, reply, parts_of(reply), 1800.0)
        counted.append(spent.uploads)
    assert counted == [1, 1, 1, 2, 3], "an upload that is repeated later may hide in other noise: it counts"
    assert (spent.hours, spent.round_number) == (2.5, 1)
    sums = Spent()
    for attempt in (b"a", b"b"):
        masked = TrainResult(0, 1, WEIGHTS, num_examples=1, stage=b"Session " + attempt)
        sums = after(sums, masked, parts_of(masked), 0.0)
    assert sums.uploads == 1, "of a round one sum is opened"
    nothing = TrainResult(0, 1, GlobalWeights.EMPTY, num_examples=1, stage=b"RoundShares x")
    assert after(Spent(), nothing, parts_of(nothing), 0.0).uploads == 0


def test_the_command_prints_a_page_and_refuses_a_broken_chain(tmp_path):
    audit, result = Audit(tmp_path), TrainResult(0, 1, WEIGHTS, num_examples=17, scalars={"loss": 0.5})
    audit.add("task", run="a1b2", round=1, settings="5" * 64)
    spent = vars(after(Spent(), result, parts_of(result), 1800.0))
    audit.add("reply", run="a1b2", round=1, settings="5" * 64, left=parts_of(result), spent=spent, epsilon=4.567)
    audit.add("left", run="c3d4")
    shown = CliRunner().invoke(app, ["client", "audit", "--state", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "3 lines, the chain holds" in shown.output
    assert f"encoder, 20 B, {WEIGHTS.encoder.digest()}" in shown.output
    assert "run a1b2: 1 uploads, " in shown.output
    assert "0.50 hours of work, epsilon 4.57" in shown.output
    assert "the site left the run: run c3d4" in shown.output
    path = tmp_path / "audit.jsonl"
    audit.add("task", run="e5f6", round=1)
    one = CliRunner().invoke(app, ["client", "audit", "--state", str(tmp_path), "--run", "c3"])
    assert "a1b2" not in one.output
    assert "4 lines, the chain holds" in one.output
    assert one.output.endswith(f"last line: {verified(path)[0][-1]['sha256']}\n"), "of all lines, whatever is shown"
    path.write_text(path.read_text().replace("4.567", "0.567"))
    broken = CliRunner().invoke(app, ["client", "audit", "--state", str(tmp_path)])
    assert isinstance(broken.exception, DamagedError)
    assert json.loads(path.read_text().splitlines()[0])["event"] == "task"


EVIL = "<script>document.title='taken'</script><img src=x onerror=document.title='taken'>"


def evil_audit(folder):
    """A run, a part and a setting whose names are code, and a line that a kill cut off."""
    audit = Audit(folder)
    left = [{"name": f"payload/{EVIL}", "bytes": 7, "sha256": EVIL}]
    audit.add("reply", run=EVIL, round=EVIL, settings=EVIL, left=left, spent=vars(Spent(1, 0.5)), epsilon=EVIL)
    audit.add(EVIL, run="a1b2")
    path = folder / "audit.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time')
    audit.add("left", run="a1b2")
    return path


def test_the_page_has_the_verdict_first_and_nothing_in_it_is_code(tmp_path):
    path = evil_audit(tmp_path)
    done = CliRunner().invoke(app, ["client", "audit", "--state", str(tmp_path), "--html", str(tmp_path / "a.html")])
    assert (done.exit_code, done.output) == (0, f"{tmp_path / 'a.html'}\n")
    html = (tmp_path / "a.html").read_text()
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html
    content = html[html.index("<main") :]
    positions = [content.index(text) for text in ("The chain holds, over 4 lines", "cut off, as by a kill", "by run")]
    assert positions == sorted(positions)
    assert check_audit(path).last in content
    one = html_page(path, check_audit(path), "a1")
    assert "Nothing left this site" in one
    assert "the site left the run" in one
    assert check_audit(path).last in one


def test_the_page_of_a_broken_chain_says_so_and_the_command_fails(tmp_path):
    path, page = filled(tmp_path), tmp_path / "a.html"
    path.write_bytes(path.read_bytes().replace(b'"round": 2', b'"round": 7'))
    done = CliRunner().invoke(app, ["client", "audit", "--state", str(tmp_path), "--html", str(page)])
    assert isinstance(done.exception, DamagedError)
    assert "The chain is BROKEN" in page.read_text()
    assert "line 3: is not as it was written" in page.read_text()
    assert "round 1" in page.read_text()
    assert "round 3" not in page.read_text(), "what follows the break is not vouched for"
    assert "last line: " not in page.read_text()


def test_a_line_that_somebody_made_up_is_a_change_and_no_crash(tmp_path):
    for text in ('{"a": 1', "no JSON at all"):
        path = filled(tmp_path)
        digest = hashlib.sha256(text.encode()).hexdigest()
        lines = path.read_bytes().splitlines()
        path.write_bytes(b"\n".join([lines[0], f'{text}, "sha256": "{digest}"}}'.encode(), *lines[1:], b""]))
        with pytest.raises(DamagedError, match=r"audit\.jsonl, line 2: is not as it was written"):
            verified(path)
        path.unlink()
