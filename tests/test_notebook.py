import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"


def test_the_notebook_runs_and_draws_what_was_sampled(monkeypatch, tmp_path, capsys):
    """As a kernel runs it: cell by cell in one namespace. No kernel has to be installed."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.setattr(pyplot, "show", lambda: None)
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    namespace = {"__name__": "notebook"}

    for cell in cells:
        if cell["cell_type"] == "code":
            program = re.sub(r"N_STEPS = [\d_]+", "N_STEPS = 600", "".join(cell["source"]))
            exec(program, namespace)

    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    pyplot.close("all")
    assert [len(figure.axes) for figure in figures] == [2, 1]
    assert re.search(r"mean return [\d.]+ with priorities", capsys.readouterr().out)


def test_notebook_has_stored_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]

    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert [output["output_type"] for output in outputs] == ["stream", *["display_data"] * 2]
