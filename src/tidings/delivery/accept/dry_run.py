"""Dry-runs rendering at acceptance, so that template errors are answered then, and are not delivery failures.

Most variables are short texts that a template only prints. What they say makes no difference to whether it can be
rendered, as long as there is room for them: so it is rendered once with long stand-ins, and what passes with those
passes with every such text. Where it does not pass, the variables themselves decide.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tidings.clock import Clock
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.rows import encode
from tidings.delivery.templates import Compiled
from tidings.delivery.templates.renderer import build_message, inline_content
from tidings.delivery.templates.values import VARIABLES_BYTES_MAX, check_values
from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.user import User

SMALL_BYTES = 4_096  # of variables, which loops go through
SHORT_CHARACTERS = 64
SHORT_NUMBER = 10**18
# Longer than any short text in characters, in UTF-8, in JSON, and in HTML, where no character becomes longer than this.
STAND_IN = '"' * (4 * SHORT_CHARACTERS)

Said = tuple[tuple[ChannelName, ...], str | None, tuple[tuple[str, str], ...]]
Shape = tuple[str | tuple[str, bytes], ...]  # of variables: the name of each short text, the others with their values


class HasVariables(Protocol):
    """A user, as far as their own values matter."""

    @property
    def name(self) -> str | None: ...

    @property
    def variables(self) -> dict[str, str]: ...


class DryRun:
    """Renders for each channel that may be used, once for each distinct result."""

    def __init__(self, tenant: str, ask: NotificationRequest, template: Compiled | None) -> None:
        self._tenant = tenant
        self._ask = ask
        self._template = template
        self._said: dict[Said, Invalid | None] = {}
        self._tried: dict[object, bool] = {}  # with stand-ins
        self._passed: set[object] = set()  # channels, languages and names of short texts that passed with stand-ins
        self._asked_bytes = len(encode(ask.variables)) if ask.variables else 0
        is_long = self._asked_bytes > SMALL_BYTES
        self.is_heavy = template is not None and (is_long or not template.is_small)  # it may take many milliseconds
        self.renderings = 0
        self._shape: Shape | None = None
        self._own_names: tuple[str, ...] | None = () if template is None else None
        self._prints_only = template is None  # of the user's own values
        self._refused = None if template is None else self._look(template)

    def _look(self, template: Compiled) -> Invalid | None:
        """Note which variables the template uses; returns what is wrong with those of the request."""
        asked, used = self._ask.variables, template.uses
        if used is not None:
            self._own_names = tuple(used - asked.keys())
            self._prints_only = template.prints.issuperset(self._own_names)
            self._shape = _shape(template, asked.items())
        are_short = self._shape is not None and len(self._shape) == len(asked) and not _exact(self._shape)
        if self._asked_bytes > SMALL_BYTES or not are_short:
            try:
                check_values(asked)
            except Invalid as invalid:
                return invalid
        return None

    def check(self, channels: Sequence[ChannelName], user: User | None) -> bool:
        """`Invalid` if it cannot be rendered for this user, or for the given address.

        Returns whether it can be rendered for everybody with the same language and the same `short_names` too.
        """
        if self._refused is not None:
            raise Invalid(self._refused.field, self._refused.detail)
        channels = tuple(channels)
        kind = None if user is None else (channels, self._locale(user), self.short_names(user))
        if kind in self._passed:
            return True
        own = self._own_values(user)
        is_general = kind is not None and kind[2] is not None
        if user is not None and self._passes(channels, user, own):
            if is_general:
                self._passed.add(kind)
            return is_general
        said = (channels, self._locale(user), own)
        if said not in self._said:
            self._said[said] = self._try(channels, user, self._known(user))
        refused = self._said[said]
        if refused is not None:
            raise Invalid(refused.field, refused.detail)
        if is_general and not own:
            self._passed.add(kind)
        return is_general and not own

    def short_names(self, user: HasVariables) -> tuple[str, ...] | None:
        """The names of the user's own values that the template prints, if all are short; None if they matter more."""
        if not self._prints_only or self._is_large(user):
            return None
        own, names = user.variables, []
        for name in self._own_names or ():
            value = user.name if name == "name" and user.name is not None else own.get(name)
            if value is not None:  # the same as `_is_short`, without its call
                if not 0 < len(value) <= SHORT_CHARACTERS or not value.isprintable() or value.isspace():
                    return None
                names.append(name)
        return tuple(names)

    def _is_large(self, user: HasVariables) -> bool:
        """Whether the variables may be too large together."""
        return self._asked_bytes + sum(map(len, user.variables.values())) > VARIABLES_BYTES_MAX // 4

    def _passes(self, channels: tuple[ChannelName, ...], user: User, own: tuple[tuple[str, str], ...]) -> bool:
        """Whether variables like these can be rendered, whatever the short texts among them say."""
        template = self._template
        if template is None or self._shape is None or self._is_large(user):
            return False
        shape = self._shape + _shape(template, own)
        key = (channels, self._locale(user), shape)
        if template.is_known_to_render(key):
            return True
        if key not in self._tried:
            known = self._known(user)
            known |= {each: STAND_IN for each in shape if isinstance(each, str)}
            self._tried[key] = self._try(channels, user, known) is None
            if self._tried[key]:
                template.remember_rendering(key, sum(len(value) for _, value in _exact(shape)))
        return self._tried[key]

    def _try(self, channels: Sequence[ChannelName], user: User | None, known: Mapping[str, Any]) -> Invalid | None:
        self.renderings += 1
        try:
            if self._template is not None:
                self._template.check(known, channels)
            for channel in channels:
                self._say(channel, user, known)
        except Invalid as invalid:
            return invalid
        return None

    def _say(self, channel: ChannelName, user: User | None, known: Mapping[str, Any]) -> None:
        ask = self._ask
        try:
            if self._template is None:
                inline = ask.inline()
                assert inline is not None, "without a template there is content"
                content = inline_content(inline, channel)
            else:
                content = self._template.render(channel, known, self._locale(user))
            places = user.addresses(channel) if user is not None else (ask.to,)
            for place in places[:1]:
                assert place is not None, "it is for a user or for an address"
                build_message(content, channel, place, "proof", tenant=self._tenant, collapse=ask.collapse)
        except Invalid as invalid:
            told = f"{invalid.field}: {invalid.detail}"
            if self._template is None:
                raise Invalid(
                    "words" if ask.content is None else "content", f"cannot be sent by {channel}: {told}"
                ) from None
            raise Invalid("variables", f"do not fit the template {ask.template}: {channel}: {told}") from None

    def _locale(self, user: User | None) -> str | None:
        return self._ask.locale or (None if user is None else user.locale)

    def _known(self, user: User | None) -> dict[str, Any]:
        return dict(self._ask.variables) if user is None else user.known(self._ask.variables)

    def _own_values(self, user: User | None) -> tuple[tuple[str, str], ...]:
        """The user's own values that the text depends on."""
        if user is None or self._template is None:
            return ()
        own = user.known({})
        names = self._own_names
        if names is None:
            names = tuple(sorted(own.keys() - self._ask.variables.keys()))
        return tuple([(name, own[name]) for name in names if name in own])


def _shape(template: Compiled, variables: Iterable[tuple[str, object]]) -> Shape:
    """Variables as far as a template can tell them apart, without those that it does not use."""
    prints, uses = template.prints, template.uses or ()
    return tuple(
        [
            name if name in prints and _is_short(value) else (name, encode(value))
            for name, value in variables
            if name in uses
        ]
    )


def _exact(shape: Shape) -> list[tuple[str, bytes]]:
    """Those that are described by their values."""
    return [each for each in shape if type(each) is tuple]


def _is_short(value: object) -> bool:
    """Whether it is a short text in one line, or a number that is one when it is printed."""
    if type(value) is str:
        return 0 < len(value) <= SHORT_CHARACTERS and value.isprintable() and not value.isspace()
    return type(value) is int and -SHORT_NUMBER < value < SHORT_NUMBER


SLICE_US = 1_000
STEPS_FEW = 8


class Pace:
    """Cuts long work into slices: call `turn` after each step, or after some short ones."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = clock.elapsed()
        self._steps = 0

    async def turn(self, steps: int = 1) -> None:
        """Let other tasks run if this one has worked for a whole slice. A few steps never take that long."""
        self._steps += steps
        if self._steps >= STEPS_FEW:
            self._steps = 0
            if self._clock.elapsed() - self._begun >= SLICE_US:
                await asyncio.sleep(0)
                self._begun = self._clock.elapsed()
