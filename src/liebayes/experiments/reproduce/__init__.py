"""The paper's tables and figures as recipes: `liebayes reproduce table1 | table2 | curves | figure1 | figure-filters`."""

from .curves import CURVES
from .recipe import Planned, Recipe, Selection, plan
from .table1 import TABLE1
from .table2 import TABLE2

RECIPES: dict[str, Recipe] = {"table1": TABLE1, "table2": TABLE2, "curves": CURVES}

__all__ = ["CURVES", "RECIPES", "TABLE1", "TABLE2", "Planned", "Recipe", "Selection", "plan"]
