"""Plug-ins for other projects. Each module imports its project and is loaded by it."""
