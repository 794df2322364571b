"""The command line: ``python -m ringkern COMMAND``, or ``ringkern COMMAND``.

``program`` has the table of the commands and runs one; what they share is in
:mod:`ringkern.tools.options`. A command is a module with ``DESCRIPTION``,
``add_arguments(parser)`` and ``run(args)``, which returns the exit status, and raises ValueError
for arguments that do not fit together and OSError for files. The library imports nothing of this
package.
"""

from __future__ import annotations

from .program import COMMANDS, EXIT_CODES, Command, main, parsers

__all__ = ["COMMANDS", "EXIT_CODES", "Command", "main", "parsers"]
