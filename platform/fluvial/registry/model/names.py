"""
The names of subjects and the contexts they lie in.

`:.context:name` is the subject `name` of `.context`, plain `name` one of the default context `.`; `:.context:` alone is
the context itself, for its settings. Ids, and what refers to what, are a context's own. `:.__GLOBAL:` holds the
settings of all contexts.
"""

DEFAULT_CONTEXT = "."
ALL_CONTEXTS = ":*:"
GLOBAL_CONTEXT = ".__GLOBAL"
GLOBAL_SETTINGS = ":.__GLOBAL:"
RESERVED = frozenset({"__GLOBAL", "__EMPTY"})


def split(subject: str) -> tuple[str, str]:
    """A subject's context and its name in there, which is empty for a context itself."""
    if not subject.startswith(":."):
        return DEFAULT_CONTEXT, subject
    context, _, name = subject[1:].partition(":")
    return context, name


def context_of(subject: str) -> str:
    """The context a subject lies in."""
    return split(subject)[0]


def joined(context: str, name: str) -> str:
    """The subject `name` of `context` as it is stored: without its context in the default one."""
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def normalized(subject: str) -> str:
    """The one way in which a subject is stored: `:.:name` is `name`."""
    return joined(*split(subject))


def is_context(subject: str) -> bool:
    """Whether this names a context, whose settings are those of all its subjects."""
    return not split(subject)[1]


def qualified(subject: str, parent: str) -> str:
    """The subject that `subject` means where `parent` refers to it: one of the same context unless it says another."""
    context, name = split(subject)
    return joined(context_of(parent) if context == DEFAULT_CONTEXT else context, name)


def context_named(text: str) -> str:
    """
    The context that a path or a caller names, with or without its colons and its leading dot.

    Raises ValueError for a name with a colon inside.
    """
    name = text.removeprefix(":").removesuffix(":")
    if ":" in name:
        raise ValueError(f"Context name '{name}' cannot contain a colon")
    return name if name.startswith(".") else f".{name}"


def in_scope(subject: str, scope: str | None) -> bool:
    """Whether what is said of `scope` (a subject, a context, or None for everything) is said of `subject`."""
    if scope is None or scope == subject:
        return True
    context, name = split(scope)
    return not name and context in {GLOBAL_CONTEXT, context_of(subject)}


def scopes(subject: str | None) -> tuple[str | None, ...]:
    """Where what holds for `subject` may be said, the narrowest first; None stands for the default context."""
    context = DEFAULT_CONTEXT if subject is None else context_of(subject)
    own_context = None if context == DEFAULT_CONTEXT else joined(context, "")
    return (subject, own_context, GLOBAL_SETTINGS)
