"""The exceptions that the command line prints as one line instead of a traceback."""


class UserError(ValueError):
    """Invalid input; the message names the file or field, what was found, what was expected and what to do next.

    Example:
      >>> try:
      ...     tp.load_config(None, ["model.hidden_dims=64"])
      ... except tp.UserError as error:
      ...     print(error)
      --set model.hidden_dims=64: unknown field model.hidden_dims; did you mean model.hidden_dim?
    """


class HloError(UserError):
    """An HLO file or module is malformed, inconsistent, or of another kind than expected."""
