"""What a fake device says when it is used wrongly."""

from __future__ import annotations


class UndefinedBehaviourError(AssertionError):
    """Something that the real interface does not notice: it would compute rubbish, or end the process."""


class Faults:
    """Everything that was refused, by whichever way, in order.

    Refusals that the real interface answers with a code, `False` or `None` are noted and answered like that; what it
    leaves undefined is noted and raised, at the latest when the work is run. The notes remain where a caller swallows
    either.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, what: str) -> None:
        """Something that the real interface refuses."""
        self.notes.append(what)

    def undefined(self, what: str) -> UndefinedBehaviourError:
        """Something that it does not: to be raised."""
        self.notes.append(what)
        return UndefinedBehaviourError(what)
