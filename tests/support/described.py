"""What code says of itself: signatures, docstrings, and the strings below the fields of a class."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_WIDTH: Final = 96  # a signature that is longer has a line for each argument
_SECTION: Final = re.compile(r"^(Args|Attributes|Raises):\n((?:    .*\n|\n)+)", re.MULTILINE)
_ENTRY: Final = re.compile(r"^    (\S+): ", re.MULTILINE)
_CALL: Final = "__call__"  # the one magic method that people write themselves
_CONSTRUCTORS: Final = {"__init__", "__post_init__"}
_NAMED: Final = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY}  # by name from here on


@dataclass(frozen=True)
class Docstring:
    """A docstring, taken apart: each section has its entries by their names."""

    prose: str
    sections: dict[str, dict[str, str]]

    @classmethod
    def of(cls, thing: object) -> Docstring:
        """Read what a class or function says of itself; what it would inherit is not its own."""
        doc = inspect.cleandoc(getattr(thing, "__doc__", None) or "").replace("``", "`") + "\n"
        sections = {found[1]: _entries(found[2]) for found in _SECTION.finditer(doc)}
        return cls(_SECTION.sub("", doc).strip(), sections)


@dataclass(frozen=True)
class Attribute:
    """A field, property or other attribute of a class: its type as it is written, and its text."""

    type: str = ""
    text: str = ""


def own(kind: type, offered: Collection[object]) -> list[type]:
    """Return a class after those of its bases that people do not know by name: what these have is its own."""
    package = kind.__module__.partition(".")[0]
    return [
        base
        for base in reversed(kind.__mro__)
        if base is kind or (base.__module__.partition(".")[0] == package and base not in offered)
    ]


def methods(classes: Iterable[type]) -> dict[str, Any]:
    """Return the public methods of classes, in alphabetical order."""
    found = {
        name: value
        for kind in classes
        for name, value in vars(kind).items()
        if (not name.startswith("_") or name == _CALL)
        and (inspect.isroutine(value) or isinstance(value, classmethod))
    }
    return dict(sorted(found.items()))


def attributes(classes: Iterable[type]) -> dict[str, Attribute]:
    """Return the public attributes of classes, members of enumerations too, in the order of the source."""
    found: dict[str, Attribute] = {}
    for kind in classes:
        sections = Docstring.of(kind).sections
        told = sections.get("Args", {}) | sections.get("Attributes", {})
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for name, written in _written(tree.body):
            if not name.startswith("_"):
                before = found.get(name, Attribute())
                text = written.text or told.get(name) or before.text
                found[name] = Attribute(written.type or before.type, text)
    return found


def alias_text(module: Any, name: str) -> str:
    """Return the string below the assignment of a type alias in its module."""
    return dict(_written(ast.parse(inspect.getsource(module)).body))[name].text


def undocumented(kind: type, offered: Collection[object]) -> list[str]:
    """Return what has no text of its own: the class, its methods, its attributes."""
    classes = own(kind, offered)
    texts = {kind.__name__: kind.__doc__}
    texts |= {name: method.__doc__ for name, method in methods(classes).items()}
    texts |= {name: attribute.text for name, attribute in attributes(classes).items()}
    return [name for name, text in texts.items() if not text]


def signature(name: str, thing: Any, *, method: bool = False) -> str:
    """Return how a function or class is called, in Python's words: with types as written, and defaults."""
    raw = inspect.unwrap(getattr(thing, "__func__", thing))
    found = inspect.signature(raw)
    arguments = list(_arguments(raw, list(found.parameters.values())[method:]))
    words = ["classmethod"] * isinstance(thing, classmethod) + ["async"] * inspect.iscoroutinefunction(raw)
    returned = "" if isinstance(raw, type) else f" -> {_returned(raw, found.return_annotation)}"
    start = " ".join([*words, name])
    line = f"{start}({', '.join(arguments)}){returned}"
    if len(line) > _WIDTH:
        line = "\n".join([f"{start}(", *(f"    {argument}," for argument in arguments), f"){returned}"])
    return line.replace("'", '"')


def _entries(section: str) -> dict[str, str]:
    _, *parts = _ENTRY.split(section)
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _written(body: Sequence[ast.stmt]) -> Iterator[tuple[str, Attribute]]:
    """Yield what a class's body, or a module's, says of each name that it gives a value or a type."""
    for node, after in pairwise([*body, ast.Pass()]):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                yield name, Attribute(_type(annotation), _string(after))
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name, Attribute("", _string(after))
            case ast.FunctionDef(decorator_list=[ast.Name(id="property"), *_], returns=ast.expr() as returns):
                yield node.name, Attribute(_type(returns), ast.get_docstring(node) or "")
            case ast.FunctionDef() if node.name in _CONSTRUCTORS:
                yield from _set_on_self(node)
            case _:
                pass


def _set_on_self(constructor: ast.FunctionDef) -> Iterator[tuple[str, Attribute]]:
    for node, after in pairwise([*constructor.body, ast.Pass()]):
        type_ = _type(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        for target in ast.walk(node):
            match target:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    yield name, Attribute(type_, _string(after))
                case _:
                    pass


def _type(annotation: ast.expr) -> str:
    return ast.unparse(annotation).replace("'", '"')


def _string(node: ast.stmt) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(inspect.cleandoc(text).replace("``", "`").split())
        case _:
            return ""


def _arguments(raw: Any, parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    """Yield arguments as they are written, with the marks ``/`` and ``*`` among them."""
    kinds = [parameter.kind for parameter in parameters]
    for at, parameter in enumerate(parameters):
        if parameter.kind is parameter.KEYWORD_ONLY and _NAMED.isdisjoint(kinds[:at]):
            yield "*"
        yield _argument(raw, parameter)
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.kind not in kinds[at + 1 :]:
            yield "/"


def _argument(raw: Any, parameter: inspect.Parameter) -> str:
    bare = parameter.replace(annotation=parameter.empty, default=parameter.empty)
    written = f"{bare}: {parameter.annotation}"
    if parameter.default is parameter.empty:
        return written
    made = {field.name: field for field in dataclasses.fields(raw)} if dataclasses.is_dataclass(raw) else {}
    default = _default_of(made[parameter.name]) if parameter.name in made else parameter.default
    return f"{written} = {_value(default)}"


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _value(value: Any) -> str:
    """Write a default: of a record only what is not its own default."""
    if value is ...:
        return "..."
    if value is trio.TASK_STATUS_IGNORED:
        return "trio.TASK_STATUS_IGNORED"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    given = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
    changed = [f"{field.name}={_value(one)}" for field, one in given if one != _default_of(field)]
    return f"{type(value).__name__}({', '.join(changed)})"


def _returned(raw: Any, annotation: str) -> str:
    """Write what a call returns: an `asynccontextmanager` is written as a generator and returns a manager."""
    if inspect.isasyncgenfunction(raw):
        return re.sub(r"^\w+\[(\w+).*", r"AbstractAsyncContextManager[\1]", annotation)
    return annotation
