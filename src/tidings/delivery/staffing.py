"""Whether anybody delivers: what was released waits on its topic for a node with that role."""

from tidings.delivery.schedules import Schedules

ROLE = "deliver"
NO_WORKER = "no_worker"
NOTICE = "no live node has the role deliver: due notifications wait until there is one"


async def nobody_delivers(schedules: Schedules) -> bool:
    """Whether nodes live and none of them delivers. Where none is known to live, nothing is said."""
    living = [node for node in (await schedules.nodes()).nodes if node.is_alive]
    return bool(living) and not any(ROLE in node.report.roles for node in living)
