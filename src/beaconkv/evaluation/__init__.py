"""Problems, grading, intervals and results on disk: what an evaluation needs besides a model.

Importing is cheap: math-verify is not loaded before the first mathematical answer is compared.
"""

from .grading import GRADERS, Grade, get_grader, grade, grade_choice, grade_exact
from .intervals import Difference, Estimate, mean_interval, paired_difference
from .jsonl import read_records
from .problems import Problem, load_problems
from .records import RecordFile
from .repetition import Loop, repetition_loop

__all__ = [
    "GRADERS",
    "Difference",
    "Estimate",
    "Grade",
    "Loop",
    "Problem",
    "RecordFile",
    "get_grader",
    "grade",
    "grade_choice",
    "grade_exact",
    "load_problems",
    "mean_interval",
    "paired_difference",
    "read_records",
    "repetition_loop",
]
