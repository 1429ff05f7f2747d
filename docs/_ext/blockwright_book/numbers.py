"""Numbers that pages quote: ``{{ states }}`` and others, from the measured data."""

from blockwright_lab.contracts.gate import CONTRACTS

from . import data, known_bugs, laws, spec


def substitutions() -> dict[str, str]:
    """Return each number by its name."""
    report = data.load("gates")
    return {
        "transitions": f"{report['transitions']:,}" if report else "not measured",
        "scopes": f"{len(data.rows('lockstep', 'paged', 'offload')):,}",
        "states": f"{sum(row.get('states', 0) for row in data.rows('lockstep', 'paged', 'offload')):,}",
        "contracts": f"{len(CONTRACTS):,}",
        "confirmed": f"{sum(not each.tried for each in CONTRACTS):,}",
        "known_bugs": f"{len(known_bugs.BUGS):,}",
        "laws": f"{len(laws.by_id()):,}",
        "chapters": f"{len(spec.chapters()):,}",
        **graph(),
    }


def graph() -> dict[str, str]:
    """Return the numbers of the world that is drawn whole."""
    found = (data.load("spaces") or {}).get("graph")
    if found is None:
        return {}
    names = ("blocks", "requests", "tokens", "transitions")
    refused = sum(state["refused"] for state in found["states"])
    return {
        **{f"graph_{name}": f"{found[name]:,}" for name in names},
        "graph_states": f"{len(found['states']):,}",
        "graph_ways": f"{len(found['edges']):,}",
        "graph_refused": f"{refused:,}",
    }
