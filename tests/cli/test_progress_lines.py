"""Progress in 80 columns: what is done, what runs, until when; what has ended makes room and does not spin."""

from __future__ import annotations

from divulge.cli.progress_lines import Lines
from divulge.core.progress import Step


def test_an_audit_says_what_is_done_what_runs_and_until_when():
    lines = Lines()
    lines.hear(Step("audit", 3, 9, {"now": "Membership of the training set", "until": "14:32:10"}))
    lines.hear(Step("reference models", 2, 8, {"loss": 0.25}))
    whole, now, stage = lines.shown()
    assert whole.endswith("3 of 9 attacks done, until 14:32:10")
    assert now == "  now: Membership of the training set"
    assert "reference models  [####............] 2/8  loss 0.25" in stage


def test_no_line_is_longer_than_80_columns_or_than_the_terminal():
    lines = Lines()
    lines.hear(Step("audit", 3, 9, {"now": "x" * 200, "until": "14:32:10"}))
    lines.hear(Step("y" * 200, 2, 8, {"loss": 0.25}))
    assert max(map(len, lines.shown(200))) == 80
    assert max(map(len, lines.shown(40))) == 40


def test_finished_work_stops_spinning_and_makes_room():
    lines = Lines()
    lines.hear(Step("audit", 0, 2, {"now": "a", "until": "1"}))
    lines.hear(Step("kinks", 4, 8))
    assert lines.shown()[-1][0] in "|/-\\"
    lines.hear(Step("kinks", 8, 8))
    assert lines.shown()[-1].startswith("  kinks")
    lines.hear(Step("audit", 1, 2, {"now": "b", "until": "1"}))
    assert len(lines.shown()) == 2
