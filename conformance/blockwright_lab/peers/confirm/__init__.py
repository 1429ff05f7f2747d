"""Scripts that confirm what was found in vLLM, each by ten lines over vLLM's own API.

Each is a plain script: ``python -m blockwright_lab.peers.confirm NAME`` runs it on an installed vLLM, with
``--peer-path DIR`` on the Python files of the published package. It defines `shown()`, which says in a sentence what it
saw, or nothing where the deviation is gone. `vllm_setup` makes the manager and requests, which takes many arguments.
"""
