"""Which process of a broker loads the files of definitions, and when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from warren.config import ProcessConfig
from warren.core.errors import NotFound
from warren.mgmt.processes import loading
from warren.mgmt.processes.loading import is_to_load
from warren.mgmt.processes.states import ProcessState, ProcessStatus

STARTING, RUNNING, DOWN = ProcessState.STARTING, ProcessState.RUNNING, ProcessState.DOWN


class Supervisor:
    """Answers with the next of these states of three processes; the last one holds on."""

    def __init__(self, *answers: tuple[ProcessState, ProcessState, ProcessState] | None) -> None:
        self.answers = list(answers)

    async def statuses(self, socket: Path) -> list[ProcessStatus]:
        states = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if states is None:
            raise NotFound("the supervisor does not answer")
        return [ProcessStatus(n, f"n{n}", state) for n, state in enumerate(states, 1)]


def decide(
    monkeypatch: pytest.MonkeyPatch, supervisor: Supervisor, number: int, *running: str
) -> bool:
    monkeypatch.setattr(loading, "statuses", supervisor.statuses)
    monkeypatch.setattr(loading, "POLL_S", 0)
    place = ProcessConfig(number, 3, Path("socket"))
    return asyncio.run(asyncio.wait_for(is_to_load(place, lambda: running), 30))


def test_the_first_loads_them_when_it_reaches_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(None, (STARTING, STARTING, STARTING))
    assert decide(monkeypatch, supervisor, 1, "n1", "n2", "n3")


def test_the_first_waits_for_no_process_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor((STARTING, STARTING, RUNNING), (STARTING, DOWN, RUNNING))
    assert decide(monkeypatch, supervisor, 1, "n1", "n3")
    assert supervisor.answers == [(STARTING, DOWN, RUNNING)]


def test_the_first_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "OTHERS_UP_S", 0.05)
    assert decide(monkeypatch, Supervisor((STARTING, STARTING, STARTING)), 1, "n1")
    assert "definitions_loaded_before_all_processes_are_up" in caplog.text


@pytest.mark.parametrize("end", [RUNNING, DOWN])
def test_the_others_wait_until_the_first_has_loaded_them_or_is_down(
    monkeypatch: pytest.MonkeyPatch, end: ProcessState
) -> None:
    supervisor = Supervisor(
        None, (STARTING, STARTING, STARTING), (STARTING, RUNNING, RUNNING), (end, STARTING, RUNNING)
    )
    assert not decide(monkeypatch, supervisor, 2, "n1", "n2")
    assert len(supervisor.answers) == 1
