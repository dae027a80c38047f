from __future__ import annotations

import json

from hypothesis import given, settings, strategies as st

from trio_admission_web.wire.splice import splice

NAMES = ["stream", "stream_options", "model", "id_slot", "größe", 'quo"te', "", "back\\slash"]

space = st.text(" \t\n\r", max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def member(draw: st.DrawFn, name: str) -> tuple[str, str, str, str]:
    """A member's name, and its text as what stands before its value, its value, and what stands after it."""
    ascii_only = draw(st.booleans())
    indent = draw(st.sampled_from([None, 2]))
    key = json.dumps(name, ensure_ascii=ascii_only)
    value = json.dumps(draw(values), ensure_ascii=ascii_only, indent=indent)
    return name, f"{draw(space)}{key}{draw(space)}:{draw(space)}", value, draw(space)


members = st.lists(st.sampled_from(NAMES), unique=True).flatmap(
    lambda names: st.tuples(*[member(name) for name in names])
)
changes = st.dictionaries(st.sampled_from(NAMES[:4]), st.none() | values.map(json.dumps))


@settings(deadline=None)
@given(members, changes, space, space)
def test_named_members_change_and_every_other_byte_stays(
    members: tuple[tuple[str, str, str, str], ...], changes: dict[str, str | None], before: str, after: str
) -> None:
    body = before + "{" + ",".join("".join(parts[1:]) for parts in members) + "}" + after

    spliced = splice(
        body.encode(), {n: None if value is None else value.encode() for n, value in changes.items()}
    )

    kept = [
        prefix + (changes.get(name) or value) + suffix
        for name, prefix, value, suffix in members
        if changes.get(name, value) is not None
    ]
    there = {name for name, *_ in members}
    new = [f"{json.dumps(name)}:{value}" for name, value in changes.items() if value and name not in there]
    assert spliced.decode() == before + "{" + ",".join(kept + new) + "}" + after

    wanted = json.loads(body)
    for name, value in changes.items():
        if value is None:
            wanted.pop(name, None)
        else:
            wanted[name] = json.loads(value)
    assert json.loads(spliced) == wanted


def test_a_name_is_found_however_it_is_spelled() -> None:
    assert splice(b'{"str\\u0065am" : false}', {"stream": b"true"}) == b'{"str\\u0065am" : true}'


def test_an_inner_member_of_the_same_name_is_left_alone() -> None:
    assert splice(b'{"a":{"stream":1}}', {"stream": b"true"}) == b'{"a":{"stream":1},"stream":true}'


def test_an_empty_object_gets_its_first_member() -> None:
    assert splice(b"{}", {"stream": b"true"}) == b'{"stream":true}'
