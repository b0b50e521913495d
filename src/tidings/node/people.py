"""Whether this node tells people anything. What that needs is loaded only where it is installed."""

from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tidings.config import Config
from tidings.engine import Engine
from tidings.node.stores import CannotStart

if TYPE_CHECKING:
    from tidings.node.delivering import People

NEEDED = ("aiohttp", "aiosmtplib", "cryptography", "httpx2", "idna", "liquid")  # of the extra `notify`


async def check_people(config: Config) -> None:
    """Refuse what can be told before anything is opened."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing and config.channels:
        raise CannotStart(f"channels need {', '.join(missing)}: pip install 'tidings[notify]'")
    if not missing:
        from tidings.node.channels import try_channels
        from tidings.node.delivering import check_delivery

        check_delivery(config)
        await try_channels(config)


async def join_people(engine: Engine, config: Config, last: AsyncExitStack) -> "People | None":
    """Let workers run beside the engine; None where what they need is not installed."""
    if any(find_spec(name) is None for name in NEEDED):
        return None
    from tidings.node.delivering import join

    return await join(engine, config, last)


def check_channels(config: Config) -> None:
    """Refuse tables of channels that no provider understands, so that no secret is shown that stands among them."""
    if config.channels:
        from tidings.node.channels import check_channels as check

        check(config)
