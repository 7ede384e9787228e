"""The benchmark lab: the paper's scenarios, methods and tables on anyone's data and backbone.

Data flows in one direction: `data` and `features` (images to tokens), `scenarios` (what arrives
when, and what is asked), `methods` (who learns), `run` (lines of results), `report` (tables).
"""
