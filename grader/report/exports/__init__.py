"""Exports: pure functions of stored reports to the formats of other systems. Nothing here reads or grades."""
