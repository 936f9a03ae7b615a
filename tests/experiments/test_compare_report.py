"""The report of run folders whose results are known."""

import csv
import json
import re
import shutil

import grids
import matplotlib as mpl
import pytest

from sb3_per.experiments.common.drawing import COLOURS, Output
from sb3_per.experiments.compare import command, curves, figures, report, run_folder, suite_file
from sb3_per.experiments.compare.environment import Evaluation
from sb3_per.experiments.compare.problems import SuiteError
from sb3_per.experiments.compare.run_folder import MixedResults
from sb3_per.experiments.compare.suite import Contrast, cells

# per ends at 60 to 64, dqn at 40 to 44.
FINAL = {"dqn": 40, "per": 60}


def final(cell):
    return FINAL[cell.variant] + cell.seed


def written(folder, out, formats=()):
    """Write a report and return what it says. Figures are drawn, and saved in these formats."""
    said = report.write(folder, out, output=Output(tuple(formats)))
    return "\n".join(said), (out / "report.md").read_text()


def test_a_variant_that_always_wins_is_called_better(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(), final)

    said, text = written(folder, tmp_path / "report")

    # IQM of 60, ..., 64 without one value at either end; scores are returns over 100.
    row = r"\| final \| per \| 0\.62 \[.*\] \| 0\.200 \[.*\] \| 1\.00 \[1\.00, 1\.00\] \| better \|"
    assert re.search(row, text)
    assert "final: per, P(better than dqn) 1.00 [1.00, 1.00]\n    better" in said
    assert "10 of 10 runs are finished" in said
    assert "incomplete" not in text


def test_a_contrast_is_one_variant_over_another_that_is_not_the_baseline(tmp_path):
    """Priorities add 20 to DQN and take 10 from Double DQN, which adds 30 to DQN."""
    returns = {"dqn": 20, "per": 40, "double": 50, "double_per": 40}
    suite = grids.replaced(
        grids.suite(variants=tuple(returns)),
        contrasts={
            "alone": Contrast(variant="per", over="dqn"),
            "beside": Contrast(variant="double_per", over="double"),
        },
    )
    folder = grids.folder_of(tmp_path, suite, lambda cell: returns[cell.variant] + cell.seed / 5)

    _, text = written(folder, tmp_path / "report", ["png"])

    alone, beside = r"\| alone \| per over dqn", r"\| beside \| double_per over double"
    assert re.search(rf"\| final {alone} \| 0.200 \[.*\] \| 1.00 \[.*\] \| better \|", text)
    assert re.search(rf"\| final {beside} \| -0.100 \[.*\] \| 0.00 \[.*\] \| worse \|", text)
    assert (tmp_path / "report" / "gains.png").exists()


def test_labels_stand_in_tables_figures_and_claims_instead_of_keys(tmp_path):
    suite = grids.suite()
    variants = {
        "dqn": grids.replaced(suite.variants["dqn"], label="Plain DQN"),
        "per": grids.replaced(suite.variants["per"], label="With priorities"),
    }
    gain = {"gain": Contrast(variant="per", over="dqn", label="What it gains")}
    suite = grids.replaced(suite, variants=variants, contrasts=gain)
    folder = grids.folder_of(tmp_path, suite, final)

    said, text = written(folder, tmp_path / "report", ["svg"])

    assert "final: With priorities, P(better than Plain DQN) 1.00" in said
    assert "| IQM - Plain DQN's | P(better than Plain DQN) |" in text
    assert "| final | With priorities | 0.62 [" in text
    assert "| final | What it gains | With priorities over Plain DQN |" in text
    assert "| A-v0 | With priorities | 5 |" in text
    assert "| With priorities (per) | dqn |" in text  # the key is a folder's name, too
    spelled = {
        name: re.findall("<!-- (.*) -->", (tmp_path / "report" / f"{name}.svg").read_text())
        for name in ("curves", "intervals", "gains")
    }
    assert {"Plain DQN", "With priorities"} <= {*spelled["curves"]}
    assert {"Plain DQN", "With priorities"} <= {*spelled["intervals"]}
    assert "What it gains" in spelled["gains"]
    assert not {"dqn", "per", "gain"} & {name for names in spelled.values() for name in names}


def test_a_collapse_in_one_environment_is_not_trimmed_away(tmp_path):
    """Of four environments the interquartile mean leaves out the one in which all runs fail."""
    suite = grids.suite(environments=("A-v0", "B-v0", "C-v0", "D-v0"), seeds=8)

    def collapsing(cell):
        is_collapse = (cell.variant, cell.environment) == ("per", "D-v0")
        return cell.seed if is_collapse else 60 + cell.seed + (cell.variant == "per")

    folder = grids.folder_of(tmp_path, suite, collapsing)

    said, _ = written(folder, tmp_path / "report")

    assert said.count("no difference shown; worse in D-v0") == 2


def test_a_loss_within_the_margin_is_named_neither_in_one_environment_nor_in_all(tmp_path):
    suite = grids.suite(environments=("A-v0", "B-v0"))
    folder = grids.folder_of(tmp_path, suite, lambda cell: 60 - 3 * (cell.variant == "per"))

    said, _ = written(folder, tmp_path / "report")

    assert said.count("    worse, non-inferior\n") == 2


def test_an_environment_of_its_own_tells_which_variant_is_better_there(tmp_path):
    suite = grids.suite(environments=("A-v0", "B-v0"))

    def opposite(cell):
        return 50 + cell.seed + 20 * (cell.variant == "per") * (-1) ** (cell.environment == "B-v0")

    folder = grids.folder_of(tmp_path, suite, opposite)

    said, text = written(folder, tmp_path / "report")

    assert "final: per, P(better than dqn) 0.50 [0.50, 0.50]" in said
    assert re.search(r"\| A-v0 \| per \| 5 \|.*\| 1\.00 \[1\.00, 1\.00\] \|", text)
    assert re.search(r"\| B-v0 \| per \| 5 \|.*\| 0\.00 \[0\.00, 0\.00\] \|", text)


def test_an_environment_tells_who_learns_earlier_apart_from_who_ends_better(tmp_path):
    declared = grids.suite()
    folder = grids.folder_of(tmp_path, declared, final)
    for cell in cells(declared):
        if cell.variant == "per":
            grids.finish(folder, cell, [100.0, 39.0, 39.0, 39.0])

    _, text = written(folder, tmp_path / "report")

    both = r"final: P\(better than dqn\) \| area: P\(better than dqn\) \|"
    assert re.search(rf"\| environment \| variant \|.*\| {both}", text)
    row = r"\| A-v0 \| per \|.*\| 0\.00 \[0\.00, 0\.00\] \| 1\.00 \[1\.00, 1\.00\] \|"
    assert re.search(row, text)


def test_equal_variants_are_not_told_apart(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(), lambda cell: 40 + cell.seed)

    said, _ = written(folder, tmp_path / "report")

    assert said.count("no difference shown") == 2
    assert "better\n" not in said


def test_with_four_seeds_nothing_is_claimed(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(seeds=4), final)

    said, text = written(folder, tmp_path / "report")

    assert said.count("no claim can be made: fewer than 5 seeds") == 2
    assert "| better |" not in text


def test_an_incomplete_grid_is_called_so_and_nothing_is_claimed(tmp_path):
    suite = grids.suite(seeds=9)
    folder = grids.folder_of(tmp_path, suite, final)
    lost = {("dqn", 2), ("per", 0), ("per", 2), ("per", 3), ("per", 4)}
    for cell in cells(suite):
        if (cell.variant, cell.seed) in lost:
            (run_folder.cell_folder(folder, cell) / "result.json").unlink()

    said, text = written(folder, tmp_path / "report")

    assert "13 of 18 runs are finished" in said
    assert said.count("no claim can be made: runs are missing") == 2
    assert "incomplete.** Failed or not yet run:\n\n- A-v0, seeds: per 0, 2-4; dqn 2\n" in text


def test_a_variant_without_a_run_somewhere_is_left_out_of_the_whole(tmp_path):
    suite = grids.suite(environments=("A-v0", "B-v0"))
    folder = grids.folder_of(tmp_path, suite, final)
    for cell in cells(suite):
        if (cell.variant, cell.environment) == ("per", "B-v0"):
            (run_folder.cell_folder(folder, cell) / "result.json").unlink()

    said, text = written(folder, tmp_path / "report")

    assert "P(better than dqn)" not in said
    assert "| final | dqn |" in text
    assert re.search(r"\| A-v0 \| per \| 5 \|", text)
    assert re.search(r"\| B-v0 \| per \| 0 \|", text)


def test_the_whole_is_of_seeds_that_both_have_finished_everywhere(tmp_path):
    """Equal variants, of which one has not finished the harder environment."""
    suite = grids.suite(environments=("A-v0", "B-v0"), seeds=9)
    hard = {"A-v0": 80, "B-v0": 10}
    folder = grids.folder_of(tmp_path, suite, lambda cell: hard[cell.environment] + cell.seed / 9)
    for cell in cells(suite):
        if (cell.variant, cell.environment) == ("per", "B-v0") and cell.seed >= 6:
            (run_folder.cell_folder(folder, cell) / "result.json").unlink()

    _, text = written(folder, tmp_path / "report", ["svg"])

    assert re.search(r"\| final \| per \| \S+ \[.*\] \| 0\.000 \[.*\] \| 0\.50 \[", text)
    spelled = (tmp_path / "report" / "intervals.svg").read_text()
    assert "<!-- made_up: 6 to 9 of 9 seeds -->" in spelled


def test_all_variants_are_inside_of_their_panel(tmp_path, monkeypatch):
    """The first one drawn does not decide how far the axis goes."""
    finals = {"dqn": 90, "better": 140, "worse": -50}
    suite = grids.suite(variants=tuple(finals))
    folder = grids.folder_of(tmp_path, suite, lambda cell: finals[cell.variant] + cell.seed)
    drawn = {}
    monkeypatch.setattr(
        figures, "save_figure", lambda figure, file, _: drawn.update({file.name: figure})
    )

    report.write(folder, tmp_path / "report")

    low, high = drawn["intervals"].axes[0].get_xlim()
    assert low < -0.5
    assert high > 1.44


def test_a_variant_has_one_colour_in_both_figures_if_runs_of_another_one_are_missing(
    tmp_path, monkeypatch
):
    suite = grids.suite(variants=("dqn", "missing", "per"))
    folder = grids.folder_of(tmp_path, suite, lambda cell: 60 + cell.seed)
    for result in folder.glob("missing/**/result.json"):
        result.unlink()
    drawn = {}
    for module in (curves, figures):
        monkeypatch.setattr(
            module, "save_figure", lambda figure, file, _: drawn.update({file.name: figure})
        )

    report.write(folder, tmp_path / "report")

    for figure in (drawn["curves"], drawn["intervals"]):
        colours = {line.get_color() for line in figure.axes[0].lines}
        assert colours & {*COLOURS} == {COLOURS[0], COLOURS[2]}


def test_next_to_no_gain_does_not_fill_its_panel(tmp_path, monkeypatch):
    suite = grids.replaced(grids.suite(), contrasts={"a | b": Contrast(variant="per", over="dqn")})
    folder = grids.folder_of(tmp_path, suite, lambda cell: 50 + (cell.variant == "per") / 10)
    drawn = {}
    monkeypatch.setattr(
        figures, "save_figure", lambda figure, file, _: drawn.update({file.name: figure})
    )

    _, text = written(folder, tmp_path / "report")

    low, high = drawn["gains"].axes[0].get_xlim()
    assert low < -0.1
    assert high > 0.1
    assert r"| final | a \| b | per over dqn |" in text


@pytest.mark.parametrize("episode", [-1e9, 1e9])
def test_a_report_warns_of_returns_that_no_learning_explains(tmp_path, episode):
    """One episode of one run; a mean over the run's episodes would hide less extreme ones."""
    suite = grids.suite()
    folder = grids.folder_of(tmp_path, suite, final)
    measured = grids.measured([0.0, 60.0, 60.0, 60.0])["evaluations"]
    measured["returns"][1][0] = episode
    grids.finish(folder, cells(suite)[5], [], evaluations=measured)

    said, text = written(folder, tmp_path / "report")

    rule = "Implausible (episodes with a score beyond -100 or 100; check the result files, and"
    where = "random and solved in the suite): A-v0, seeds: per 2"
    assert f"**{rule} {where}**" in text
    assert f"{rule} {where}" in " ".join(said.split())


def test_returns_far_from_the_rest_are_plausible_up_to_a_hundred_times_the_solved_one(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(), lambda cell: -100 * 100)

    said, text = written(folder, tmp_path / "report")

    assert "Implausible" not in text + said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.25, "2.5 CPU seconds"),
        (5.99, "59.9 CPU seconds"),
        (6, "1.0 CPU minutes"),
        (359.9, "60.0 CPU minutes"),
        (360, "1.0 CPU hours"),
        (36000, "100.0 CPU hours"),
    ],
)
def test_the_cost_of_ten_runs_has_a_unit_that_fits_it(tmp_path, seconds, said):
    suite = grids.suite()
    folder = grids.folder_of(tmp_path, suite, final)
    for cell in cells(suite):
        grids.finish(folder, cell, [0.0, 1.0, 1.0, 1.0], seconds={"wall": 1.0, "cpu": seconds})

    _, text = written(folder, tmp_path / "report")

    assert f"Trained in {said}. " in text


def test_runs_of_a_variant_whose_defaults_have_changed_are_named(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(seeds=2), final)
    for cell in cells(grids.suite(seeds=2)):
        eps = 0.01 if (cell.variant, cell.seed) == ("per", 1) else 1e-6
        grids.finish(folder, cell, [0.0, 1.0, 1.0, 1.0], built={"buffer": {"eps": eps}})

    _, text = written(folder, tmp_path / "report")

    assert "**The runs of per in A-v0 differ in defaults of their models.**" in text
    assert "runs of dqn" not in text
    assert "do not record" not in text


def test_runs_that_do_not_tell_their_defaults_are_counted(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(), final)

    _, text = written(folder, tmp_path / "report")

    assert "10 runs do not record the defaults of their models." in text


def test_a_report_is_a_function_of_the_results(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(), final)

    report.write(folder, tmp_path / "first")
    report.write(folder, tmp_path / "second")

    names = {path.name for path in (tmp_path / "first").iterdir()}
    figures = {f"{name}.{ending}" for name in ("curves", "intervals") for ending in ("png", "svg")}
    assert names == figures | {"report.md", "runs.csv"}
    for name in names:
        first, second = (tmp_path / each / name for each in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


def test_settings_of_the_users_do_not_change_a_report(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(), final)
    report.write(folder, tmp_path / "plain")

    with mpl.rc_context({"axes.facecolor": "red", "font.size": 20, "lines.linewidth": 9}):
        report.write(folder, tmp_path / "theirs")

    for name in ("curves", "intervals"):
        plain, theirs = (tmp_path / each / f"{name}.svg" for each in ("plain", "theirs"))
        assert plain.read_bytes() == theirs.read_bytes()


def test_a_name_may_hold_what_formulas_and_tables_are_written_with(tmp_path):
    suite = grids.replaced(
        grids.suite(),
        name="cost $a$",
        contrasts={r"gain in $\nosuch$": Contrast(variant="per", over="dqn")},
    )
    source = grids.replaced(suite.environments["A-v0"].score, source="one\ntwo | three\n")
    suite = grids.changed(suite, "A-v0", score=source)
    folder = grids.folder_of(tmp_path, suite, final)

    _, text = written(folder, tmp_path / "report", ["svg"])

    assert r"| one two \| three |" in text
    assert "cost $a$: 5 seeds" in (tmp_path / "report" / "intervals.svg").read_text()


def test_a_report_that_has_no_place_is_not_computed(tmp_path, monkeypatch):
    folder = grids.folder_of(tmp_path, grids.suite(), final)
    monkeypatch.setattr(report, "compare", None)

    with pytest.raises(FileExistsError):
        report.write(folder, folder / "suite.yml")
    monkeypatch.setattr(
        "sys.argv", ["compare", "report", str(folder), "--out", f"{folder}/suite.yml"]
    )
    with pytest.raises(SystemExit, match=r"^sb3-per compare: .*File exists"):
        command.main()


def test_more_than_four_variants_get_a_panel_each_with_the_baseline(tmp_path):
    names = ["dqn", *(f"change_{index}" for index in range(4))]
    suite = grids.suite(environments=("A-v0", "B-v0"), variants=names)
    folder = grids.folder_of(tmp_path, suite, lambda cell: names.index(cell.variant) + cell.seed)

    report.write(folder, tmp_path / "report")

    # Matplotlib draws text as outlines and tells in a comment what they spell.
    spelled = re.findall("<!-- (.*) -->", (tmp_path / "report" / "curves.svg").read_text())
    assert [each for each in spelled if each.startswith("change_")] == 2 * names[1:]
    assert [each for each in spelled if "dqn" in each] == [
        "A-v0 (5 seeds); black: dqn; blue: the variant above the panel",
        "B-v0 (5 seeds); black: dqn; blue: the variant above the panel",
    ]


def drawn_curves(suite, folder, monkeypatch, **options):
    drawn = []
    monkeypatch.setattr(curves, "save_figure", lambda figure, file, output: drawn.append(figure))
    runs = report._read(folder).runs
    curves.draw(suite, runs, folder / "curves", **options)
    drawn[0].draw_without_rendering()
    return drawn[0]


def test_a_legend_stays_inside_of_a_narrow_figure(tmp_path, monkeypatch):
    suite = grids.suite()
    variants = {
        name: each.model_copy(update={"label": f"{name}, a label of many words"})
        for name, each in suite.variants.items()
    }
    suite = suite.model_copy(update={"variants": variants})
    figure = drawn_curves(suite, grids.folder_of(tmp_path, suite, final), monkeypatch)

    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_learning_curves_say_what_their_axes_show(tmp_path, monkeypatch):
    suite = grids.suite()
    figure = drawn_curves(suite, grids.folder_of(tmp_path, suite, final), monkeypatch)

    what = "Mean return of 2 evaluation episodes\n(interquartile mean, 95 % interval)"
    assert figure.get_supylabel() == what
    assert figure.get_supxlabel() == "Environment steps"


def test_no_interval_is_promised_where_seeds_are_too_few_for_one(tmp_path, monkeypatch):
    suite = grids.suite(seeds=4)
    figure = drawn_curves(suite, grids.folder_of(tmp_path, suite, final), monkeypatch)

    assert figure.get_supylabel().endswith("(interquartile mean)")


@pytest.mark.parametrize("best", [80, 5000])  # with 5000 the two lines lie close to each other
def test_the_names_of_reference_lines_stand_right_of_the_panel_and_apart(
    tmp_path, monkeypatch, best
):
    suite = grids.suite()
    folder = grids.folder_of(tmp_path, suite, lambda cell: best + cell.seed)
    figure = drawn_curves(suite, folder, monkeypatch)

    (panel,) = figure.axes
    threshold, random = (text.get_window_extent() for text in panel.texts)
    assert min(threshold.x0, random.x0) > panel.get_window_extent().x1
    assert threshold.y0 > random.y1


def test_a_variant_that_diverges_does_not_flatten_the_others(tmp_path, monkeypatch):
    names = ["dqn", *(f"change_{index}" for index in range(4))]
    suite = grids.suite(variants=names)
    finals = dict.fromkeys(names, 60) | {"change_3": -9000}
    folder = grids.folder_of(tmp_path, suite, lambda cell: finals[cell.variant])
    figure = drawn_curves(suite, folder, monkeypatch)

    # Random is 0 and the threshold 50.
    assert {panel.get_ylim()[0] for panel in figure.axes[:4]} == {-75}
    assert "cut below -75;" in figure.subfigs[0].get_suptitle()


def test_a_variant_that_learns_more_than_was_thought_possible_is_shown(tmp_path, monkeypatch):
    suite = grids.suite()
    folder = grids.folder_of(tmp_path, suite, lambda cell: 9000)
    figure = drawn_curves(suite, folder, monkeypatch)

    assert figure.axes[0].get_ylim()[1] > 9000


@pytest.mark.parametrize("n_variants", [4, 9])
def test_no_two_curves_of_a_panel_have_one_colour(tmp_path, monkeypatch, n_variants):
    suite = grids.suite(variants=("dqn", *(f"change_{index}" for index in range(n_variants - 1))))
    folder = grids.folder_of(tmp_path, suite, lambda cell: 60)
    figure = drawn_curves(suite, folder, monkeypatch)

    for panel in figure.axes:
        colours = [line.get_color() for line in panel.lines if line.get_linewidth() > 1]
        assert len(colours) == len({*colours})
        assert len(colours) <= 4


def test_a_report_draws_the_variants_formats_and_width_that_are_asked_for(tmp_path, monkeypatch):
    names = ["dqn", *(f"change_{index}" for index in range(4))]
    folder = grids.folder_of(tmp_path, grids.suite(variants=names), lambda cell: 60)
    options = ["--variants", "dqn", "change_2", "--format", "pdf", "svg", "--width", "5"]
    monkeypatch.setattr("sys.argv", ["compare", "report", str(folder), *options])

    command.main()

    out = folder / "report"
    assert (out / "curves.pdf").read_bytes().startswith(b"%PDF")
    drawing = (out / "curves.svg").read_text()
    assert 'width="360pt"' in drawing, "five inches"
    assert "<!-- change_2 -->" in drawing
    assert "<!-- change_1 -->" not in drawing
    assert "<!-- change_1 -->" not in (out / "intervals.svg").read_text()
    assert "| final | change_1 |" in (out / "report.md").read_text(), "tables hold all"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--variants", "dqn", "pre"], "--variants must be of dqn, per, got pre"),
        (["--width", "0"], "must be a number from 2 to 40, got '0'"),
    ],
)
def test_options_of_figures_that_cannot_be_are_refused(
    tmp_path, monkeypatch, capsys, options, message
):
    folder = grids.folder_of(tmp_path, grids.suite(), final)
    monkeypatch.setattr("sys.argv", ["compare", "report", str(folder), *options])

    with pytest.raises(SystemExit) as stopped:
        command.main()

    assert message in f"{stopped.value}{capsys.readouterr().err}"
    assert not (folder / "report").exists()


def test_the_csv_has_a_row_for_each_run_and_nothing_for_a_threshold_not_reached(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(seeds=1), final)

    report.write(folder, tmp_path / "report")

    with (tmp_path / "report" / "runs.csv").open(newline="") as file:
        dqn, per = csv.DictReader(file)
    assert (dqn["variant"], dqn["seed"], dqn["final_return"]) == ("dqn", "0", "40.0")
    assert dqn["steps_to_threshold"] == ""
    assert float(per["final_score"]) == pytest.approx(0.6)
    assert float(per["area_score"]) == pytest.approx(0.45)
    assert per["steps_to_threshold"] == "20"
    assert (per["steps_per_second"], per["steps_per_cpu_second"]) == ("20.0", "40.0")


def test_runs_that_never_reach_the_threshold_count_as_beyond_the_end(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(), final)

    _, text = written(folder, tmp_path / "report")

    assert re.search(r"\| A-v0 \| dqn \| 5 \| [^|]+ \| > 40 \| 0 of 5 \|", text)
    assert re.search(r"\| A-v0 \| per \| 5 \| [^|]+ \| 20 \| 5 of 5 \|", text)


def test_the_report_says_what_differs_and_what_is_shared(tmp_path):
    classic = suite_file.load("classic")
    cartpole = grids.replaced(
        classic.environments["CartPole-v1"], steps=40, evaluation=Evaluation(every=10, episodes=2)
    )
    changes = {
        "seeds": 1,
        "environments": {"CartPole-v1": cartpole},
        "variants": {name: classic.variants[name] for name in ("dqn", "double")},
        "contrasts": {},
    }
    suite = grids.replaced(classic, **changes)
    suite_file.save(suite, tmp_path / run_folder.SUITE)
    for cell in cells(suite):
        grids.finish(tmp_path, cell, [0.0, 1.0, 2.0, 3.0], evaluation_is_greedy=False)

    _, text = written(tmp_path, tmp_path / "report")

    assert re.search(r"\| double \| per_dqn \| .*'stratified': False.*`double_q=True`", text)
    assert "| dqn | dqn |  |  |" in text
    assert "Shared in CartPole-v1: `policy=MlpPolicy`, `learning_rate=0.0023`" in text
    assert "| still explores |" in text


def test_results_of_other_versions_are_told(tmp_path):
    suite = grids.suite()
    folder = grids.folder_of(tmp_path, suite, final)
    grids.finish(folder, cells(suite)[0], [0.0] * 4, versions={"python": "3.12"})

    _, text = written(folder, tmp_path / "report")

    assert "python 3.12 and 3.11" in text
    assert "The runs also differ in python." in text


def test_results_outside_of_the_grid_are_left_out_and_counted(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(seeds=6), final)
    suite_file.save(grids.suite(seeds=5), folder / run_folder.SUITE)

    said, text = written(folder, tmp_path / "report")

    assert "10 of 10 runs" in said
    left_out = "Left out, because they are not part of the suite: 2 results in the folder."
    assert left_out in text
    assert left_out in said


def test_results_of_other_settings_are_refused(tmp_path):
    folder = grids.folder_of(tmp_path, grids.suite(), final)
    path = next(folder.glob("per/*/*/result.json"))
    result = json.loads(path.read_text())
    result["settings"]["hyperparameters"]["learning_rate"] = 0.1
    path.write_text(json.dumps(result))

    with pytest.raises(MixedResults, match=r"learning_rate was 0\.1 and is 0\.5"):
        report.write(folder, tmp_path / "report")


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(SuiteError, match=r"must be a run folder, but it holds no suite\.yml"):
        report.write(tmp_path, tmp_path / "report")

    suite_file.save(grids.suite(), tmp_path / run_folder.SUITE)
    with pytest.raises(SuiteError, match="holds no result yet"):
        report.write(tmp_path, tmp_path / "report")


def test_lines_for_the_terminal_fit_it(tmp_path):
    # Better in one, worse in four, which the claim names; a sixth of the cells is missing.
    names = [f"a-package/AnEnvironment-{letter}-v0" for letter in "ABCDE"]
    suite = grids.suite(environments=names, seeds=6)
    folder = grids.folder_of(
        tmp_path,
        suite,
        lambda cell: 50 + (cell.variant == "per") * (9 if "A-v0" in cell.environment else -9),
    )

    said, _ = written(folder, tmp_path / "report")
    for path in folder.glob("per/*/*_6"):
        shutil.rmtree(path)
    said_of_part, _ = written(folder, tmp_path / "report")
    said, said_of_part = said.splitlines(), said_of_part.splitlines()

    # The last one is a path.
    assert all(len(line) <= 80 for line in [*said[:-1], *said_of_part[:-1]])
    assert all(name in " ".join(said) for name in names[1:])
    assert f"Failed or not yet run: {names[0]}, seeds: per 5" in said_of_part
