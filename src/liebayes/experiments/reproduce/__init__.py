"""The paper's tables and figures as recipes: `liebayes reproduce table1 | table2 | figure1 | figure-filters`."""

from .recipe import Planned, Recipe, Selection, plan
from .table1 import TABLE1
from .table2 import TABLE2

RECIPES: dict[str, Recipe] = {"table1": TABLE1, "table2": TABLE2}

__all__ = ["RECIPES", "TABLE1", "TABLE2", "Planned", "Recipe", "Selection", "plan"]
