"""Records what a launcher does on data-free tensors as a tape (see `tape`), inside the submission's own process.

Nothing here is trusted by the judge: the checks exist for messages that name the submission's line.
"""

from .history import History
from .session import run, watching
from .tensors import Description
from .values import Refused

__all__ = ["Description", "History", "Refused", "run", "watching"]
