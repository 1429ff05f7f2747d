"""The vectors that come with the kit: a transition of every sort in some small scopes of every kind of layer."""

from collections.abc import Iterable
from pathlib import Path

from ..kv_cache.scopes import FILE, Scope
from .paths import vectors_of
from .records import Vector, read

FOLDER = Path(__file__).parent

NAMES: list[str] = FILE["scopes"]["vectors"]


def file_name(scope_name: str) -> str:
    words = "".join(each if each.isalnum() else " " for each in scope_name.replace("+", " and ")).split()
    return "-".join(words) + ".jsonl"


def made(scope: Scope, limit: int | None = 0) -> list[Vector]:
    return list(vectors_of(scope, limit))


def samples(files: Iterable[Path] = ()) -> list[Vector]:
    chosen = list(files) or sorted(FOLDER.glob("*.jsonl"))
    return [vector for path in chosen for vector in read(path)]
