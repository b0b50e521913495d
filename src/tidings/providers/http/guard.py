"""Which addresses a webhook may reach: public ones alone, judged where the connection is made.

A name says nothing: what it resolves to may change between a check and the call. So the addresses that a resolver
answers are judged, and once more each address for which a socket is made. What is not known to be public is refused:
IPv6 has one range that is (2000::/3) and holes in it; everything that carries an IPv4 address inside is a hole too.
"""

import socket
from collections.abc import Iterable, Sequence
from errno import EACCES
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import DEFAULT_PORTS, check_url, literal_ip

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
# As `getaddrinfo` returns it: family, type, protocol, canonical name, and the socket's address.
AddressInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]

# IANA's special-purpose registries (RFC 6890 and later), multicast, and what is reserved.
_INSIDE_4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, and clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, with 192.0.0.192
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, with broadcast
    )
]
_PUBLIC_6 = IPv6Network("2000::/3")
_INSIDE_6 = [
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, with Teredo 2001::/32
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",
        "3fff::/20",
    )
]
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})  # in the middle of an address that carries an IPv4 one


class Refused(OSError):
    """An address that may not be called."""


class Guard:
    """What may be called: public addresses at these ports, and the networks that the settings add or take away."""

    def __init__(
        self, ports: Iterable[int], *, plain_http: bool, allowed: Iterable[str] = (), refused: Iterable[str] = ()
    ) -> None:
        self._ports = frozenset(ports)
        self._schemes = {"https", "http"} if plain_http else {"https"}
        self._allowed = [_network(text, "allowed_networks") for text in allowed]
        self._refused = [_network(text, "refused_networks") for text in refused]

    def check_target(self, url: str, field: str = "url") -> None:
        """Refuse a URL for what can be seen without calling anybody; says what to change.

        A host that is a name is judged by what it resolves to, when it is called.
        """
        parts = check_url(url, field)
        port = DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
        if parts.scheme not in self._schemes:
            raise Invalid(field, "is not https: use https, or set plain_http = true in channels.webhook")
        if port not in self._ports:
            told = f"only {_listed(self._ports)} may be called: use one, or name it in channels.webhook.ports"
            raise Invalid(field, f"has port {port}: {told}")
        address = literal_ip(parts.hostname or "")
        if address is not None and not self.permits(address):
            told = "use a public one, or add its network to channels.webhook.allowed_networks"
            raise Invalid(field, f"{address} is not a public address: {told}")

    def permits(self, address: Address) -> bool:
        """Whether this address may be called."""
        if any(address in network for network in self._allowed):
            return True
        return is_public(address) and not any(address in network for network in self._refused)

    def make_socket(self, info: AddressInfo) -> socket.socket:
        """A socket for an address that may be called: the last check, on the very address that is connected to."""
        family, kind, protocol, _, where = info
        host, port = str(where[0]), where[1]
        if family not in {socket.AF_INET, socket.AF_INET6} or not self._is_permitted(host) or port not in self._ports:
            raise Refused(EACCES, f"{host} port {port} may not be called")
        return socket.socket(family, kind, protocol)

    def check_addresses(self, host: str, found: Sequence[AddressInfo]) -> None:
        """Refuse a name if any of its addresses may not be called: a name that points inside once will do so again."""
        for *_, where in found:
            if not self._is_permitted(str(where[0])):
                raise Refused(EACCES, f"{host} resolves to {where[0]}, which is not a public address")

    def _is_permitted(self, host: str) -> bool:
        try:
            return self.permits(ip_address(host))
        except ValueError:
            return False


def is_public(address: Address) -> bool:
    """Whether an address is public unicast, and carries no other address inside."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _INSIDE_4)
    if address.scope_id is not None or address not in _PUBLIC_6:
        return False
    middle = int(address) >> 32 & 0xFFFFFFFF
    return middle not in _ISATAP and not any(address in network for network in _INSIDE_6)


def _network(text: str, field: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        raise Invalid(field, f"{text!r} is not a network: write one such as 10.1.0.0/16") from None


def _listed(ports: Iterable[int]) -> str:
    return ", ".join(str(port) for port in sorted(ports))
