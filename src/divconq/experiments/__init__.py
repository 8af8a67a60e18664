"""Tables of experiments: run what is missing, keep a small file of each run, render mean, deviation and interval.

    divconq reproduce tables/cub_margin.yaml --root DIR --out results

From a program, on a machine that has nothing but the results::

    figures = render(load_table(Path("tables/cub_margin.yaml")), Path("results"))
"""

from divconq.experiments.figures import summary
from divconq.experiments.render import brief, latex, markdown, text
from divconq.experiments.results import Result, read_results
from divconq.experiments.runner import Outcome, check_losses, plan, plan_text, render, reproduce
from divconq.experiments.table import (
    Row,
    Table,
    load_table,
    parse_changes,
    parse_names,
    parse_seeds,
    parse_table,
    share_rows,
)

__all__ = [
    "Outcome",
    "Result",
    "Row",
    "Table",
    "brief",
    "check_losses",
    "latex",
    "load_table",
    "markdown",
    "parse_changes",
    "parse_names",
    "parse_seeds",
    "parse_table",
    "plan",
    "plan_text",
    "read_results",
    "render",
    "reproduce",
    "share_rows",
    "summary",
    "text",
]
