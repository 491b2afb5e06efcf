"""Engines, one file each: they record, score and run live. Files with an underscore are shared parts, not engines."""
