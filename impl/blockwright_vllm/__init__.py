"""Blockwright's plug-in of vLLM, in a package of its own that can always be imported.

vLLM goes on without a plug-in that cannot be imported, and only writes a line into its log. It does not go on if the
plug-in's function raises. So this module imports nothing of Blockwright before it is called: an installation that does
not work then ends the engine, instead of leaving it with another manager than the one that was asked for.
"""

import os

OFF = ("0", "false", "no", "off", "")
"""As in `blockwright._switch`, which may not be importable."""


def register() -> None:
    """Serve every scheduler of this process with Blockwright's manager, if ``BLOCKWRIGHT_VLLM`` is on.

    Raises:
        RuntimeError: it is on, and Blockwright cannot be imported.
        ValueError: it is neither a word for on nor one for off.
        UnsupportedError: another plug-in has replaced vLLM's manager, or this release of vLLM is not supported.
    """
    if os.environ.get("BLOCKWRIGHT_VLLM", "").strip().lower() in OFF:
        return
    try:
        from blockwright.engines.vllm import plugin
    except Exception as error:
        raise RuntimeError(
            f"BLOCKWRIGHT_VLLM is set, and Blockwright cannot be imported ({type(error).__name__}: {error}): install "
            "it again, or unset BLOCKWRIGHT_VLLM to serve with vLLM's own manager"
        ) from error
    plugin.register()
