"""What the public may see of a student and a machine: keyed hashes, chosen pseudonyms, names of cards."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from grader.report.text import one_line

ANONYMOUS = "student-"
NAME_HEX = 12
SUBMISSION_HEX = 32

_UUID = re.compile(r"(?i)\b(GPU|MIG)-[0-9a-f][0-9a-f/-]*|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_LABELLED_UUID = re.compile(rf"(?i)[(,;]?\s*uuid:?\s*({_UUID.pattern.removeprefix('(?i)')})\s*\)?")
_VERSION = re.compile(r"[0-9A-Za-z.+_-]{1,40}")
_CARD_WORD = re.compile(
    r"NVIDIA|AMD|Intel|GeForce|Tesla|Quadro|TITAN|Radeon|Instinct|Arc|GRID|RTX|GTX|Pro|PRO|Ada|Blackwell|Generation|"
    r"Laptop|GPU|Max-Q|Server|Workstation|Edition|Ti|SUPER|Super|PCIe|PCIE|SXM\d?|NVL|MIG|HBM\d?e?|\d+GB|\dg\.\d+gb|"
    # A model: H200, A100-SXM4-80GB, 4090, L40S, MI300X.
    r"(?:[A-Z]{0,3}\d{1,5}|\d{3,5})[A-Za-z]{0,2}(?:-[A-Z0-9]{2,6})*"
)
_E_MAIL = re.compile(r"\S@\S")
_PATH = re.compile(r"[/\\]|^~")


@dataclass(frozen=True)
class Pseudonymiser:
    """Gives names that nobody without the instructor's key can trace back, the same ones every time.

    Args:
        key: the instructor's secret. Without one, who knows a student id could hash it and compare.
        chosen: student → the pseudonym that this student asked for.
        identities: every id, name and e-mail address of the class; a pseudonym that has one in it isn't shown.
    """

    key: bytes = field(repr=False)
    chosen: dict[str, str] = field(default_factory=dict)
    identities: frozenset[str] = frozenset()

    def name(self, student: str, members: Sequence[str]) -> tuple[str, bool]:
        """(what is shown, whether it is a pseudonym): a group goes by its members' pseudonyms if all have one."""
        chosen = [self._chosen(member) for member in members]
        if all(chosen):
            return " + ".join(chosen[:3]), True
        return ANONYMOUS + self._hash("student", student)[:NAME_HEX], False

    def refused(self) -> list[str]:
        """Students whose pseudonym isn't shown because it tells who or where somebody is."""
        return sorted(student for student, asked in self.chosen.items() if asked.strip() and not self._chosen(student))

    def submission(self, sha256: str) -> str:
        return self._hash("submission", sha256)[:SUBMISSION_HEX]

    def _hash(self, purpose: str, text: str) -> str:
        message = b"leaderboard\0" + purpose.encode() + b"\0" + text.encode("utf-8", "surrogateescape")
        return hmac.new(self.key, message, hashlib.sha256).hexdigest()

    def _chosen(self, student: str) -> str:
        """The pseudonym, clean; empty when there is none that may be shown."""
        shown = one_line(self.chosen.get(student, ""), max_characters=36)
        folded = shown.casefold()
        # Somebody else's anonymous name would be an impersonation; addresses and paths say who or where.
        if folded.startswith(ANONYMOUS) or any(p.search(shown) for p in (_E_MAIL, _PATH, _UUID)):
            return ""
        words = {folded, *re.split(r"[\s,;:()\[\]]+", folded)}
        return "" if words & {identity.casefold() for identity in self.identities} else shown


def card_name(name: str) -> str:
    """A GPU's name, without what tells one card from another of its kind, and where it stands.

    Only words that names of products are made of stay: a driver, or whoever wrote the report, may have put a host's
    name, a path or an address beside them.
    """
    told = _LABELLED_UUID.sub("", one_line(name, max_characters=120))
    words = _UUID.sub("", told).split()
    return one_line(" ".join(word for word in words if _CARD_WORD.fullmatch(word)), max_characters=80)


def shape_label(label: str) -> str:
    """What a timed shape is called, without the id of a card."""
    return one_line(_UUID.sub("", one_line(label, max_characters=120)), max_characters=80)


def version(text: str) -> str:
    """A version, or nothing when the text is no version."""
    return text if _VERSION.fullmatch(text) else ""
