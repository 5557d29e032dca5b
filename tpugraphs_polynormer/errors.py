"""The exceptions that a command-line user sees as one line instead of a traceback."""


class UserError(ValueError):
    """Bad input: the message names the file or field, what was found, what was expected and what to do next."""


class HloError(UserError):
    """An HLO file or module that is malformed, inconsistent, or of another kind than expected."""
