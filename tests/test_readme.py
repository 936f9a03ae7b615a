import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore:rich is experimental")  # tqdm says so of its own bar
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.splitlines()[-1][:40])
def test_a_program_of_the_readme_runs(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(program.replace("50_000", "300").replace("5_000", "300"), {})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_first_program_solves_its_task_and_prints_what_the_readme_says(seed, capsys):
    exec(PROGRAMS[0].replace("seed=0", f"seed={seed}"), {})

    assert capsys.readouterr().out == "mean return 1.0\n"
    assert "`mean return 1.0`" in README.read_text(encoding="utf-8")


def test_there_are_programs_to_run():
    assert len(PROGRAMS) >= 3
