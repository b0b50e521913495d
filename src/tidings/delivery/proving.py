"""Says a notification once when it is accepted, to nobody: what cannot be said is refused then, not at nine o'clock."""

from collections.abc import Sequence

from tidings.delivery.asking import Notify
from tidings.delivery.envelope import put
from tidings.delivery.templates import Compiled
from tidings.delivery.wording import in_words
from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.user import User

Said = tuple[tuple[ChannelName, ...], str | None, tuple[tuple[str, str], ...]]


class Proving:
    """Renders for each channel that may be used. Of many people only those count who would read something else."""

    def __init__(self, tenant: str, ask: Notify, template: Compiled | None) -> None:
        self._tenant = tenant
        self._ask = ask
        self._template = template
        self._said: dict[Said, Invalid | None] = {}

    @property
    def renderings(self) -> int:
        """How many different ones there were so far."""
        return len(self._said)

    def check(self, channels: Sequence[ChannelName], user: User | None) -> None:
        """`Invalid` if it cannot be rendered for this user, or for the given address."""
        said = (tuple(channels), self._locale(user), self._of_hers(user))
        if said not in self._said:
            self._said[said] = self._try(channels, user)
        refused = self._said[said]
        if refused is not None:
            raise Invalid(refused.field, refused.detail)

    def _try(self, channels: Sequence[ChannelName], user: User | None) -> Invalid | None:
        try:
            if self._template is not None:
                known = self._ask.variables if user is None else user.known(self._ask.variables)
                self._template.check(known, channels)
            for channel in channels:
                self._say(channel, user)
        except Invalid as invalid:
            return invalid
        return None

    def _say(self, channel: ChannelName, user: User | None) -> None:
        ask = self._ask
        try:
            if self._template is None:
                inline = ask.inline()
                assert inline is not None, "without a template there is content"
                content = in_words(inline, channel)
            else:
                known = ask.variables if user is None else user.known(ask.variables)
                content = self._template.render(channel, known, self._locale(user))
            places = user.addresses(channel) if user is not None else (ask.to,)
            for place in places[:1]:
                assert place is not None, "it is for a user or for an address"
                put(content, channel, place, "proof", tenant=self._tenant, collapse=ask.collapse)
        except Invalid as invalid:
            told = f"{invalid.field}: {invalid.detail}"
            if self._template is None:
                raise Invalid(
                    "words" if ask.content is None else "content", f"cannot be sent by {channel}: {told}"
                ) from None
            raise Invalid("variables", f"do not fit the template {ask.template}: {channel}: {told}") from None

    def _locale(self, user: User | None) -> str | None:
        return self._ask.locale or (None if user is None else user.locale)

    def _of_hers(self, user: User | None) -> tuple[tuple[str, str], ...]:
        """The user's own values that the text depends on."""
        if user is None or self._template is None:
            return ()
        own = user.known({})
        used = self._template.uses(own.keys() - self._ask.variables.keys())
        return tuple(sorted((name, own[name]) for name in used))
