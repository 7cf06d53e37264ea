"""Calls drawn at random, each held to the contract: `python tests/fuzz --help`.

`python tests/fuzz cuda` makes the calls on device arrays too and holds them to the CPU.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

if __name__ == "__main__":
    if sys.argv[1:2] == ["cuda"]:
        del sys.argv[1]
        from fuzz_cuda import main
    else:
        from fuzz import main
    sys.exit(main())
