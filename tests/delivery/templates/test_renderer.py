"""The templates of a batch are looked up once each, and what is wrong with one concerns only its own messages."""

import asyncio

import msgspec
import pytest

from tests.delivery.test_policy import case
from tidings.delivery.templates import Compiled, Parts, SmsPart, Template, compile_template
from tidings.delivery.templates.renderer import Renderer
from tidings.delivery.worker.context import DeliveryContext
from tidings.domain.errors import Invalid


class Source:
    """Has the template `good`, cannot compile `broken`, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int | None]] = []

    async def compiled(self, tenant: str, name: str, version: int | None = None) -> Compiled | None:
        self.asked.append((tenant, name, version))
        if name == "broken":
            raise Invalid("parts", "cannot be compiled")
        parts = Parts(sms={"en": SmsPart(f"{tenant} {version} {{{{ word }}}}")})
        return compile_template(Template(name, parts)) if name == "good" else None


def _context(tenant: str, template: str, version: int | None, word: str) -> DeliveryContext:
    context = case()
    notification = msgspec.structs.replace(
        context.notification, words=None, template=template, version=version, variables={"word": word}
    )
    return msgspec.structs.replace(context, tenant=tenant, channel="sms", notification=notification)


def test_each_template_of_a_batch_is_looked_up_once_by_tenant_and_version() -> None:
    source = Source()
    renderer = Renderer(source)
    kinds = [("a", "good", 1), ("a", "good", 2), ("b", "good", 1), ("b", "good", None)]
    contexts = [_context(*kind, word=str(number)) for number in range(3) for kind in kinds]
    templates = asyncio.run(renderer.templates(contexts))
    assert source.asked == kinds
    texts = [renderer.content(context, templates).text for context in contexts]
    assert texts == [f"{tenant} {version} {number}" for number in range(3) for tenant, _, version in kinds]


def test_a_template_that_is_gone_or_broken_refuses_only_its_own_messages() -> None:
    renderer = Renderer(Source())
    good, gone, broken = (_context("a", name, 1, "tea") for name in ("good", "gone", "broken"))
    templates = asyncio.run(renderer.templates([broken, gone, good]))
    assert renderer.content(good, templates).text == "a 1 tea"
    with pytest.raises(Invalid, match="no longer exists"):
        renderer.content(gone, templates)
    for _ in range(2):
        with pytest.raises(Invalid, match="cannot be compiled"):
            renderer.content(broken, templates)
