"""The stand-in for threads: order within a lane, chance between lanes."""

from __future__ import annotations

from random import Random

from jobs import Jobs


def filled(ran: list[str]) -> Jobs:
    jobs = Jobs()
    run_journal = jobs.lane("journal")
    for number in range(3):
        run_journal(lambda number=number: ran.append(f"journal {number}"))  # type: ignore[misc]
        jobs.run(lambda number=number: ran.append(f"background {number}"))  # type: ignore[misc]
        jobs.call_on_loop(lambda number=number: ran.append(f"loop {number}"))  # type: ignore[misc]
    return jobs


def test_nothing_runs_by_itself() -> None:
    ran: list[str] = []
    jobs = filled(ran)
    assert ran == []
    assert jobs.waiting("journal") == 3
    assert jobs.waiting("none") == 0


def test_jobs_of_a_lane_run_in_order_and_lanes_as_the_seed_says() -> None:
    orders = set()
    for seed in range(50):
        ran: list[str] = []
        jobs, random = filled(ran), Random(seed)
        while jobs.step(random):
            pass
        for lane in ("journal", "background", "loop"):
            assert [name for name in ran if name.startswith(lane)] == [
                f"{lane} {number}" for number in range(3)
            ]
        orders.add(tuple(ran))
        again: list[str] = []
        jobs, random = filled(again), Random(seed)
        while jobs.step(random):
            pass
        assert again == ran
    assert len(orders) > 10


def test_a_named_lane_runs_its_next_job() -> None:
    ran: list[str] = []
    jobs = filled(ran)
    assert jobs.step_lane("background")
    assert jobs.step_lane("loop")
    assert not jobs.step_lane("none")
    assert ran == ["background 0", "loop 0"]


def test_run_all_runs_what_jobs_hand_in() -> None:
    ran: list[str] = []
    jobs = Jobs()
    jobs.run(lambda: jobs.call_on_loop(lambda: jobs.lane("journal")(lambda: ran.append("done"))))
    jobs.run_all()
    assert ran == ["done"]
    assert not jobs.step(Random(1))
