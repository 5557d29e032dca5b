"""The exceptions that the command line prints as one line instead of a traceback."""


class UserError(ValueError):
    """Invalid input; the message names the file or field, what was found, what was expected and what to do next."""


class HloError(UserError):
    """An HLO file or module is malformed, inconsistent, or of another kind than expected."""
