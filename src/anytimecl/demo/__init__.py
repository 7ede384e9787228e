"""The product's story in a minute or two, on real images that pip can fetch.

`data` has the images, `story` lives through it and measures, `report` draws what was measured.
"""

from __future__ import annotations

from anytimecl.demo.story import FULL, QUICK, Plan, Story, tell

__all__ = ["FULL", "QUICK", "Plan", "Story", "tell"]
