"""The exception that a command-line user sees as one line instead of a traceback."""


class UserError(ValueError):
    """Bad input: the message names the file or field, what was found, what was expected and what to do next."""
