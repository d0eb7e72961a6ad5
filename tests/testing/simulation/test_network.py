"""The network loses, repeats and delays by the weather, and is cut in one direction or both."""

from __future__ import annotations

import pytest

from kvweave.testing.simulation.ledger import Ledger
from kvweave.testing.simulation.network import Channel, Connection, Network, WeatherDelays
from kvweave.testing.simulation.scenario import CALM, Partition, Place, Role, Scenario, Shape, Slow, Stop, Weather
from kvweave.testing.simulation.schedule import Process, Schedule

PREFILL, DECODE = Place(Role.PREFILL, 0), Place(Role.DECODE, 0)


class Party(Process):
    """Either side: notes what it hears."""

    def __init__(self, schedule: Schedule, place: Place) -> None:
        super().__init__(schedule, str(place))
        self.place = place
        self.heard: list[object] = []

    def hear(self, source: object, data: bytes) -> None:
        self.heard.append((source, data))

    def refused(self, address: str) -> None:
        self.heard.append(address)


def delays(weather: Weather) -> WeatherDelays:
    schedule = Schedule()
    storm = Stop(100.0, DECODE, 1.0)  # the weather lasts until then
    scenario = Scenario(3, (Shape(1, 4),), (Shape(1, 4),), (), (storm,), weather)
    return WeatherDelays(scenario, schedule, Ledger(schedule))


@pytest.fixture
def joined() -> tuple[Schedule, Network, Party, Party]:
    schedule = Schedule()
    network = Network(schedule, Ledger(schedule), lambda *_: (0.5,))
    prefill, decode = Party(schedule, PREFILL), Party(schedule, DECODE)
    network.listening["address"] = prefill, prefill
    return schedule, network, prefill, decode


@pytest.mark.parametrize(
    ("weather", "copies"),
    [(CALM, 1), (Weather(lost=1.0), 0), (Weather(repeated=1.0), 2)],
    ids=["calm", "lost", "repeated"],
)
def test_weather_decides_how_many_copies_arrive(weather: Weather, copies: int) -> None:
    assert len(delays(weather)(PREFILL, DECODE, b"")) == copies


def test_weather_ends_when_the_scenario_is_calm() -> None:
    made = delays(Weather(lost=1.0))
    made._schedule.run(200.0)
    assert len(made(PREFILL, DECODE, b"")) == 1


def test_same_seed_gives_the_same_delays_whatever_others_say() -> None:
    first, second = delays(Weather(late=0.5)), delays(Weather(late=0.5))
    for _ in range(3):
        first(DECODE, PREFILL, b"")
    assert first(PREFILL, DECODE, b"") == second(PREFILL, DECODE, b"")


@pytest.mark.parametrize(("source", "target"), [(PREFILL, DECODE), (DECODE, PREFILL)], ids=["answers", "calls"])
def test_partition_of_one_direction_lets_the_other_pass(source: Place, target: Place) -> None:
    made = delays(CALM)
    made.cuts.append(Partition(0.0, 1.0, 0, 0, to_prefill=target is PREFILL, to_decode=target is DECODE))
    assert made(source, target, b"") == ()
    assert len(made(target, source, b"")) == 1
    assert len(made(Place(source.role, 1), Place(target.role, 1), b"")) == 1


def test_slow_engine_delays_both_directions() -> None:
    made = delays(CALM)
    made.slow.append(Slow(0.0, 1.0, DECODE, 5.0))
    assert made(PREFILL, DECODE, b"")[0] > 5
    assert made(DECODE, PREFILL, b"")[0] > 5


def test_messages_pass_in_both_directions(joined: tuple[Schedule, Network, Party, Party]) -> None:
    schedule, network, prefill, decode = joined
    channel = Channel(decode, decode, "address")
    network.call(channel, PREFILL, b"ask")
    schedule.run(1.0)
    assert prefill.heard == [(Connection(channel, prefill), b"ask")]
    network.answer(Connection(channel, prefill), PREFILL, b"answer")
    schedule.run(2.0)
    assert decode.heard == [("address", b"answer")]


def test_answer_on_a_closed_channel_arrives_nowhere(joined: tuple[Schedule, Network, Party, Party]) -> None:
    schedule, network, prefill, decode = joined
    channel = Channel(decode, decode, "address")
    network.answer(Connection(channel, prefill), PREFILL, b"answer")
    channel.open = False
    schedule.run(1.0)
    assert decode.heard == []


def test_call_where_nobody_listens_is_refused(joined: tuple[Schedule, Network, Party, Party]) -> None:
    schedule, network, _, decode = joined
    network.call(Channel(decode, decode, "elsewhere"), None, b"ask")
    schedule.run(1.0)
    assert decode.heard == ["elsewhere"]


def test_two_processes_at_one_address_see_two_connections(joined: tuple[Schedule, Network, Party, Party]) -> None:
    schedule, _, prefill, decode = joined
    channel = Channel(decode, decode, "address")
    successor = Party(schedule, PREFILL)
    assert Connection(channel, prefill) != Connection(channel, successor)
