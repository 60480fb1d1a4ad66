"""Pictures and tables from result files. matplotlib is imported when something is drawn."""

from .catalog import FIGURES
from .draw import Drawn, draw

__all__ = ["FIGURES", "Drawn", "draw"]
