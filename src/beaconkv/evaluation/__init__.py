"""The quality of a bounded cache, measured against the full cache and against known answers.

Importing is cheap: code that needs a model is in ``answers.decoding``, ``answers.run`` and ``fidelity``, and
math-verify is loaded when the first mathematical answer is compared.
"""

from .answers.repetition import Loop, repetition_loop
from .grading.grade import GRADERS, Grade, get_grader, grade, grade_choice, grade_exact
from .intervals import Difference, Estimate, mean_interval, paired_difference
from .records.jsonl import read_records
from .records.record_file import RecordFile
from .summary import summarize
from .tasks.load import Task, load_tasks
from .tasks.problems import Problem, load_problems

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
