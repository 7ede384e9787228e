"""The benchmark lab: the paper's scenarios, methods and tables on any data and backbone.

Data flows in one direction: `data` and `features` (images to tokens), `scenarios` (streams and
evaluation sets), `methods`, `run` (lines of results), `report` (tables).
"""
