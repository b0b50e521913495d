"""What one rendering may cost, all texts of a message together: it runs between two turns of others, who must not wait.

Work is counted, not timed, so that a template which is taken once is taken always. A unit is about 10 ns: a character
of a filter is one, an item of a list some more, and a step of python-liquid some hundreds.
"""

from liquid.exceptions import ResourceLimitError
from liquid.undefined import Undefined

from tidings.delivery.templates.values import INTEGER_BITS_MAX

WORK_MAX = 8_000_000
STEP_WORK = 300  # of each node and expression that is visited
ITEM_WORK = 8  # of each unit of a list: who prints or filters it does more than look at it
FILTER_WORK = 2 * STEP_WORK
LOOP_WORK = 4 * STEP_WORK  # to begin one
OUTPUT_BYTES_MAX = 512 * 1024
VALUE_SIZE_MAX = 256 * 1024  # of what one filter gives, or all that a template keeps


class Budget:
    """What is left: `work`, and `output` in characters."""

    __slots__ = ("_weights", "output", "work")

    def __init__(self) -> None:
        self.work = WORK_MAX
        self.output = OUTPUT_BYTES_MAX
        self._weights: dict[int, tuple[object, int]] = {}

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            raise ResourceLimitError("rendering takes too much work: use smaller loops and filters", token=None)

    def pay(self, value: object, factor: int = 1) -> None:
        """Spend the size of a value, `factor` times if it is no text."""
        if issubclass(type(value), str):
            self.spend(bounded(len(value)))  # type: ignore[arg-type]
        else:
            self.spend(self.weight(value) * factor)

    def weight(self, value: object) -> int:
        """The size of a value; lists are walked through once, as nothing changes them, and kept so that they stay."""
        if not issubclass(type(value), list | dict | tuple):
            return weigh(value)
        known = self._weights.get(id(value))
        if known is None:
            known = self._weights[id(value)] = (value, weigh(value))
            self.spend(known[1] * 4)
        return known[1]


def weigh(value: object) -> int:
    """Characters of a value with everything in it; refused as soon as it is too much."""
    if issubclass(type(value), Undefined):  # which answers no other question, not even of what class it is
        return 1
    if isinstance(value, str):
        size = len(value)
    elif isinstance(value, list | tuple):
        size = 8 * len(value)
        for item in value:
            if size > VALUE_SIZE_MAX:
                break
            size += weigh(item)
    elif isinstance(value, dict):
        size = weigh(list(value)) + weigh(list(value.values()))
    elif isinstance(value, range):
        size = 8 * len(value)
    elif isinstance(value, int) and value.bit_length() > INTEGER_BITS_MAX:
        raise ResourceLimitError(f"a number has more than {INTEGER_BITS_MAX} bits", token=None)
    else:
        size = 8
    return bounded(size)


def bounded(size: int) -> int:
    """A size that a value may have."""
    if size > VALUE_SIZE_MAX:
        raise ResourceLimitError(f"a value has more than {VALUE_SIZE_MAX} characters", token=None)
    return size
