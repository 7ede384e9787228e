"""A demo on real images, downloaded as Python wheels, in a minute or two.

`data` has the images, `story` runs and measures, `report` draws the results.
"""

from __future__ import annotations

from anytimecl.demo.story import FULL, QUICK, Plan, Story, tell

__all__ = ["FULL", "QUICK", "Plan", "Story", "tell"]
