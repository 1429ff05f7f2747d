"""The numbers of the documentation: collected from a report of the gates, and checked against a later one.

``python -m blockwright_lab.book`` writes ``docs/data/*.json``: `report` takes the gates' measurements, `spaces` counts
the states of growing worlds and draws a small one whole, `examples` finds the shortest ways to states worth seeing.
``--check`` writes nothing and reports outdated data.
"""
