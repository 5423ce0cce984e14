"""The capacity simulation against formulas of queueing theory, and what it makes of bad input.

The formulas are those of Kleinrock, Queueing Systems, volume 1 (M/M/1, M/M/c, M/M/1/K, M/G/1) and
volume 2 (processor sharing).
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import pytest

from bench.capacity.answers import Plan, Surge, fewest, needed, surged
from bench.capacity.machine import Limits, Machine, Request, Turns, workers_of
from bench.capacity.service import (
    Run,
    Service,
    Times,
    on_cores,
)
from bench.capacity.simulation import Outcome, Scaler, arrivals, simulate
from dispatcher.errors import TooManyRequests

MEAN = 0.01
SAMPLES = 4000
ZERO = Times((0.0,))
CONSTANT = Times((MEAN,))
EXPONENTIAL = Times(tuple(-MEAN * math.log(1 - (i + 0.5) / SAMPLES) for i in range(SAMPLES)))
ENDLESS = Limits(threads=64, queue=10_000)


def run_of(
    service: Service,
    load: float,
    *,
    machines: int = 1,
    cores: int = 1,
    limits: Limits = ENDLESS,
    requests: int = 16_000,
    seed: int = 1,
    balance: str = "random",
) -> Outcome:
    """Simulate one model at a share of what its machines can bear."""
    rate = load * machines * cores / MEAN
    end = requests / rate
    rates = [(0.0, rate), (end, rate)]
    return simulate(
        rates, {"model": 1.0}, {"model": service}, machines, cores,
        balance=balance, limits=limits, seed=seed,
    ).after(end / 20)  # fmt: skip


def mean(outcome: Outcome) -> float:
    return float(np.nanmean(outcome.took))


def one_run(times: Times, streams: int = 1) -> Service:
    return Service(1, ZERO, {1: Run(times, 1.0)}, streams)


def test_one_exponential_server_has_the_times_of_m_m_1() -> None:
    found = run_of(one_run(EXPONENTIAL), 0.7)
    rest = 1 / MEAN * (1 - 0.7)
    assert mean(found) == pytest.approx(1 / rest, rel=0.05)
    assert found.quantile(0.99) == pytest.approx(-math.log(0.01) / rest, rel=0.08)
    assert found.utilisation == pytest.approx(0.7, rel=0.03)
    assert found.refused == 0


def test_constant_runs_wait_as_in_m_d_1() -> None:
    found = run_of(one_run(CONSTANT), 0.8)
    assert mean(found) == pytest.approx(MEAN + MEAN * 0.8 / (2 * (1 - 0.8)), rel=0.05)


def test_several_runs_at_a_time_wait_as_in_m_m_c() -> None:
    count, load = 4, 0.6
    offered = count * load
    waiting = offered**count / math.factorial(count) / (1 - load)
    erlang_c = waiting / (sum(offered**k / math.factorial(k) for k in range(count)) + waiting)
    found = run_of(one_run(EXPONENTIAL, streams=count), load, cores=count)
    assert mean(found) == pytest.approx(MEAN + erlang_c * MEAN / (count * (1 - load)), rel=0.05)

    def later(time: float) -> float:
        """The share of the requests that take longer, in units of the mean service time."""
        spare = count - 1 - offered
        return math.exp(-time) * (1 + erlang_c * (1 - math.exp(-spare * time)) / spare)

    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if later(middle) > 0.01 else (low, middle)
    assert found.quantile(0.99) == pytest.approx(low * MEAN, rel=0.08)


@pytest.mark.parametrize("times", [CONSTANT, EXPONENTIAL], ids=["constant", "exponential"])
def test_work_that_shares_a_core_takes_as_long_whatever_its_distribution(times: Times) -> None:
    found = run_of(Service(1, times, {1: Run(ZERO, 1.0)}), 0.6, limits=Limits(5000, 0))
    assert mean(found) == pytest.approx(MEAN / (1 - 0.6), rel=0.06)


@pytest.mark.parametrize("load", [1.1, 1.3])
def test_a_full_queue_refuses_as_many_as_in_m_m_1_k(load: float) -> None:
    room = 4 + 3
    lost = (1 - load) * load**room / (1 - load ** (room + 1))
    found = run_of(one_run(EXPONENTIAL), load, limits=Limits(threads=4, queue=3))
    assert found.refused == pytest.approx(lost, rel=0.1)


def test_random_balancing_makes_machines_that_do_not_know_each_other() -> None:
    alone = run_of(one_run(EXPONENTIAL), 0.6, requests=10_000)
    waits = [
        mean(run_of(one_run(EXPONENTIAL), 0.6, machines=3, balance=name, requests=10_000))
        for name in ("least", "round-robin", "random")
    ]
    assert waits[2] == pytest.approx(mean(alone), rel=0.07)
    assert waits == sorted(waits), "the better informed, the shorter"


def test_requests_that_wait_share_a_run() -> None:
    service = Service(4, ZERO, {1: Run(CONSTANT, 1.0), 4: Run(CONSTANT.times(2), 1.0)})
    rates = [(0.0, 500.0), (8.0, 500.0)]
    found = simulate(rates, {"m": 1.0}, {"m": service}, 1, 1, limits=Limits(64, 64))
    assert found.per_second() == pytest.approx(4 / (2 * MEAN), rel=0.03)
    assert service.run(2, 0.5)[0] == pytest.approx(MEAN * (1 + 1 / 3))
    assert service.run(1, 0.5)[0] == MEAN


def test_wide_runs_and_requests_share_the_cores() -> None:
    """A run on both of two cores beside a front on one: all of it has 2 / 3 of its speed."""
    both = Service(1, ZERO, {1: Run(Times((0.03,)), 2.0)})
    ended: list[float] = []
    machine = Machine(2, {"m": both}, Limits(), lambda: 0.5, lambda _, now: ended.append(now))
    machine.arrive(Request(0, "m", 0.03), 0.0)
    machine.finish(machine.due())
    machine.arrive(Request(1, "m", 0.03), 0.035)
    while machine.due() < math.inf:
        machine.finish(machine.due())
    # 25 ms of the first one's run take 37.5; then 5 ms of the second one's front are left.
    assert ended == [pytest.approx(0.0725), pytest.approx(0.0725 + 0.005 + 0.03)]
    assert machine.busy == pytest.approx(2 * 0.03 + 4 * 0.03)


def test_the_same_seed_gives_the_same_outcome() -> None:
    one, again, other = (
        run_of(one_run(EXPONENTIAL), 0.8, seed=s, requests=2000) for s in (3, 3, 4)
    )
    assert one.took.tolist() == again.took.tolist()
    assert one.took.tolist() != other.took.tolist()


def test_arrivals_follow_the_rates() -> None:
    when = arrivals([(0, 100), (100, 100), (100.001, 300), (200, 300)], seed=1)
    assert (when < 100).sum() == pytest.approx(10_000, rel=0.03)
    assert (when >= 100).sum() == pytest.approx(30_000, rel=0.03)
    gaps = np.diff(when[when < 100])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05), "as of a Poisson process"


def test_two_busy_models_get_ten_of_24_slots_each() -> None:
    """As the first words of dispatcher/execution/slots.py promise."""
    turns = Turns(Limits())
    held = [turns.arrive("a") for _ in range(30)]
    assert turns.taken["a"] == 16
    assert turns.saturation() == 1
    for _ in range(30):
        turns.arrive("b")
    for slot in held[:16]:
        turns.release(slot)
    assert (turns.taken["a"], turns.taken["b"]) == (10, 10)


def test_saturation_is_what_the_busiest_model_uses_of_its_slots() -> None:
    turns = Turns(Limits())
    assert turns.saturation() == 0
    for _ in range(8):
        turns.arrive("a")
    turns.arrive("b")
    # 8 in use and 15 free besides: 24 × 2 / 3 = 16 for each, less a third of what "b" has.
    assert turns.saturation() == 8 / (2 * 24 // 3)


def test_a_full_queue_makes_room_for_the_model_with_fewer() -> None:
    turns = Turns(Limits(threads=2, queue=3))
    first = [turns.arrive("a") for _ in range(5)]
    with pytest.raises(TooManyRequests):
        turns.arrive("a")
    turns.arrive("b")  # the third slot is kept for others
    turns.arrive("b")
    assert turns.taken_by_wake() == [first[-1]]
    assert first[-1].refused


SIZES = {
    1: Service(1, Times((0.004, 0.006)), {1: Run(Times((0.06, 0.07)), 1.0)}),
    2: Service(1, Times((0.004, 0.006)), {1: Run(Times((0.035, 0.045)), 1.75)}),
}


def plan(p99: float = 0.5, requests: int = 2000) -> Plan:
    return Plan({"model": SIZES}, {"model": 1.0}, p99, requests=requests)


def test_more_traffic_and_a_stricter_p99_need_more_machines() -> None:
    counts = [needed(plan(), rate, 2).machines for rate in (20, 60, 120)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
    # Each machine has at most 2 cores, and a request takes 5 ms + 40 ms × 1.75 of them.
    assert counts[-1] >= 120 * 0.075 / 2
    strict = [needed(plan(p99), 60, 2).machines for p99 in (0.12, 0.3, 1.0)]
    assert strict == sorted(strict, reverse=True)
    assert strict[0] > strict[-1]
    assert needed(plan(), 60, 1).machines > needed(plan(), 60, 2).machines


def test_what_a_lone_request_exceeds_no_number_of_machines_keeps() -> None:
    assert needed(plan(0.05), 60, 1).machines == 0
    assert needed(plan(0.12), 60, 2).machines > 0


@pytest.mark.parametrize("enough", [1, 2, 9, 40, 99])
def test_the_fewest_are_found(enough: int) -> None:
    assert fewest(lambda count: count >= enough, 1, 99) == enough
    assert fewest(lambda _: False, 1, 99) == 0


def test_more_cores_than_measured_follow_amdahl() -> None:
    """Runs that keep 1.75 of two cores busy do 1/7 of their time's work on one."""
    serial = (1 / 1.75 - 1 / 2) / (1 - 1 / 2)
    four = on_cores(SIZES, 4)
    assert four.runs[1].times.mean == pytest.approx(0.04 * 1.75 * (serial + (1 - serial) / 4))
    assert four.runs[1].times.mean * four.runs[1].width == pytest.approx(0.04 * 1.75)
    assert (four.streams, on_cores(SIZES, 16).streams) == (1, 4)
    assert on_cores(SIZES, 2) is SIZES[2]
    assert [workers_of(cores) for cores in (1, 2, 4, 8, 64)] == [1, 1, 1, 2, 4]


@pytest.mark.parametrize(
    ("saturations", "coming", "wanted"),
    [
        ([0.9, 0.9], 0, 4),  # ceil(2 × 0.9 / 0.5)
        ([0.54, 0.54], 0, 2),  # within the tolerance of 10 %
        ([0.9] * 10, 0, 18),
        ([1.0] * 3, 0, 6),
        ([0.9, 0.9], 2, 4),  # those to come count as idle: 4 × 0.45 / 0.5
        ([0.1] * 4, 0, 4),  # none is taken away
    ],
)
def test_machines_are_added_as_kubernetes_adds_pods(
    saturations: list[float], coming: int, wanted: int
) -> None:
    """https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details"""
    scaler = Scaler(0.5, 60)
    scaler.seen.update({number: deque([one]) for number, one in enumerate(saturations)})
    assert scaler.wanted(len(saturations), coming) == wanted


def test_a_surge_needs_more_headroom_the_longer_a_machine_takes_to_start() -> None:
    before, after = (needed(plan(0.3), rate, 2) for rate in (14, 28))
    quick, slow = (surged(plan(0.3), before, after, Surge(2, 60, delay)) for delay in (5.0, 240.0))
    assert quick
    assert slow
    assert quick.before == slow.before < quick.after
    assert quick.before <= quick.headroom <= slow.headroom
    assert quick.restored < slow.restored
    assert slow.worst > 0.3
