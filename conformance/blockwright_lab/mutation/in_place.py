"""Changes functions where they are: those of a loaded module get the code that a changed source has for them."""

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..known_bugs.variants import PACKAGE
from .mutator import is_of_specification


def all_codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            if not inner.co_flags & 0x02:  # the body of a class, which has no fast locals
                yield from all_codes(inner)


def functions_of(module: ModuleType) -> dict[tuple[str, int], FunctionType]:
    found: dict[tuple[str, int], FunctionType] = {}
    seen: set[type] = set()

    def add(value: object) -> None:
        value = inspect.unwrap(value)  # type: ignore[arg-type]  # a class method is one too, over what guards its door
        if isinstance(value, property):
            add(value.fget)
            add(value.fset)
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            found[value.__code__.co_qualname, value.__code__.co_firstlineno] = value
        elif isinstance(value, type) and value.__module__ == module.__name__ and value not in seen:
            seen.add(value)
            for inner in list(vars(value).values()):
                add(inner)

    for value in list(vars(module).values()):
        add(value)
    return found


def full(file: str) -> str:
    """Return the path of a source that is mutated, with the name of its package."""
    return file if is_of_specification(file) else f"{PACKAGE}/{file}"


def module_of(file: str) -> ModuleType:
    return importlib.import_module(full(file).removesuffix(".py").replace("/", "."))


def change(functions: dict[tuple[str, int], FunctionType], code: CodeType) -> int:
    """Return functions the code that a changed source has for them; count those that differ.

    One that closes over fewer names than before (``super()`` is gone) is replaced by another one in its class.
    """
    count = 0
    for each in all_codes(code):
        function = functions.get((each.co_qualname, each.co_firstlineno))
        if function is not None and function.__code__ != each:
            if function.__code__.co_freevars == each.co_freevars:
                function.__code__ = each
            else:
                replace(function, each)
            count += 1
    return count


def owner_of(function: FunctionType) -> Any:
    first, *path = function.__qualname__.split(".")[:-1]
    owner: Any = function.__globals__[first]
    for part in path:
        owner = getattr(owner, part)
    return owner


def replace(function: FunctionType, code: CodeType) -> None:
    owner, name = owner_of(function), function.__name__
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[each] for each in code.co_freevars)
    new = FunctionType(code, function.__globals__, name, function.__defaults__, closure)
    new.__kwdefaults__ = function.__kwdefaults__
    if vars(owner)[name] is not function:
        raise ValueError(f"{function.__qualname__}: is no plain method")
    setattr(owner, name, new)


@contextmanager
def changed(module: ModuleType, code: CodeType) -> Iterator[None]:
    """Give the functions of a module the code that another source has for them, and their own again afterwards."""
    functions = functions_of(module)
    own = {each: each.__code__ for each in functions.values()}
    new = {(each.co_qualname, each.co_firstlineno): each for each in all_codes(code)}
    replaced = [each for at, each in functions.items() if at in new and new[at].co_freevars != own[each].co_freevars]
    try:
        change(functions, code)
        yield
    finally:
        for each, before in own.items():
            each.__code__ = before
        for each in replaced:
            setattr(owner_of(each), each.__name__, each)
