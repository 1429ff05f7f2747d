"""Mutants of the abstraction that nothing can tell from the original, each with the reason."""

ORDER = (
    "with no order compared, what is used last or may go is seen from what goes next: the same worlds differ, later; "
    "an order that is taken where it does not matter is that of the specification's own choice"
)

EQUIVALENT: dict[str, str] = {
    "abstraction.py differences: return [] -> pass": "what is equal has no field that differs; only slower",
    "abstraction.py differences: return [f'{name}: expected {want}, found {show}' for name, want, show in "
    "zip(Observation._fields, compared(wanted, ordered), compared(shown, ordered), strict=True) if show is not None "
    "and want != show] -> return [f'{name}: expected {want}, found {show}' for name, want, show in "
    "zip(Observation._fields, compared(wanted, ordered), compared(shown, ordered), strict=False) if show is not None "
    "and want != show]": "all three are as long: observations have their fields, and `_replace` keeps them",
    "offload_tiers.py in_order: return tuple(keys if ordered else sorted(keys)) -> return None": ORDER,
    "offload_tiers.py in_order: return tuple(keys if ordered else sorted(keys)) -> "
    "return tuple(keys if not ordered else sorted(keys))": ORDER,
    "offload_chains.py chain_expected: names = {id(each): job for each, job in zip(before.transfers, jobs, "
    "strict=True)} -> names = {id(each): job for each, job in zip(before.transfers, jobs, strict=False)}": (
        "both are as long: `renamed` gives each transfer a name"
    ),
}
