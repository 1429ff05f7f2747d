"""What the museum owes: every bug of the corpus is caught in this run, in all its faces, or it is said why not.

The corpus numbers real bugs of other managers B01 to B66. Some came in several faces, exhibits with a letter.
"""

import re
from collections import Counter

from blockwright_conformance.gates import GateResult

from .known_bug import Exhibit

CORPUS = tuple(f"B{number:02}" for number in range(1, 67))
"""The bugs, by their numbers."""

FEWEST = 40
"""How many of them must be shown."""

FACES: dict[str, int] = {
    "B01": 4, "B02": 2, "B04": 2, "B05": 2, "B08": 3, "B17": 2, "B18": 3, "B19": 3, "B20": 2, "B22": 2, "B24": 2,
    "B25": 3, "B28": 2, "B33": 2, "B34": 3, "B35": 2, "B37": 2, "B42": 2, "B47": 2, "B49": 4, "B50": 2, "B51": 3,
    "B52": 2, "B53": 2, "B54": 2, "B56": 4, "B59": 5, "B60": 4, "B61": 2, "B63": 5, "B64": 6, "D13": 2,
}  # fmt: skip
"""How many exhibits a bug has that came in several faces."""

DECIDED = ("D01", "D02", "D03", "D05", "D06", "D07", "D08", "D09", "D10", "D11")
"""What the originals chose and we decided otherwise, shown as well."""


def owed(rows: list[GateResult], exhibits: tuple[Exhibit, ...], excused: dict[str, str]) -> GateResult:
    """Give the row that fails if a bug of the corpus is neither caught in these rows nor excused."""
    caught = {row.scope.partition(" ")[0] for row in rows if not row.violations}
    faces = Counter(bug_of(each.id) for each in exhibits if each.id in caught)
    missing = [bug for bug in (*CORPUS, *DECIDED) if bug not in excused and faces[bug] < FACES.get(bug, 1)]
    both = sorted(excused.keys() & faces.keys())
    few = [f"{len(faces)} bugs are shown, at least {FEWEST} must be"] if len(faces) < FEWEST else []
    wrong = [*(f"{bug} is not caught" for bug in missing), *(f"{bug} is excused and shown" for bug in both), *few]
    return GateResult(
        "museum",
        f"the corpus: {len(faces.keys() & set(CORPUS))} bugs caught, {len(excused)} excused",
        "all",
        0,
        0,
        len(wrong),
        0.0,
        "MUSEUM-1" if wrong else "",
        "; ".join(wrong),
    )


def bug_of(exhibit: str) -> str:
    """Give the bug that an exhibit shows a face of."""
    found = re.match(r"[BD]\d\d", exhibit)
    return found.group() if found else exhibit
