"""What notifications say: Liquid templates with bounds on everything, a part for each channel, in several languages."""

from tidings.delivery.templates.parts import EmailPart, InAppPart, Parts, PushPart, SmsPart, Template, WebhookPart
from tidings.delivery.templates.template import Compiled, Content, compile_template

__all__ = [
    "Compiled",
    "Content",
    "EmailPart",
    "InAppPart",
    "Parts",
    "PushPart",
    "SmsPart",
    "Template",
    "WebhookPart",
    "compile_template",
]
