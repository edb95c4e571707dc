"""From missing outputs to the list of tasks, and to the commands of SLURM, here programs that note words."""

import multiprocessing
from pathlib import Path

from studies import small_study

from cog.runtime.output import DONE, State
from cog.study import slurm, tasks, units
from cog.study.tasks import Task


def words(numbered: dict[int, Task]) -> dict[int, str]:
    return {number: str(task) for number, task in numbered.items()}


def test_a_number_is_the_name_of_a_task_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "MODELS_PER_PASS", 2)
    study = small_study(tmp_path, datasets=("in1k",))
    first = {1: "extract in1k a_net b_net", 2: "logreg in1k a_net", 3: "logreg in1k b_net"}
    assert words(tasks.list_tasks(study, tmp_path, append=False)) == first and not list(tmp_path.iterdir())
    assert words(tasks.list_tasks(study, tmp_path)) == first
    other = small_study(tmp_path, models=("c_net", "b_net"), datasets=("in1k",))
    later = words(tasks.list_tasks(other, tmp_path))  # its flags are not for a_net
    assert later == {3: first[3], 4: "extract in1k c_net b_net", 5: "logreg in1k c_net"}
    assert words(tasks.list_tasks(study, tmp_path)) == first


def append(folder: Path, models: tuple[str, ...]) -> dict[int, str]:
    return words(tasks.list_tasks(small_study(folder, models=models), folder))


def test_processes_that_append_at_once_agree(tmp_path):
    (tmp_path / "tasks.txt").write_text("extract in1k a_net\nlogreg in1")  # torn: a number that nobody uses
    wanted = [("a_net", "b_net"), ("b_net", "c_net"), ("a_net",), ("a_net", "b_net")] * 3
    with multiprocessing.get_context("fork").Pool(4) as pool:
        listed = pool.starmap(append, [(tmp_path, models) for models in wanted], chunksize=1)
    lines = (tmp_path / "tasks.txt").read_text().splitlines()
    assert lines[:2] == ["extract in1k a_net", "logreg in1"]
    for numbers in listed:
        assert {number: lines[number - 1] for number in numbers} == numbers
        assert all(lines.index(task) == number - 1 for number, task in numbers.items())


def test_what_is_done_or_not_needed_is_left_out(tmp_path):
    study = small_study(tmp_path, models=("a_net",), datasets=("in1k",))
    done = dict.fromkeys(units.survey(study), State(DONE))
    features, run = study.features("a_net", "in1k"), study.runs("a_net", "in1k")[0]

    def open_tasks(states=None) -> list[str]:
        listed = tasks.list_tasks(study, study.root, append=False).values()
        return [task.kind for task in listed if tasks.is_open(study, task, done | (states or {}))]

    deleted = dict.fromkeys(features, State(units.DELETED))
    assert open_tasks(dict.fromkeys(done, State("missing"))) == ["extract", "logreg"]
    assert open_tasks() == []
    assert open_tasks({run: State("failed", "why")}) == ["logreg"]
    assert open_tasks(deleted) == []
    assert open_tasks(deleted | {run: State("interrupted")}) == ["extract", "logreg"]
    assert open_tasks({run: State("other")}) == ["logreg"]
    assert open_tasks({features[1]: State("other"), run: State("other")}) == ["extract", "logreg"]


def test_jobs_of_a_study(tmp_path, monkeypatch, capsys):
    log_dir, sent, queue = tmp_path / "logs 100%", [], []
    commands = {"extract": ["python", "extract.py", "--e"], "logreg": ["python", "logreg.py", "--l"]}
    names = {kind: slurm.job_name(log_dir, command) for kind, command in commands.items()}

    def run_slurm(program: str, *words: str) -> str:
        if program == "sbatch":
            sent.append(" ".join(words))
            return f"{len(sent)}\n"
        return "MaxArraySize     = 77" if program == "scontrol" else "7 1 PENDING x y\n" + "\n".join(queue)

    def submit(*models: str, more: str = "", dry_run: bool = False) -> str:
        listed = tasks.list_tasks(small_study(tmp_path, models=models), log_dir)
        now = commands | {"logreg": [*commands["logreg"], *more.split()]}
        slurm.submit(listed, listed, now, "table", ["--gres=gpu:1"], log_dir, dry_run=dry_run)
        return capsys.readouterr().out

    assert slurm.run_slurm("printf", r"caf\351") == "caf\ufffd"  # a name of another job of the user
    monkeypatch.setattr(slurm, "run_slurm", run_slurm)
    log_dir.mkdir()
    assert submit("a_net", "b_net", dry_run=True).count("\nsbatch ") == 4 and not sent
    submit("a_net", "b_net")
    for line, name in zip(sent, [*names.values(), names["logreg"], slurm.job_name(log_dir)], strict=True):
        assert line.startswith(f"--parsable --gres=gpu:1 --job-name={name} ")
    assert "--array=1,2 --signal=B:USR1@120 --requeue" in sent[0] and "--dependency" not in sent[0]
    assert "logs 100%%/%a.log" in sent[0] and sent[0].endswith("tasks.txt python extract.py --e")
    assert "--dependency=afterany:1_1 --array=3,4" in sent[1]  # an array of classifiers for each extraction
    assert "--dependency=afterany:1_2 --array=5,6" in sent[2]
    assert "--dependency=afterany:1:2:3 " in sent[3] and sent[3].endswith("--wrap=table")
    queue += [f"1 1 PENDING {names['extract']}", *(f"2 {k} PENDING {names['logreg']}" for k in (3, 4))]
    queue += [f"1 2 COMPLETING {names['extract']}"]
    assert "3 tasks to submit, 3 are queued" in submit("a_net", "b_net")
    assert "--array=2" in sent[4] and "--dependency=afterany:5_2 --array=5,6" in sent[5]
    queue[3:] = [f"6 {k} PENDING {names['logreg']}" for k in (5, 6)]  # for an extraction that was canceled
    submit("a_net", "b_net")
    assert "--array=2" in sent[7] and "--dependency=afterany:8_2 --array=5,6" in sent[8]
    queue += [f"8 2 RUNNING {names['extract']}"]
    assert "0 tasks to submit, 6 are queued" in submit("a_net", "b_net")
    assert "4 tasks to submit, 2 are queued" in submit("a_net", "b_net", more="--seeds 1 2 3")
    assert "--dependency=afterany:1_1:2 --array=3,4" in sent[10]  # after what is queued for fewer seeds
    assert "--dependency=afterany:8_2:6 --array=5,6" in sent[11]
