"""The gates that the lab adds to `blockwright conform` (entry point `blockwright.gates`)."""

from blockwright_conformance.gates import Gate, Way

GATES = (
    Gate(
        "choices",
        "blockwright_lab.specification.choices",
        (Way("choices", ("choices",), "scopes, under any legal choice"),),
        quick=True,
    ),
    Gate(
        "refinement",
        "blockwright_lab.refinement.gate",
        (
            Way("refinement", ("refinement",), "parts that come to steps of the block machine"),
            Way("wrong machines", ("bent",), "wrong block machines and mappings", "noticed"),
        ),
    ),
    Gate(
        "proofs",
        "blockwright_lab.proofs.gate",
        (Way("proofs", ("proof", "contract", "tie"), "theorems and contracts", "proved"),),
        quick=True,
    ),
    Gate(
        "movement",
        "blockwright_lab.data_movement.gate",
        (
            Way("histories with data", ("paged machine", "offload machine"), "random worlds"),
            Way("plans", ("plans",), "lists of random models"),
        ),
        ("hypothesis", "torch"),
    ),
    Gate("faults", "blockwright_lab.media.gate", (Way("faults", ("faults",), "runs of stores that fail"),)),
    Gate(
        "numerics",
        "blockwright_lab.numerics.gate",
        (Way("numerics", ("numerics",), "worlds of a tiny engine"),),
        ("torch",),
    ),
    Gate(
        "known-bugs",
        "blockwright_lab.known_bugs.gate",
        (Way("known bugs", ("known-bugs",), "known bugs of other managers", "caught"),),
    ),
    Gate(
        "damage",
        "blockwright_lab.numerics.damage_gate",
        (Way("damage", ("damage",), "known bugs, in the engine", "caught"),),
        ("torch",),
    ),
    Gate(
        "mutants",
        "blockwright_lab.mutation.gate",
        (Way("mutants", ("mutants",), "wrong implementations", "killed"),),
        ("hypothesis", "pytest", "torch"),
    ),
    Gate(
        "spec",
        "blockwright_lab.specification.gate",
        (Way("spec mutants", ("spec",), "wrong specifications", "noticed"),),
    ),
)
"""In the order in which the command runs them, after the kit's own."""
