"""Templates: store, list, show, preview, delete."""

from urllib.parse import quote

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.schedules.iso8601 import format_instant
from tidings.edges.http.inputs import SMALL_BODY_BYTES_MAX, query_of, whole_number, yes_or_no
from tidings.edges.http.notifications.documents import content_document, stored_document, template_document
from tidings.edges.http.notifications.notifications import limit_of, sent, unknown
from tidings.edges.http.routes import Call, Edge, Handler, Reply, json_answer
from tidings.shapes.notification import NewTemplate, TemplatePreview

BODY_BYTES_MAX = 4 << 20
VERSION_MAX = 999_999_999
LIST = "/v1/templates"


_drafts = msgspec.json.Decoder(NewTemplate)
_previews = msgspec.json.Decoder(TemplatePreview)


class Templates:
    """The resource `/v1/templates` and the paths below it."""

    def __init__(self, edge: Edge) -> None:
        self._templates = edge.services.templates

    async def index(self, call: Call) -> Reply:
        """A page of templates, by name."""
        query = query_of(call.scope, "cursor", "limit")
        page = await self._templates.page(call.caller.tenant, query.get("cursor"), limit_of(query))
        lines = [
            {"name": line.name, "latest": line.latest, "changed_at": format_instant(line.changed)}
            for line in page.templates
        ]
        return json_answer({"templates": lines, "cursor": page.cursor})

    async def show(self, call: Call) -> Reply:
        """One version; the latest if none is given."""
        query = query_of(call.scope, "version")
        version = whole_number(query, "version", 0, 1, VERSION_MAX)
        stored = await self._templates.get(call.caller.tenant, call.text("name"), version or None)
        if stored is None:
            raise unknown(f"version {version} of the template" if version else "template", call.text("name"), LIST)
        return json_answer(stored_document(stored))

    async def put(self, call: Call) -> Reply:
        """Check and store a new version; the same content as the latest makes none."""
        force = yes_or_no(query_of(call.scope, "force"), "force")
        tenant, name = call.caller.tenant, call.text("name")
        draft = await sent(call, _drafts, NewTemplate, BODY_BYTES_MAX)
        before = await self._templates.get(tenant, name)
        stored = await self._templates.put(tenant, name, draft, force=force)
        version = stored.template.version
        document = {"name": name, "outcome": "stored", "version": version}
        document |= {"needs": stored.needs, "channels": stored.channels}
        if before is not None and before.template.version == version:
            return json_answer(document | {"outcome": "unchanged"})
        return json_answer(document, 201, [(b"location", f"{LIST}/{quote(name, safe='')}".encode())])

    async def versions(self, call: Call) -> Reply:
        """Its versions, the latest first."""
        query = query_of(call.scope, "cursor", "limit")
        before = whole_number(query, "cursor", 0, 1, VERSION_MAX)
        limit, name = limit_of(query), call.text("name")
        found = await self._templates.versions(call.caller.tenant, name, before or None, limit)
        if not found and not before:
            raise unknown("template", name, LIST)
        more = len(found) == limit and found[-1].version > 1
        cursor = str(found[-1].version) if more else None
        return json_answer({"versions": [template_document(each) for each in found], "cursor": cursor})

    async def delete(self, call: Call) -> Reply:
        """Delete a template with all its versions."""
        force = yes_or_no(query_of(call.scope, "force"), "force")
        name = call.text("name")
        if not await self._templates.delete(call.caller.tenant, name, force=force):
            raise unknown("template", name, LIST)
        return json_answer({"name": name, "outcome": "deleted"})

    async def preview(self, call: Call) -> Reply:
        """Render a template; nothing is sent."""
        query_of(call.scope)
        asked = await sent(call, _previews, TemplatePreview, 2 * SMALL_BODY_BYTES_MAX)
        if asked.version is not None and asked.version < 1:
            raise Invalid("version", "must be at least 1: leave it out for the latest")
        name = call.text("name")
        content = await self._templates.preview(
            call.caller.tenant, name, asked.channel, asked.variables, version=asked.version, locale=asked.locale
        )
        if content is None:
            raise unknown(f"version {asked.version} of the template" if asked.version else "template", name, LIST)
        return json_answer({"name": name, "channel": asked.channel} | content_document(content))

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        one = f"{LIST}/{{name}}"
        return {
            LIST: {"GET": self.index},
            one: {"GET": self.show, "PUT": self.put, "DELETE": self.delete},
            f"{one}/versions": {"GET": self.versions},
            f"{one}/preview": {"POST": self.preview},
        }
