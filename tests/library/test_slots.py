"""The free slot ids by themselves: no pool, no Trio."""

from __future__ import annotations

from trio_admission._holdings import Holdings


def test_fresh_ids_go_in_order() -> None:
    """S1: nobody has a claim to any of them."""
    ids = Holdings(4)
    assert [ids.take_ids(1) for _ in range(4)] == [(0,), (1,), (2,), (3,)]
    assert ids.free == 0


def test_three_kinds_of_free_ids() -> None:
    """S1: the preferred one; those freed by an end, latest first; those left behind, oldest first."""
    ids = Holdings(6)
    ids.take_ids(6)
    ids.free_ids([4], left_by="an early park")
    ids.free_ids([1])
    ids.free_ids([2], left_by="a late park")
    ids.free_ids([3])
    ids.free_ids([0])
    assert [ids.take_ids(1, preferred=(2,))[0]] + [ids.take_ids(1)[0] for _ in range(4)] == [2, 0, 3, 1, 4]


def test_a_preference_for_what_is_not_free_is_none() -> None:
    """S1: for an id that is held, that is retired, that never was."""
    ids = Holdings(2)
    ids.take_ids(1)
    assert ids.take_ids(1, preferred=(0, 7, -1)) == (1,)


def test_several_ids_at_once() -> None:
    """S2, S1: distinct, preferred ones first, and never more than asked for."""
    ids = Holdings(5)
    assert ids.take_ids(3, preferred=(4, 4, 2)) == (4, 2, 0)
    assert ids.take_ids(1, preferred=(1, 3)) == (1,)


def test_an_id_that_nobody_comes_back_to_is_like_one_freed_by_an_end_now() -> None:
    """S1, E8: and only who left it there can give it up."""
    ids = Holdings(3)
    ids.take_ids(3)
    ids.free_ids([0], left_by="a")
    ids.free_ids([1])
    ids.free_ids([2], left_by="b")
    ids.cool([0], "b")
    ids.cool([2], "b")
    assert [ids.take_ids(1)[0] for _ in range(3)] == [2, 1, 0]


def test_ids_above_a_smaller_size_retire() -> None:
    """R1: free ones at once, those that are held when they come back; left behind or not."""
    ids = Holdings(5)
    ids.take_ids(4)
    ids.free_ids([2], left_by="a park")
    ids.resize(1, held={0, 1, 3})
    assert ids.free == 0
    ids.free_ids([3], left_by="a park")
    ids.free_ids([1])
    assert ids.free == 0
    ids.free_ids([0])
    assert set(ids.cold) == {0}
    assert ids.take_ids(1) == (0,)


def test_growing_makes_fresh_ids_which_go_after_those_that_were_used() -> None:
    """R1, S1: an id that is still held is not made a second time."""
    ids = Holdings(3)
    ids.take_ids(3)
    ids.resize(1, held={0, 1, 2})
    ids.free_ids([0])
    ids.resize(4, held={1, 2})
    assert ids.free == 2
    assert [ids.take_ids(1)[0] for _ in range(2)] == [0, 3]
