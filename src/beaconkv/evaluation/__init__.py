"""How well a bounded cache serves: measured against the full cache, and against answers.

Importing is cheap: what needs a model is in ``decoding`` and ``run``, and math-verify is not loaded before the
first mathematical answer is compared.
"""

from .grading import GRADERS, Grade, get_grader, grade, grade_choice, grade_exact
from .intervals import Difference, Estimate, mean_interval, paired_difference
from .jsonl import read_records
from .problems import Problem, load_problems
from .records import RecordFile
from .repetition import Loop, repetition_loop
from .summary import summarize
from .tasks import Task, load_tasks

__all__ = [
    "GRADERS",
    "Difference",
    "Estimate",
    "Grade",
    "Loop",
    "Problem",
    "RecordFile",
    "Task",
    "get_grader",
    "grade",
    "grade_choice",
    "grade_exact",
    "load_problems",
    "load_tasks",
    "mean_interval",
    "paired_difference",
    "read_records",
    "repetition_loop",
    "summarize",
]
