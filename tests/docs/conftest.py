"""What tests of documents share: the code that makes the generated pages is found in docs/_ext."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs/_ext"))
