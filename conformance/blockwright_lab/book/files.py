"""The files of the data: one record a line, so that a change shows its records."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path("docs/data")


def text_of(data: dict[str, Any]) -> str:
    """Return a record as text: each entry, and each element of a list of records, on a separate line."""
    lines = []
    for name, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            inner = ",\n".join(f"    {one_line(each)}" for each in value)
            lines.append(f"  {json.dumps(name)}: [\n{inner}\n  ]")
        else:
            lines.append(f"  {json.dumps(name)}: {one_line(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write(folder: Path, name: str, data: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(text_of(data), encoding="utf-8")


def read(folder: Path, name: str) -> Any:
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
