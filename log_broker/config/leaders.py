"""Where the leaders of a topic's partitions should be: `fluvial.leaders.preference`, as Redpanda has it."""

from dataclasses import dataclass

from log_broker.config.keys import ConfigKey, ConfigType

LEADERS_PREFERENCE = "fluvial.leaders.preference"
_FORMS = "none, racks:<rack>,<rack>… or ordered_racks:<rack>,<rack>…"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadersPreference:
    """The racks in which leaders are wanted, none where it is all the same; `is_ordered` wants the first ones most."""

    racks: tuple[str, ...] = ()
    is_ordered: bool = False

    def rank(self, rack: str | None) -> int:
        """Return how far a rack is from what is wanted; 0 is wanted most."""
        if rack not in self.racks:
            return len(self.racks)
        return self.racks.index(rack) if self.is_ordered else 0


ANYWHERE = LeadersPreference()


def parse_leaders_preference(text: str) -> LeadersPreference:
    """Read the text of the setting; raises ValueError that says what is allowed."""
    if text == "none":
        return ANYWHERE
    kind, colon, names = text.partition(":")
    racks = tuple(name.strip() for name in names.split(","))
    if kind not in {"racks", "ordered_racks"} or not colon or not all(racks):
        raise ValueError(f"is not {_FORMS}, with the names that brokers have as broker.rack")
    if len(set(racks)) < len(racks):
        raise ValueError("names a rack twice; name each once")
    return LeadersPreference(racks=racks, is_ordered=kind == "ordered_racks")


LEADER_KEYS = (
    ConfigKey(
        name=LEADERS_PREFERENCE,
        type=ConfigType.STRING,
        default="none",
        doc="The racks in which replicas lead if one there is in sync: racks:a,b likes them the same, ordered_racks:a,b"
        " the first one most.",
        reads=parse_leaders_preference,
        form=_FORMS,
    ),
)
