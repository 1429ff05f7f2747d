"""Mutants of the abstraction that nothing can tell from the original, each with the reason."""

EQUIVALENT: dict[str, str] = {
    "abstraction.py differences: return [] -> pass": "what is equal has no field that differs; only slower",
    "abstraction.py differences: return [f'{name}: expected {want}, found {show}' for name, want, show in "
    "zip(Observation._fields, compared(wanted, ordered), compared(shown, ordered), strict=True) if show is not None "
    "and want != show] -> return [f'{name}: expected {want}, found {show}' for name, want, show in "
    "zip(Observation._fields, compared(wanted, ordered), compared(shown, ordered), strict=False) if show is not None "
    "and want != show]": "all three are as long: observations have their fields, and `_replace` keeps them",
    "paged_lockstep.py paged_differences: return [f'{name}: expected {want}, found {show}' for name, want, show in "
    "zip(PagedObservation._fields, wanted, shown, strict=True) if want != show] -> "
    "return [f'{name}: expected {want}, found {show}' for name, want, show in "
    "zip(PagedObservation._fields, wanted, shown, strict=False) if want != show]": (
        "all three are as long: observations have their fields"
    ),
    "offload_chains.py chain_expected: names = {id(each): job for each, job in zip(before.transfers, jobs, "
    "strict=True)} -> names = {id(each): job for each, job in zip(before.transfers, jobs, strict=False)}": (
        "both are as long: `renamed` gives each transfer a name"
    ),
}
