"""
Run README's first program with other seeds, and print the mean returns of both algorithms.

    python -m benchmarks.probes.first_program 10 20     # seeds 10 to 19, a minute each
"""

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd

from sb3_per.compare.report import markdown

README = Path("README.md")


def main(first: str, end: str) -> None:
    """Print a row for each seed: means over the training, and over its last fifth."""
    program = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)[0]
    program = program.replace(", progress_bar=True", "")
    rows = []
    for seed in range(int(first), int(end)):
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(program.replace("seed=0", f"seed={seed}"), {})
        row: dict[str, object] = {"seed": seed}
        for line in printed.getvalue().splitlines():
            name, *fifths = line.split()
            returns = [float(mean) for mean in fifths]
            row |= {name: f"{np.mean(returns):.2f}", f"{name}, last fifth": f"{returns[-1]:.2f}"}
        rows.append(row)
        print(row, file=sys.stderr)
    print(markdown(pd.DataFrame(rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
