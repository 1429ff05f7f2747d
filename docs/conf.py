"""The documentation site: Sphinx with furo and MyST; `make docs` builds it to build/html, warnings as errors."""

import os
import sys
from pathlib import Path

os.environ["BLOCKWRIGHT_PURE_PYTHON"] = "1"  # signatures and docstrings are those of the sources
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs/_ext"), *(str(ROOT / name) for name in ("spec", "impl", "conformance"))]

import blockwright  # noqa: E402  (found through the paths above)
from blockwright_book import numbers  # noqa: E402

project = "Blockwright"
author = "the Blockwright authors"
version = release = blockwright.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "blockwright_book"]
exclude_patterns = ["_ext", "data"]
nitpicky = True
default_role = "py:obj"

html_theme = "furo"
html_title = "Blockwright"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist", "substitution", "html_image"]
myst_heading_anchors = 3
myst_substitutions = numbers.substitutions()

autodoc_member_order = "bysource"
autoclass_content = "both"  # the parameters of a constructor stand in its own docstring
autodoc_default_options = {"members": True}

# Not documented here: other packages, and what the public names are built on.
nitpick_ignore_regex = [
    ("py:.*", r"(abc|collections|ctypes|enum|os|pathlib|prometheus_client|struct|torch|types|uuid|zmq)\..*"),
    ("py:.*", r"blockwright\.[a-z_.]+\.[A-Z]\w*|blockwright_spec\..*|blockwright\._terminal\..*"),
    ("py:class", r"vec|i32|Bytes|BlockMask|HostMemory|KVCacheEvent|Tensors|(dict|collections\.abc\.\w+)\[.*"),
    ("py:exc", r".* .*"),  # errors that are told in words
    ("py:obj", r".*"),  # names in backticks: links where they lead somewhere
]
