"""Blockwright as SGLang's prefix tree: ``--radix-cache-backend blockwright``.

SGLang finds the plug-in (`blockwright.engines.sglang.plugin`) by its entry point ``sglang.srt.plugins`` and asks it for
the tree when the flag is given; what cannot be served is refused then, with the reason. Importing this package imports
nothing of SGLang.
"""
