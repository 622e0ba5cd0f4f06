"""The audits of every method, as a table in the documentation."""
