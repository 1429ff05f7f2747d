"""Mutants of the abstraction that nothing can tell from the original, each with the reason."""

ORDER = (
    "with no order compared, what is used last or may go is seen from what goes next: the same worlds differ, later; "
    "an order that is taken where it does not matter is that of the specification's own choice"
)
ALSO_STATE = "a call that is refused where it must not be has changed nothing, so that the state differs, too"

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
    "paged_lockstep.py refusal_faults: if error is not None or reply.refused -> "
    "if error is not None and reply.refused": ALSO_STATE,
    "paged_lockstep.py refusal_faults: if error is not None or reply.refused -> if reply.refused": ALSO_STATE,
    "paged_lockstep.py refusal_faults: if error is not None or reply.refused -> if error is not None": ALSO_STATE,
    "paged_lockstep.py refusal_faults: return [f'refused ({type(error).__name__}: {error}); expected success'] -> "
    "return None": ALSO_STATE,
    "paged_lockstep.py refusal_faults: return [] if reply.refused else ['reset though blocks are in use'] -> "
    "return None": "a reset that was not to happen has dropped keys, so that the state differs, too",
    "paged_lockstep.py refusal_faults: return [] -> return None": "its caller asks whether it is empty, and None is",
}
