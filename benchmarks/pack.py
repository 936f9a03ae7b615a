"""
Pack the finished runs of a run folder into a file for ``benchmarks/results``.

    python -m benchmarks.pack runs/classic benchmarks/results/classic.jsonl.gz
"""

import sys
from pathlib import Path

from sb3_per.compare.results import pack, read

if __name__ == "__main__":
    pack(read(Path(sys.argv[1])), Path(sys.argv[2]))
