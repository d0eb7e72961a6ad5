"""What people and programs see of a fleet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvweave.cli.serve_report import new_report
from kvweave.serving import Deployment, Fleet, Interruption
from kvweave.serving.probe import Reply, questions

SERVERS = (
    Deployment("prefill", "prefill", 8001, ("vllm", "serve", "m"), {"OMP_NUM_THREADS": "1"}, "tp=2"),
    Deployment("decode", "decode", 8002, ("vllm", "serve", "m"), {}, "tp=1"),
    Deployment("router", "router", 8000, ("vllm-router",)),
)
CHAT = questions("m")[0]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    (tmp_path / "prefill.log").write_text("INFO 11-29 22:10:01 [loader.py:7] Loading [bold]weights[/bold]\n")
    return Fleet(SERVERS, tmp_path, Interruption())


def documents(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_terminal_sees_what_each_program_does(fleet, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    report = new_report(as_document=False)
    with report.progress(SERVERS, fleet):
        report.started(SERVERS[0], 0.0)
        report.healthy(SERVERS[1], 24.4)
        report.refresh()
    shown = capsys.readouterr().err
    wanted = ("prefill", "starting", "Loading [bold]weights[/bold]", "healthy after 24 s", "router", "waits")
    assert [words for words in wanted if words not in shown] == []


def test_a_log_sees_one_line_for_each_step(fleet, capsys):
    report = new_report(as_document=False)
    with report.progress(SERVERS, fleet):
        report.started(SERVERS[0], 0.0)
        report.refresh()
        report.healthy(SERVERS[0], 24.4)
    started, healthy = capsys.readouterr().err.splitlines()
    assert started == f"prefill: starting at http://127.0.0.1:8001, its log is {fleet.log(SERVERS[0])}"
    assert healthy == "prefill: healthy after 24 s"


@pytest.mark.parametrize(("failed", "noted"), [(0.0, False), (2.0, True)], ids=["transferred", "computed"])
def test_a_first_question_that_was_computed_is_noted(failed, noted, capsys, tmp_path):
    new_report(as_document=False).ready(SERVERS, tmp_path, CHAT, failed)
    shown = capsys.readouterr()
    assert "serving at http://127.0.0.1:8000" in shown.out
    assert CHAT.curl("http://127.0.0.1:8000") in shown.out.splitlines()[-2]
    assert ("not transferred but computed (2 failed loads)" in shown.err) == noted


@pytest.mark.parametrize(("code", "how"), [(3, "ended with exit code 3"), (137, "was ended by signal 9")])
def test_a_death_is_told_with_its_manner_and_its_log(code, how, fleet, capsys):
    new_report(as_document=False).died(SERVERS[0], code, fleet.log(SERVERS[0]))
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == f"error: prefill {how}; the end of {fleet.log(SERVERS[0])}:"
    assert rest == ["  | INFO 11-29 22:10:01 [loader.py:7] Loading [bold]weights[/bold]"]


def test_a_question_without_answer_is_told_with_what_came(capsys):
    new_report(as_document=False).no_answer(Reply(503, "no workers\navailable"))
    assert capsys.readouterr().err.splitlines()[1:] == ["  | no workers", "  | available"]


def test_programs_get_one_document_a_line(fleet, capsys, tmp_path):
    report = new_report(as_document=True)
    report.notice("")
    report.notice("look")
    with report.progress(SERVERS, fleet):
        report.started(SERVERS[0], 0.0)
        report.healthy(SERVERS[0], 24.4)
        report.trying()
    report.ready(SERVERS, tmp_path, CHAT, 0.0)
    report.ending()
    report.ended()
    shown = documents(capsys)
    assert {document["schema"] for document in shown} == {"kvweave.serve/1"}
    events = ["notice", "starting", "started", "healthy", "ready", "ending", "ended"]
    assert [document["event"] for document in shown] == events
    assert shown[1]["deployments"][0]["log"] == str(fleet.log(SERVERS[0]))
    assert shown[4]["servers"] == {"prefill": "http://127.0.0.1:8001", "decode": "http://127.0.0.1:8002"}


def test_failures_are_documents_too(fleet, capsys):
    report = new_report(as_document=True)
    report.died(SERVERS[0], 3, fleet.log(SERVERS[0]))
    report.no_answer(Reply(503, "no workers"))
    died, silent = documents(capsys)
    assert (died["event"], died["deployment"], died["process_exit_code"]) == ("failed", "prefill", 3)
    assert (silent["event"], silent["http_status"], silent["answer"]) == ("failed", 503, "no workers")
