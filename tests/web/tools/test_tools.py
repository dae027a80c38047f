"""Tools: what a model is told of a function, what may be passed to it, and how a call may end."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import trio

from trio_admission_web.tools import Tool, ToolError, ToolLoadError, load_tools, tool
from trio_admission_web.tools.builtin import calculate, current_time
from trio_admission_web.tools.schema import complaints

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


@tool(timeout=5, concurrency=1)
async def book(  # noqa: D417 - not every argument needs a word
    city: Annotated[str, {"maxLength": 10}],
    nights: Annotated[int, {"minimum": 1}] = 1,
    class_: Literal["low", "high"] | None = None,
    guests: list[str] | None = None,
    extras: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Book a room
    in a city.

    Args:
        city: Where,
            by name.
        nights: For how long.

    Returns:
        Not told.
    """
    await trio.sleep(3)
    return {"city": city, "nights": nights}


@tool(name="calculate")
async def own_calculate() -> str:
    """Have the name of a built-in tool."""
    return ""


def test_a_function_is_described_by_its_annotations_and_docstring() -> None:
    assert (book.name, book.description) == ("book", "Book a room in a city.")
    assert book.schema["required"] == ["city"]
    assert book.schema["properties"]["city"] == {
        "type": "string", "maxLength": 10, "description": "Where, by name."
    }  # fmt: skip
    assert book.schema["properties"]["nights"]["description"] == "For how long."
    assert book.schema["properties"]["class_"] == {"anyOf": [{"enum": ["low", "high"]}, {"type": "null"}]}
    assert book.schema["properties"]["guests"]["anyOf"][0] == {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "arguments.city is missing"),
        ([], "arguments must be an object"),
        ({"city": 3}, "arguments.city must be a string"),
        ({"city": "Constantinople"}, "arguments.city must be at most 10 characters long"),
        ({"city": "Rome", "nights": 0}, "arguments.nights must be at least 1"),
        ({"city": "Rome", "nights": True}, "arguments.nights must be an integer"),
        ({"city": "Rome", "nights": 1.5}, "arguments.nights must be an integer"),
        ({"city": "Rome", "class_": "mid"}, "arguments.class_ must be 'low' or 'high' or null"),
        ({"city": "Rome", "guests": [1]}, "arguments.guests must be an array or null"),
        ({"city": "Rome", "extras": {"x": "y"}}, "arguments.extras must be an object or null"),
        ({"city": "Rome", "color": "red"}, "arguments.color is not an argument"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: object, complaint: str) -> None:
    with pytest.raises(ToolError) as caught:
        book.check(arguments)
    assert str(caught.value) == complaint + "."


def test_arguments_that_fit_are_taken() -> None:
    arguments = {"city": "Rome", "guests": ["A"], "extras": {"bed": 1}, "class_": None}
    assert book.check(arguments) is arguments


@pytest.mark.parametrize(
    ("value", "schema", "wrong"),
    [
        ("x", {"type": ["string", "null"]}, []),
        (None, {"type": ["string", "null"]}, []),
        (3, {"type": ["string", "null"]}, ["it must be a string or null"]),
        ([3, "x"], {"items": True}, []),
        ([3], {"items": False}, ["it[0] must not be there"]),
        ({"a": 1}, {"additionalProperties": True}, []),
        ({"a1": 1}, {"patternProperties": {"^a": {}}, "additionalProperties": False}, []),
        ({"a": 1}, {"properties": {"a": False}}, ["it.a is not an argument"]),
        (3, {"$ref": "#/$defs/number"}, []),
        (3, {"anyOf": [True, {"type": "string"}]}, []),
        (3, {"anyOf": [{"type": ["array", "null"]}, False]}, ["it must be an array or null or a JSON value"]),
        (math.nan, {}, ["it must be a JSON value"]),
        (math.inf, {"type": "number"}, ["it must be a number"]),
    ],
)
def test_schemas_that_others_have_written_are_understood_as_far_as_it_goes(
    value: object, schema: dict[str, Any], wrong: list[str]
) -> None:
    assert list(complaints(value, schema, "it")) == wrong


def test_a_function_that_cannot_be_described_is_refused() -> None:
    def bare(x) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    def strange(x: bytes) -> None: ...

    def many(*x: int) -> None: ...

    for function in (bare, strange, many):
        with pytest.raises(TypeError, match=f"{function.__name__}: x "):
            tool(function)


async def test_a_result_is_text_or_json(autojump_clock: MockClock) -> None:
    assert await book.call({"city": "Köln"}) == '{"city": "Köln", "nights": 1}'


async def test_calls_beyond_the_limit_wait_within_their_timeout(autojump_clock: MockClock) -> None:
    results = []

    async def one() -> None:
        try:
            results.append(await book.call({"city": "Rome"}))
        except ToolError as error:
            results.append(str(error))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(one)
    assert results == ['{"city": "Rome", "nights": 1}', "book gave no result within 5 s."]
    assert trio.current_time() == 5


async def test_a_function_without_await_runs_in_a_thread() -> None:
    @tool
    def where() -> str:
        """Tell the thread."""
        return threading.current_thread().name

    assert await where.call({}) != threading.current_thread().name


async def test_what_a_tool_raises_is_not_told_to_the_model() -> None:
    @tool
    async def secret() -> object:
        """Fail."""
        raise OSError("/etc/secret")

    @tool
    async def odd() -> object:
        """Return what is no JSON."""
        return object()

    for each in (secret, odd):
        with pytest.raises(ToolError, match=rf"\A{each.name} failed\.\Z"):
            await each.call({})


async def test_a_tool_that_runs_out_of_its_own_time_has_failed(autojump_clock: MockClock) -> None:
    @tool(timeout=5)
    async def hasty() -> None:
        """Give up."""
        with trio.fail_after(1):
            await trio.sleep_forever()

    with pytest.raises(ToolError, match=r"\Ahasty failed\.\Z"):
        await hasty.call({})


async def test_a_call_that_is_cancelled_is_cancelled_whatever_goes_wrong_then(
    autojump_clock: MockClock,
) -> None:
    @tool
    async def messy() -> None:
        """Fail in the middle of a cancel."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise OSError

    with pytest.RaisesGroup(OSError), trio.move_on_after(1) as scope:
        await messy.call({})
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("own", "wish", "asks"),
    [
        ("always", "never", True), ("always", "auto", True), ("always", "always", True),
        ("auto", "never", False), ("auto", "auto", True), ("auto", "always", True),
        ("never", "never", False), ("never", "auto", False), ("never", "always", True),
    ],
)  # fmt: skip
def test_who_wants_an_approval_gets_one(own: Any, wish: Any, *, asks: bool) -> None:
    assert tool(approval=own)(book.function).asks(wish) is asks


# ---- built in


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(2 + 3) * 4", "20"),
        ("7 // 2", "3"),
        ("-2 ** 2", "-4"),
        ("1/4", "0.25"),
        ("2 ** -1", "0.5"),
        ("7%4", "3"),
    ],
)
async def test_arithmetic_is_worked_out(expression: str, value: str) -> None:
    assert await calculate.call({"expression": expression}) == value


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("__import__('os')", "is no arithmetic"), ("x", "is no arithmetic"), ("'a' * 9", "is no arithmetic"),
        ("True + 1", "is no arithmetic"), ("(-8) ** 0.5", "is no arithmetic"), ("", "is no arithmetic"),
        ("(" * 199, "is no arithmetic"), ("1 / 0", "divides by zero"), ("9 ** 9 ** 9", "too large"),
        ("10 ** 99 * 100", "too large"), ("9" * 120, "too large"), ("1e308 * 10", "too large"),
    ],
)  # fmt: skip
async def test_nothing_else_is(expression: str, sentence: str) -> None:
    with pytest.raises(ToolError, match=sentence):
        await calculate.call({"expression": expression})


async def test_the_time_is_told_in_a_zone() -> None:
    assert (await current_time.call({"timezone": "UTC"})).endswith("+0000")
    for zone in ("Nowhere/Land", "../etc", "", "/etc/passwd"):
        with pytest.raises(ToolError, match="no time zone"):
            await current_time.call({"timezone": zone})


# ---- where they come from


def test_tools_are_found_by_module_and_attribute() -> None:
    tools = load_tools([f"{__name__}:book"])
    assert set(tools) >= {"book", "calculate", "current_time"}
    assert isinstance(tools["book"], Tool)


def install(folder: Path, *points: str) -> None:
    """Make what a package's installation leaves in a folder that is on the path."""
    info = folder / "somebodys_tools-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys-tools\nVersion: 1\n")
    (info / "entry_points.txt").write_text("\n".join(("[trio_admission.tools]", *points)))


def test_tools_of_installed_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, f"any = {__name__}:book", f"own = {__name__}:own_calculate")
    monkeypatch.syspath_prepend(tmp_path)
    tools = load_tools()
    assert tools["book"] is book
    assert tools["calculate"] is own_calculate  # the later one counts


def test_an_installed_package_whose_tool_is_broken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "any = no.such.module:tool")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ToolLoadError, match=r"no\.such\.module:tool"):
        load_tools()


@pytest.mark.parametrize(
    "place", ["no.such.module:x", f"{__name__}:nothing", f"{__name__}:pytest", "", "json"]
)
def test_what_is_no_tool_is_named(place: str) -> None:
    with pytest.raises(ToolLoadError, match=repr(place)):
        load_tools([place])
