"""Scripts that confirm what was found in vLLM, each by ten lines over vLLM's own API.

``python -m blockwright_lab.peers.confirm NAME`` runs one on an installed vLLM, with ``--peer-path DIR`` on the Python
files of the published package. It says in a sentence what it saw, or nothing where the deviation is gone; `setup` makes
the manager and the requests, which takes many arguments.
"""
