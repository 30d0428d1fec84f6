"""Shows pipelines and tables: on a terminal, as log lines, to Prometheus, as a plot, as a page.

May import `cli.run` and the subpackages below it.
"""
