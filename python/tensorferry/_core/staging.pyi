from collections.abc import Sequence


class Decode:
    """The native part of tensorferry.staging.DecodeInputs."""

    def __init__(self, memory_and_slots: tuple[int, Sequence[int]], starts: Sequence[int], shape: Sequence[int], device: int, keep: object | None) -> None: ...

    def stage(self, stream: int, tokens: object, lengths: object, tables: object, temperatures: object | None, padded_to: int) -> int:
        """Returns how many sequences there are."""

    @property
    def turn(self) -> int:
        """The turn of the slot that comes next."""

    @property
    def rows_written(self) -> int:
        """Rows of tables, in all."""

    @property
    def timeout(self) -> float:
        """Seconds for a copy to end."""

    @timeout.setter
    def timeout(self, arg: float, /) -> None: ...

class TrialMemory:
    """For tests on simulated devices."""

    def __init__(self, device: int, nbytes: int, slots: int) -> None: ...

    @property
    def address(self) -> int: ...

    @property
    def stream(self) -> int: ...

    @property
    def slots(self) -> list[int]: ...

    def read(self) -> bytes: ...
