"""Tables of experiments: execute missing runs, store each result, render means, deviations and intervals.

    divconq reproduce tables/cub_margin.yaml --root DIR --out results

In Python, to render a table from stored results::

    figures = render(load_table(Path("tables/cub_margin.yaml")), Path("results"))
"""

from divconq.experiments.figures import summary
from divconq.experiments.flags import parse_changes, parse_names, parse_seeds
from divconq.experiments.render import brief, latex, markdown, text
from divconq.experiments.results import Result, read_results
from divconq.experiments.runner import (
    Outcome,
    check_losses,
    plan,
    plan_text,
    render,
    reproduce,
    select_rows,
)
from divconq.experiments.table import Row, Table, load_table, parse_table

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
    "select_rows",
    "summary",
    "text",
]
