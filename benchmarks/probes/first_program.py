"""
Run the Quickstart's program on MinAtar with other seeds, and print both algorithms' returns.

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

PAGE = Path("docs/quickstart.md")


def main(first: str, end: str) -> None:
    """Print a row for each seed: means over the training, its last fifth, and Rainbow's second."""
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (program,) = (text for text in programs if "minatar" in text)
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
            if name == "Rainbow":  # a third of the steps take it as long as DQN takes for all
                row[f"{name}, second fifth"] = f"{returns[1]:.2f}"
            row |= {name: f"{np.mean(returns):.2f}", f"{name}, last fifth": f"{returns[-1]:.2f}"}
        rows.append(row)
        print(row, file=sys.stderr)
    print(markdown(pd.DataFrame(rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
