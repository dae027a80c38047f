"""The names that people may use. A change here is a change for them."""

from __future__ import annotations

import inspect
from importlib.resources import files

import pytest

import trio_admission
import trio_admission.testing
from trio_admission import (
    Held,
    Lease,
    ParkBudget,
    Parked,
    Pool,
    PoolRegistry,
    PoolStatistics,
    Reservation,
    ResumeTicket,
    SlotPool,
    Waiting,
)
from trio_admission.testing import OpenPool


def public(thing: object) -> set[str]:
    return {
        name for name in dir(thing) if not name.startswith("_") and not inspect.ismodule(getattr(thing, name))
    }


def test_the_library() -> None:
    assert public(trio_admission) == {
        "AdmissionConfig", "AdmissionError", "Cost", "EventKind", "Held", "Instrument", "Lease", "LeaseLost",
        "LeaseState", "LineFull", "ParkBudget", "Parked", "Pool", "PoolClosed", "PoolEvent", "PoolRegistry",
        "PoolStatistics", "PoolUnavailable", "Reservation", "ResumeTicket", "SlotPool", "WaitTimeout",
        "Waiting",
    }  # fmt: skip


def test_the_testing_helpers() -> None:
    assert public(trio_admission.testing) == {
        "FakeLlamaServer", "OpenPool", "check", "run_in_virtual_time", "until",
    }  # fmt: skip


POOL = {
    "name", "reserve", "admit", "statistics", "waiting", "estimated_wait", "resize", "close", "drained",
    "suspended", "add_instrument", "remove_instrument",
}  # fmt: skip

MEMBERS = {
    Pool: POOL,
    SlotPool: POOL | {"config", "suspension"},
    OpenPool: POOL | {"config", "suspension"},
    Reservation: {"id", "lease", "wait", "wait_at_most", "position", "estimated_wait"},
    Lease: {"id", "slot", "slots", "state", "parked", "issue_ticket"},
    Parked: {"refused", "position", "estimated_wait", "unparked"},
    Held: {"slot"},
    ParkBudget: {"unlimited"},
    ResumeTicket: {"token", "expires_at"},
    PoolRegistry: {"get", "discard"},
    PoolStatistics: {
        "name", "slots", "held", "free", "waiting", "parked", "returning", "kv_tokens", "kv_held",
    },
    Waiting: {"id", "position", "flow", "priority", "waited", "returning"},
}  # fmt: skip


@pytest.mark.parametrize("kind", MEMBERS, ids=lambda kind: kind.__name__)
def test_what_each_class_offers(kind: type) -> None:
    assert public(kind) == MEMBERS[kind]


# Attributes that are set on the instance only
ATTRIBUTES = {Parked: {"cost", "nursery"}, Held: {"nursery"}}


async def test_attributes() -> None:
    async with SlotPool(1).admit() as lease, lease.parked() as parked, parked.unparked() as held:
        for thing in (parked, held):
            found = {name for name in vars(thing) if not name.startswith("_")}
            assert found == ATTRIBUTES[type(thing)]


def test_every_public_thing_says_what_it_is() -> None:
    for module in (trio_admission, trio_admission.testing):
        for name in public(module):
            assert inspect.getdoc(getattr(module, name)), name
    for kind, names in MEMBERS.items():
        for name in names:
            if callable(member := getattr(kind, name)) or isinstance(member, property):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def test_admit_and_reserve_take_the_same() -> None:
    """And so does any pool; all by name, so that the order is nobody's business."""
    arguments = [
        inspect.signature(method).parameters
        for pool in (SlotPool, Pool, OpenPool)
        for method in (pool.admit, pool.reserve)
    ]
    for parameters in arguments:
        _, *asked = parameters.values()
        assert {parameter.kind for parameter in asked} == {inspect.Parameter.KEYWORD_ONLY}
        assert [parameter.name for parameter in asked] == [
            "cost", "flow", "weight", "priority", "prefer_slot", "ticket", "parent", "max_wait",
        ]  # fmt: skip
        assert [parameter.annotation for parameter in asked] == [
            parameter.annotation for parameter in list(arguments[0].values())[1:]
        ]


def test_an_open_pool_is_made_like_a_slot_pool() -> None:
    assert list(inspect.signature(OpenPool).parameters) == list(inspect.signature(SlotPool).parameters)


def test_there_is_a_marker_for_type_checkers() -> None:
    assert files(trio_admission).joinpath("py.typed").is_file()
