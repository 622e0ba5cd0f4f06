"""Two tables in, a private model out; the Python side of `sidelight fit` and `sidelight predict`.

model = fit_tables("private.csv", "public.csv", target="income", epsilon=1.0)
model.save("model")
TableModel.load("model").predict(read_table("new.csv"))
"""

from sidelight.data.schema import Schema
from sidelight.data.table_files import read_table
from sidelight.tables.fitting import TableModel, fit_tables

__all__ = ["Schema", "TableModel", "fit_tables", "read_table"]
