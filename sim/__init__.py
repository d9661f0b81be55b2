"""Consilience's simulator: tasks, discussions, worlds, engines, studies, records, report and captain.

Importing this package loads nothing else; import the room that is needed.
"""
