"""Where a base can be made from: this machine's Debian mirrors."""

from images.context.bootstrap import mirror_lines


def test_mirrors_are_those_of_this_machines_apt() -> None:
    listing = (
        "Debian|Debian|main|http://mirror.test/debian/\n"
        "Debian|Debian Backports|main|http://backports.test/debian/\n"
        "Debian|Debian-Security|main|http://security.test/debian-security/\n"
        "Vendor|Vendor|main|http://vendor.test/\n"
    )
    assert mirror_lines("trixie", listing) == [
        "deb http://mirror.test/debian/ trixie main",
        "deb http://mirror.test/debian/ trixie-updates main",
        "deb http://security.test/debian-security/ trixie-security main",
    ]
    assert mirror_lines("sid", listing) == ["deb http://mirror.test/debian/ sid main"]
    for unusable in ("", "Ubuntu|Ubuntu|main|http://x.test/", "Debian|Debian|main|http://me:pw@x.test/"):
        assert mirror_lines("bookworm", unusable) == [], "the default is left to mmdebstrap"
