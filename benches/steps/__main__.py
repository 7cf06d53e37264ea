"""gradclip and its peers inside small programs, each in processes of its own that take turns.

    python benches/steps [--quick] [--scenarios SUBSTRING ...] [--json FILE] [--output docs]
    python benches/steps --picture FILE.png --from results.json

A hot loop, as in benches/compare, finds caches warm, threads awake and memory mapped. Here something else happens
between two clips, and one call alone is timed. The first form measures, the second draws what was measured.
"""

from __future__ import annotations

import sys
from pathlib import Path

BENCHES = Path(__file__).resolve().parents[1]
sys.path[0] = str(BENCHES)
sys.path.append(str(BENCHES / "compare"))

from steps.command import main  # noqa: E402 (the path comes first)

if __name__ == "__main__":
    main()
