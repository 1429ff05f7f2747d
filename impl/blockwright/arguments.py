"""The door of the package: each argument of a public call is checked against the annotation of its parameter.

An annotation is a contract in both builds. `guard` puts the check in front of functions that Python runs; the wrappers
that mypyc writes around compiled functions have it from `native/rewrite.py`. Both let exact types pass by themselves
and ask `admitted` about everything else, so that a call means the same in both builds: integers of numpy and torch are
integers, an iterable will do for a list, `bool` is no integer, and what does not fit raises `InvalidArgumentError`
before the call begins.

A range is no part of an annotation: calls check it themselves, by `integer` where the call is not hot.
"""

from __future__ import annotations

import builtins
import inspect
import operator
import re
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final

from blockwright.errors import InvalidArgumentError, InvalidCallError


class Tokens(typing.Protocol):
    """Tokens in order: a list, tuple or ``array``, a numpy array or a CPU tensor. A type of annotations alone."""

    def __len__(self) -> int:
        """Return their number."""

    def __iter__(self) -> typing.Iterator[Any]:
        """Return them one by one."""

    def __getitem__(self, at: slice, /) -> Any:
        """Return some of them."""


_TOKENS: Final = {"SupportsIndex | Tokens": "int | Sequence[int]", "Tokens": "Sequence[int]"}
UNREAD: Final = ("Sequence[Request]", "int | Sequence[int]", "Sequence[int]", "Iterable[bytes]", "Caches")
"""Annotations of what may be long: requests of a step and their counts, tokens, hashes, tensors of all layers. Their
items are not read here, because the call checks each one as it reads it; it also knows arrays, tensors and buffers."""

INTERNAL: Final = frozenset({"i64", "i32", "u8", "vec"})
"""Types of compiled code alone: a function that takes one is called by this package only, and has no door."""

VARIADIC: Final = 0x0C
"""Flags of code that takes ``*args`` or ``**kwargs``; such a function passes them to one that has a door."""

_REMEDIES: Final = {
    "Request": "make one by Request(id, token_ids)",
    "KVCacheBlocks": "get_computed_blocks returns the blocks and the number of their tokens; pass each by itself",
    "KVCacheGroupSpec": "say which layers declare a kind by KVCacheGroupSpec(layer_names, kv_cache_spec)",
    "KVCacheConfig": "describe the pool and its groups by KVCacheConfig(num_blocks, kv_cache_groups)",
}


def integer(name: str, value: object, least: int = 0, most: int = 2**31 - 1) -> int:
    """Return an exact `int`, of numpy's too but no `bool`; `InvalidArgumentError` for others and outside the limits."""
    found = whole(value)
    if found is None or not least <= found <= most:
        raise InvalidArgumentError(f"{name}: must be an integer within {least}..{most}, not {shown(value)}")
    return found


def whole(value: object) -> int | None:
    """Return an integer, one of numpy or torch included, as an exact `int`; None for a `bool` or anything else."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or getattr(value, "ndim", 0) != 0:  # a tensor of one element has an index, too
        return None
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # no index, or none of an integer
        return None


def shown(value: object) -> str:
    """Return what came for an argument, in at most 80 characters and whatever its `repr` does."""
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    named = value is None or isinstance(value, (int, float, str, bytes, list, tuple, dict, type))
    return text if named else f"{text} ({type(value).__name__})"


# ---------------------------------------------------------------------- what an annotation admits


class _MisfitError(Exception):
    """A value does not fit; its message names the expected form."""


class Kind:
    """The values that one annotation admits.

    Attributes:
        expected: a description of the values to pass.
        convert: returns a value in the form that the call takes, or raises `_MisfitError`.
        exact: types with instances that need no further check.
    """

    def __init__(self, expected: str, convert: Callable[[Any], Any], exact: frozenset[type] = frozenset()) -> None:
        self.expected = expected
        self.convert = convert
        self.exact = exact


def _kind_of(form: Any) -> Kind:
    """Return the kind of an evaluated annotation; an unknown form admits everything."""
    if form in _SIMPLE:
        return _SIMPLE[form]
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if origin in (typing.Union, types.UnionType):
        return _union([_kind_of(each) for each in arguments])
    if origin is typing.Literal:
        return _instance(f"one of {', '.join(map(repr, arguments))}", lambda value: value in arguments)
    if origin is type:
        return _instance(f"a class derived from {arguments[0].__name__}", lambda value: _derives(value, arguments[0]))
    if origin is abc.Callable or form is abc.Callable:
        return _instance("callable", callable)
    if origin in (list, tuple) or origin in _ITERABLES:
        return _items(origin, arguments)
    if isinstance(origin, type) and issubclass(origin, abc.Mapping):
        return _mapping(origin, *map(_kind_of, arguments or (object, object)))
    return _class(origin or form)


def _integer(value: object) -> int:
    found = whole(value)
    if found is None:
        raise _MisfitError
    return found


def _number(value: Any) -> float:
    # A string would be parsed by `float`, and True would pass for 1.0.
    if isinstance(value, (bool, str)) or not (hasattr(type(value), "__float__") or hasattr(type(value), "__index__")):
        raise _MisfitError
    try:
        return float(value)
    except OverflowError:
        raise _MisfitError("", "a number that a float can hold", value) from None
    except (TypeError, ValueError, RuntimeError):
        raise _MisfitError from None


def _derives(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


def _instance(expected: str, test: Callable[[Any], bool], exact: frozenset[type] = frozenset()) -> Kind:
    def convert(value: object) -> object:
        if not test(value):
            raise _MisfitError
        return value

    return Kind(expected, convert, exact)


def _class(form: Any) -> Kind:
    """Return the kind of a class: its instances, or all objects with the public members of a protocol."""
    if not isinstance(form, type) or form is object:
        return _ANYTHING
    if not getattr(form, "_is_protocol", False):
        name = form.__name__
        article = "an" if name[0] in "AEIOU" else "a"
        if issubclass(form, tuple) and hasattr(form, "_make"):
            return _named_tuple(form, f"{article} {name}")
        return _instance(f"{article} {name}", lambda value: isinstance(value, form), frozenset({form}))
    bases = [base for base in form.__mro__ if getattr(base, "_is_protocol", False) and base is not typing.Protocol]
    names = {name for base in bases for name in {*vars(base), *vars(base).get("__annotations__", {})}}
    members = sorted(name for name in names if not name.startswith("_"))
    needs = f"an object with {', '.join(members)}"
    return _instance(needs, lambda value: all(hasattr(value, member) for member in members))


def _union(kinds: Sequence[Kind]) -> Kind:
    def convert(value: object) -> object:
        reasons = []
        for kind in kinds:
            try:
                return kind.convert(value)
            except _MisfitError as reason:
                reasons.append(reason)
        raise max(reasons, key=lambda reason: len(reason.args))  # one that points at an item

    expected = " or ".join(dict.fromkeys(kind.expected for kind in kinds))
    return Kind(expected, convert, frozenset().union(*(kind.exact for kind in kinds)))


_ITERABLES: Final = {abc.Iterable: "an iterable", abc.Collection: "a collection", abc.Sequence: "a sequence"}


def _items(origin: Any, arguments: tuple[Any, ...]) -> Kind:
    """Return the kind of a list, a tuple or another iterable, with items that are checked as well.

    A list or tuple may come as any iterable. An iterable that can be read only once, or has a converted item, becomes a
    list.
    """
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return _tuple([_kind_of(each) for each in arguments])
    item = _kind_of(arguments[0]) if arguments else _ANYTHING
    what = {list: "a list", tuple: "a tuple"}.get(origin) or _ITERABLES[origin]
    target = origin if origin in (list, tuple) else None

    def convert(value: Any) -> object:
        if type(value) is list and target is not tuple and item.exact.issuperset(map(type, value)):
            return value  # as events come each step: the same as below, in a third of the time
        # They iterate, but a name given for a list of names is a mistake, and so are the keys of a mapping.
        if isinstance(value, (str, bytes, bytearray, abc.Mapping)):
            raise _MisfitError
        if target is None and item is _ANYTHING and isinstance(value, abc.Collection):
            return value
        try:
            found = list(value)
        except TypeError:
            raise _MisfitError from None
        # What needs no conversion stays the caller's own object: no copy of what may be long.
        same = type(value) is target if target else isinstance(value, abc.Sequence)
        if not item.exact.issuperset(map(type, found)):
            for position, each in enumerate(found):
                found[position] = _item(item, each, position)
                same = same and found[position] is each
        return value if same else found if target is None else target(found)

    return Kind(what if item is _ANYTHING else f"{what}, each item {item.expected}", convert)


def _item(kind: Kind, value: object, position: object) -> object:
    try:
        return kind.convert(value)
    except _MisfitError as misfit:
        place = f"[{position!r}]"
        if misfit.args:
            raise _MisfitError(place + misfit.args[0], *misfit.args[1:]) from None
        raise _MisfitError(place, kind.expected, value) from None


def _tuple(kinds: Sequence[Kind]) -> Kind:
    def convert(value: Any) -> object:
        if not isinstance(value, (tuple, list)) or len(value) != len(kinds):
            raise _MisfitError
        found = tuple(
            _item(kind, each, position) for position, (kind, each) in enumerate(zip(kinds, value, strict=True))
        )
        return value if isinstance(value, tuple) and all(map(operator.is_, value, found)) else found

    return Kind(f"a tuple of ({', '.join(kind.expected for kind in kinds)})", convert)


def _named_tuple(form: Any, expected: str) -> Kind:
    """Return the kind of a named tuple, or a plain tuple of the same length; the call checks the items."""
    plain = _tuple([_ANYTHING] * len(form._fields))

    def convert(value: object) -> object:
        return value if isinstance(value, form) else form._make(plain.convert(value))

    return Kind(expected, convert, frozenset({form}))


def _mapping(origin: type, keys: Kind, values: Kind) -> Kind:
    def convert(value: Any) -> object:
        if not isinstance(value, abc.Mapping) or not isinstance(value, origin):
            raise _MisfitError
        found = {_item(keys, key, key): _item(values, each, key) for key, each in value.items()}
        same = all(map(operator.is_, value, found)) and all(map(operator.is_, value.values(), found.values()))
        return value if same else found

    return Kind(f"a mapping from {keys.expected} to {values.expected}", convert)


_ANYTHING: Final = Kind("anything", lambda value: value)
_SIMPLE: Final[dict[Any, Kind]] = {
    Any: _ANYTHING,
    object: _ANYTHING,
    int: Kind("an integer", _integer, frozenset({int})),
    float: Kind("a number", _number, frozenset({float})),
    None: _instance("None", lambda value: value is None, frozenset({type(None)})),
    type(None): _instance("None", lambda value: value is None, frozenset({type(None)})),
    types.EllipsisType: _instance("left out", lambda value: value is ..., frozenset({types.EllipsisType})),
    bool: _instance("True or False", lambda value: isinstance(value, bool), frozenset({bool})),
    str: _instance("a string", lambda value: isinstance(value, str), frozenset({str})),
    bytes: _instance("bytes", lambda value: isinstance(value, bytes), frozenset({bytes})),
}


_PACKAGE: Final = vars(sys.modules[__name__.partition(".")[0]])


class _Names(dict[str, Any]):
    """The names that annotations of a module use; a name that is only imported for type checkers admits anything."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        super().__init__()
        self._places = (module, _PACKAGE, vars(builtins), vars(typing))

    def __missing__(self, name: str) -> Any:
        return next((place[name] for place in self._places if name in place), Any)


def _annotated(module: Mapping[str, Any], annotation: Any) -> Kind:
    annotation = _TOKENS.get(annotation, annotation)
    if annotation in UNREAD:
        return _unread(_kind_of(eval(annotation, {}, _Names(module))), "int |" in annotation)
    try:
        form = eval(annotation, {}, _Names(module)) if isinstance(annotation, str) else annotation
        return _kind_of(form)
    except TypeError:  # a name that is not known here stands for something with parameters
        return _ANYTHING


def _unread(kind: Kind, or_integer: bool) -> Kind:
    """Return a kind like another, which leaves the items of anything that has some to the call."""

    def convert(value: object) -> object:
        found = whole(value) if or_integer else None
        if found is not None:
            return found
        has_items = hasattr(value, "__iter__") or hasattr(value, "numpy")
        if not has_items or isinstance(value, (str, bytes, bytearray, abc.Mapping)):
            raise _MisfitError
        return value

    return Kind(kind.expected, convert, kind.exact | {list})


# ---------------------------------------------------------------------- the door

_signatures: dict[tuple[str, str], dict[str, Kind]] = {}
_MISSING: Final = object()


def misused(made: type, parameters: str, given: tuple[object, ...], named: Mapping[str, object]) -> None:
    """Raise the error of a call that a compiled constructor could not take, if it is one of `refuse`.

    Args:
        made: the class.
        parameters: of the constructor, without the object, as a header has them; of a class method with its name.
        given: positional arguments.
        named: keyword arguments.
    """
    name, _, header = parameters.partition("(")
    expected = inspect.signature(eval(f"lambda {header}: None"))
    places = [each.name for each in expected.parameters.values() if each.kind is not each.KEYWORD_ONLY]
    there = {*places[: len(given)], *named}
    needed = [each.name for each in expected.parameters.values() if each.default is each.empty]
    refuse(
        made, name, list(expected.parameters), [*named], [each for each in needed if each not in there],
        len(given), len(places),
    )  # fmt: skip


def refuse(
    made: type, name: str, known: list[str], named: list[str], missing: list[str], num_given: int, num_places: int
) -> None:
    """Raise the `InvalidCallError` of unknown, missing or too many arguments; it names the class and the nearest."""
    title = f"{made.__name__}.{name}" if name else made.__name__
    unknown = [each for each in named if each not in known]
    if unknown:
        import difflib  # which takes longer to import than much of this package, and only errors need it

        near = difflib.get_close_matches(unknown[0], known, 1)
        remedy = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known) or 'none'}"
        raise InvalidCallError(f"{title}: has no argument {unknown[0]!r}; {remedy}")
    if num_given > num_places:
        rest = f"; pass by name: {', '.join(known[num_places:])}" if known[num_places:] else ""
        raise InvalidCallError(f"{title}: takes {num_places} arguments by position, not {num_given}{rest}")
    if missing:
        raise InvalidCallError(f"{title}: needs {', '.join(missing)}; it takes {', '.join(known)}")


def admitted(signature: str, module: str, given: tuple[object, ...], named: Mapping[str, object]) -> list[object]:
    """Convert the arguments of a call to the types that a compiled function declares; positional ones come first.

    Args:
        signature: its parameters, ``name: annotation``, separated by semicolons.
        module: where the annotations are written.
        given: its positional arguments.
        named: its keyword arguments.

    Raises:
        InvalidArgumentError: one does not fit; names it.
    """
    kinds = _signatures.get((signature, module))
    if kinds is None:
        pairs = [each.split(": ", 1) for each in signature.split("; ")]
        kinds = _signatures[signature, module] = {
            name: _annotated(vars(sys.modules[module]), text) for name, text in pairs
        }
    values = [_admit(name, kinds[name], value) for name, value in zip(kinds, given, strict=False)]
    return values + [_admit(name, kinds[name], value) for name, value in named.items()]


def _admit(name: str, kind: Kind, value: object) -> Any:
    # The usual case by far costs one look into a set.
    if type(value) in kind.exact:
        return value
    try:
        return kind.convert(value)
    except _MisfitError as misfit:
        place, expected, found = misfit.args or ("", kind.expected, value)
    remedy = "".join(f"; {text}" for of, text in _REMEDIES.items() if of in expected.split())
    raise InvalidArgumentError(f"{name}{place}: must be {expected}, not {shown(found)}{remedy}") from None


def guard(namespace: dict[str, Any], names: Sequence[str]) -> None:
    """Wrap the public functions and methods of a package so that their arguments are checked.

    Compiled functions are left alone, because they have such a check already. The check itself is built at the first
    call, so that importing the package stays cheap.
    """
    for name in names:
        found = namespace[name]
        if isinstance(found, types.FunctionType):
            namespace[name] = found.__globals__[name] = _door(found)
        elif isinstance(found, type):
            for base in found.__mro__:
                if base.__module__.split(".")[0] == __name__.split(".")[0]:
                    _guard_class(base)


def _guard_class(found: type) -> None:
    """Wrap the constructor, the public methods and the property setters that a class itself defines."""
    # Errors and named tuples are made by this package, on hot paths too; protocols are implemented by callers.
    if issubclass(found, (BaseException, tuple)) or getattr(found, "_is_protocol", False):
        return
    if isinstance(vars(found).get("__new__"), staticmethod) and isinstance(found.__init__, types.FunctionType):
        shown = inspect.signature(
            found.__init__
        )  # a class with a `__new__` to copy by is still made by its constructor
        found.__signature__ = shown.replace(parameters=[*shown.parameters.values()][1:])  # type: ignore[attr-defined]
    for name, member in list(vars(found).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, types.FunctionType) and (door := _door(member, found)) is not member:
            setattr(found, name, door)
        elif isinstance(member, (classmethod, staticmethod)) and isinstance(member.__func__, types.FunctionType):
            setattr(found, name, type(member)(_door(member.__func__, makes=isinstance(member, classmethod))))
        elif isinstance(member, property) and isinstance(member.fset, types.FunctionType):
            setattr(found, name, member.setter(_door(member.fset, named=name)))


def _door(
    function: types.FunctionType, owner: type | None = None, named: str | None = None, makes: bool = False
) -> Any:
    """Return a function that checks its arguments and calls another; the same one where there is nothing to check.

    What sets a property has the value `named` as that, whatever the function calls it. A constructor, and what else
    `makes` an object, also refuses names that it does not have (`refuse`).
    """
    makes = makes or function.__name__ == "__init__"
    code = function.__code__
    annotations = {name: text for name, text in function.__annotations__.items() if name != "return"}
    words = {word for text in annotations.values() for word in re.findall(r"\w+", str(text))}
    if not (annotations or makes) or words & INTERNAL or code.co_flags & VARIADIC or hasattr(function, "__wrapped__"):
        return function
    built: list[Callable[..., object]] = []

    @wraps(function)
    def door(*given: object, **more: object) -> object:
        if not built:
            built.append(wraps(function)(_built(function, annotations, named, makes)))
            # From then on the class has the built door itself, without the call through this one.
            if owner is not None and vars(owner).get(function.__name__) is door:
                setattr(owner, function.__name__, built[0])
        return built[0](*given, **more)

    return door


def _built(function: Any, annotations: Mapping[str, Any], named: str | None, makes: bool) -> Callable[..., object]:
    """Write the door of one function out: exact types pass by one test each, the rest goes to `_admit`.

    That of a constructor takes every call, and refuses those that do not fit.
    """
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional = parameters[: code.co_argcount]
    kinds = {name: _annotated(function.__globals__, text) for name, text in annotations.items()}
    kinds = {name: kind for name, kind in kinds.items() if kind is not _ANYTHING}
    given = function.__defaults__ or ()
    defaults = dict(zip(positional[len(positional) - len(given) :], given, strict=True))
    defaults |= function.__kwdefaults__ or {}
    # They get a default, so that the door can name all that are missing at once.
    needed = [name for name in parameters[1:] if makes and name not in defaults]
    heads = [f"{name}=_default_{name}" if name in {*defaults, *needed} else name for name in parameters]
    stars = [*heads[: code.co_posonlyargcount], *(["/"] if code.co_posonlyargcount else [])]
    more = ["*_more"] if makes else ["*"] if code.co_kwonlyargcount else []
    stars += [*heads[code.co_posonlyargcount : code.co_argcount], *more]
    stars += [*heads[code.co_argcount :], *(["**_named"] if makes else [])]
    passed = [*positional, *(f"{name}={name}" for name in parameters[code.co_argcount :])]
    lines = [f"def door({', '.join(stars)}):"]
    if makes:
        count = code.co_argcount - 1
        lines.append(f"    if {' or '.join(['_more', '_named', *(f'{name} is _missing' for name in needed)])}:")
        pairs = ", ".join(f"{name!r}: {name}" for name in needed)
        first = (
            f"type({parameters[0]}), ''"
            if function.__name__ == "__init__"
            else f"{parameters[0]}, {function.__name__!r}"
        )
        lines.append(f"        _missed = [name for name, value in {{{pairs}}}.items() if value is _missing]")
        lines.append(
            f"        _refuse({first}, {list(parameters[1:])}, [*_named], _missed, {count} + len(_more), {count})"
        )
    for name in kinds:
        optional = f"{name} is not _default_{name} and " if name in defaults else ""
        lines.append(f"    if {optional}type({name}) not in _exact_{name}:")
        lines.append(f"        {name} = _admit({(named or name)!r}, _kind_{name}, {name})")
    lines.append(f"    return _function({', '.join(passed)})")
    scope: dict[str, Any] = {"_function": function, "_admit": _admit, "_refuse": refuse, "_missing": _MISSING}
    scope |= {f"_default_{name}": value for name, value in {**dict.fromkeys(needed, _MISSING), **defaults}.items()}
    scope |= {f"_kind_{name}": kind for name, kind in kinds.items()}
    scope |= {f"_exact_{name}": kind.exact for name, kind in kinds.items()}
    # Written as source: a loop over the parameters would cost each call more than the checks themselves.
    exec("\n".join(lines), scope)
    return scope["door"]  # type: ignore[no-any-return]
